"""Random numbers: generators that remember where they are, and keys that do not.

The data structure is the state of `tapejit/ops/philox.py`, six words that name a stream
and a place in it. A `Generator` holds one in a Variable and moves it on with every
draw; the functions of this module draw from a default one. A key is a state given by
hand: `uniform((3,), key=k)` is a function of `k` and changes nothing.

What the words become is in `distributions.py`, whose functions take a source of words.
For a generator that is `Generator._draw`: under the generator's lock it reads the
state, draws, makes of the words what is wanted, and then moves the state on; so
threads never get the same words, and a call that fails has drawn nothing.

Start reading at `Generator`, then `Generator._draw`.
"""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.api.dispatch import TRACE, apply, as_operand
from tapejit.api.distributions import (
    Make,
    Source,
    draw_bernoulli,
    draw_integers,
    draw_normal,
    draw_permutation,
    draw_uniform,
    named,
    natural,
)
from tapejit.api.tensor import Tensor
from tapejit.api.variable import Variable
from tapejit.dims import Shape, Size
from tapejit.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tapejit.ops import philox
from tapejit.ops.random import STATE_SIZE, block_count


class Generator:
    """A source of random numbers that goes on from draw to draw.

    The numbers depend on the seed, any integer from 0 on, and on the draws so far,
    and are the same on every machine. Without a seed it takes one from the operating
    system, which `seed` tells. Threads may share a generator: no two of their draws
    overlap. A call that raises has drawn nothing.

    Under `tj.vmap` each row gets numbers of its own. Pickles and deep copies go on
    from the same place, independently; so does the child of a fork, which therefore
    draws what its parent draws unless one of them is `reset`.

    >>> import tapejit as tj
    >>> generator = tj.random.Generator(7)
    >>> print(generator.integers(10, shape=5), generator.integers(10, shape=5))
    [8 9 6 3 4] [8 1 5 4 2]
    >>> print(tj.random.Generator(7).integers(10, shape=5))
    [8 9 6 3 4]
    """

    __slots__ = ("__weakref__", "_seed", "_variable")

    def __init__(self, seed: Any = None) -> None:
        number = _seed_or_fresh(seed)
        self._hold(philox.seed_state(number), number)

    def _hold(self, state: Any, seed: int | None) -> None:
        self._seed = seed
        # Its lock is the generator's: whoever writes a variable holds it.
        self._variable = Variable(state, trainable=False, name="random state")

    @property
    def seed(self) -> int | None:
        """The seed it started from; None if it was split off or given a state.

        >>> import tapejit as tj
        >>> tj.random.Generator(7).seed
        7
        """
        return self._seed

    @property
    def state(self) -> Tensor:
        """Where it is, as a tensor; assign it to go back there.

        The state is also a key: what `key=generator.state` draws is what the
        generator draws next.

        >>> import tapejit as tj
        >>> generator = tj.random.Generator(7)
        >>> before = generator.state
        >>> first = generator.normal()
        >>> generator.state = before
        >>> bool(generator.normal() == first)
        True
        """
        return self._variable.value()

    @state.setter
    def state(self, state: Any) -> None:
        new = _as_key(state, "state")
        with self._variable._lock:
            old = self._variable._tensor._value
            self._variable.assign(new)
            if not _is_same_stream(old, new._value):
                self._seed = None

    def reset(self, seed: Any = None) -> None:
        """Start again from a seed; without one, from one of the operating system.

        >>> import tapejit as tj
        >>> generator = tj.random.Generator(7)
        >>> first = generator.uniform()
        >>> generator.reset(7)
        >>> bool(generator.uniform() == first)
        True
        """
        number = _seed_or_fresh(seed)
        with self._variable._lock:
            self._variable.assign(philox.seed_state(number))
            self._seed = number

    def split(self, n: int = 2) -> list[Generator]:
        """New generators, independent of this one and of each other.

        This one moves on, so that the next split gives others.

        >>> import tapejit as tj
        >>> first, second = tj.random.Generator(7).split(2)
        >>> print(first.integers(10, shape=5), second.integers(10, shape=5))
        [6 4 6 4 9] [3 4 1 1 5]
        """
        count = natural(n, "n", "split")
        with self._variable._lock:
            state = self._variable._operand()
            states = apply(ops.random_split, state, count=count)._value
            self._advance(state, 1)
        return [_restored(row, None) for row in states]

    def uniform(
        self, shape: Any = (), minval: Any = 0, maxval: Any = 1, dtype: Any = None
    ) -> Tensor:
        """Numbers spread evenly over [minval, maxval): see `tj.random.uniform`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).uniform(2, -1, 1))
        [-0.46014977  0.6631247 ]
        """
        return draw_uniform(self._draw, shape, minval, maxval, dtype)

    def normal(
        self, shape: Any = (), mean: Any = 0, stddev: Any = 1, dtype: Any = None
    ) -> Tensor:
        """Numbers of a normal distribution: see `tj.random.normal`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).normal(2, mean=100))
        [ 99.38696 100.96036]
        """
        return draw_normal(self._draw, shape, mean, stddev, dtype)

    def bernoulli(self, p: Any = 0.5, shape: Any = ()) -> Tensor:
        """True with probability `p`: see `tj.random.bernoulli`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).bernoulli(0.5, shape=4))
        [False False False  True]
        """
        return draw_bernoulli(self._draw, p, shape)

    def integers(
        self, low: Any, high: Any = None, shape: Any = (), dtype: Any = None
    ) -> Tensor:
        """Integers from `low` up to but not including `high`: see `tj.random.integers`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).integers(1, 7, shape=6))
        [5 6 4 2 3 3]
        """
        return draw_integers(self._draw, low, high, shape, dtype)

    def permutation(self, x: Any, axis: int = 0) -> Tensor:
        """The elements of `x` in a random order: see `tj.random.permutation`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).permutation(6))
        [3 5 4 2 0 1]
        """
        return draw_permutation(self._draw, x, axis)

    def _draw(self, shape: Shape, bits: int, make: Make) -> Tensor:
        """What `make` makes of random words, which are used up if it succeeds.

        While a function is mapped, how many rows will be drawn is not known yet: the
        draw gets a stream of its own, long enough for any number.
        """
        with self._variable._lock:
            state = source = self._variable._operand()
            if TRACE.get() is None:
                blocks = block_count(shape, bits)
            else:
                blocks = 1
                source = Tensor(apply(ops.random_split, state, count=1)._value[0])
            made = make(apply(ops.random_bits, source, shape=shape, bits=bits))
            self._advance(state, blocks)
        return made

    def _advance(self, state: Tensor, blocks: Size) -> None:
        self._variable.assign(apply(ops.random_advance, state, blocks=blocks))

    def __repr__(self) -> str:
        low, high = self._variable._tensor._value[2:4].tolist()
        seed = "" if self._seed is None else f"seed {self._seed}, "
        return f"<tj.random.Generator {seed}{low + (high << 32)} blocks drawn>"

    def __copy__(self) -> Generator:
        return self  # as a Variable: the state is all there is, and it is shared

    def __reduce__(self) -> tuple[Any, ...]:
        with self._variable._lock:
            return (_restored, (np.array(self._variable._tensor._value), self._seed))


def _restored(state: Any, seed: int | None) -> Generator:
    """A generator at a state."""
    generator = Generator.__new__(Generator)
    generator._hold(state, seed)
    return generator


def _is_same_stream(one: Any, other: Any) -> bool:
    """Whether two states differ at most in the low half of their counters."""
    stream = [0, 1, 4, 5]
    return np.array_equal(one[stream], other[stream])


def default_generator() -> Generator:
    """The generator that the functions of this module draw from.

    It starts from a seed of the operating system when tapejit is imported.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> tj.random.default_generator()
    <tj.random.Generator seed 7, 0 blocks drawn>
    """
    return _DEFAULT


def set_seed(seed: Any) -> None:
    """Start the default generator again from a seed, any integer from 0 on.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> first = tj.random.uniform(3)
    >>> tj.random.set_seed(7)
    >>> bool(tj.all(tj.random.uniform(3) == first))
    True
    """
    if seed is None:
        raise ArgumentTypeError(
            "a seed is an integer, got None",
            op="set_seed",
            help="for a fresh one write tj.random.default_generator().reset()",
        )
    _DEFAULT.reset(seed)


# Keys


def key(seed: Any) -> Tensor:
    """The key of a seed: where `Generator(seed)` starts.

    Every function that draws takes it as `key=`, and then depends on nothing else.
    The same key draws the same words each time, in every row of a `tj.vmap` too;
    `split` it or `fold_in` a number to get others.

    >>> import tapejit as tj
    >>> k = tj.random.key(7)
    >>> print(tj.random.uniform(2, key=k), tj.random.uniform(2, key=k))
    [0.26992512 0.83156234] [0.26992512 0.83156234]
    """
    return Tensor(philox.seed_state(natural(seed, "seed", "key")))


def split(key: Any, n: int = 2) -> Tensor:
    """`n` new keys, one in each row, independent of each other and of `key`.

    >>> import tapejit as tj
    >>> first, second = tj.random.split(tj.random.key(7))
    >>> print(tj.random.uniform(key=first), tj.random.uniform(key=second))
    0.8194337 0.07728678
    >>> keys = tj.random.split(tj.random.key(7), 2)
    >>> print(tj.vmap(lambda k: tj.random.uniform(key=k))(keys))
    [0.8194337  0.07728678]
    """
    count = natural(n, "n", "split")
    return apply(ops.random_split, _as_key(key, "split"), count=count)


def fold_in(key: Any, data: Any) -> Tensor:
    """The key that belongs to `key` and an integer from 0 on.

    >>> import tapejit as tj
    >>> k = tj.random.key(7)
    >>> for step in range(3):
    ...     print(tj.random.integers(10, key=tj.random.fold_in(k, step)))
    0
    6
    5
    """
    state = _as_key(key, "fold_in")
    if isinstance(data, int):
        number = natural(data, "data", "fold_in")
        if number > philox.MASK64:
            raise ArgumentError(f"data is below 2**64, got {number}", op="fold_in")
        return apply(ops.random_fold_in, state, Tensor(np.uint64(number)))
    numbers = as_operand(data, "fold_in")
    if numbers.ndim:
        raise ShapeError(
            f"takes one integer, got {numbers._type}",
            op="fold_in",
            help="for one key per integer use tj.vmap",
        )
    with named("fold_in"):
        return apply(ops.random_fold_in, state, numbers)


def _as_key(key: Any, name: str) -> Tensor:
    """A key that is one, or an error that says how to make one."""
    hint = "make one with tj.random.key(seed)"
    if isinstance(key, (int, Generator)):
        raise ArgumentTypeError(
            f"a key is a tensor, got {type(key).__name__}", op=name, help=hint
        )
    tensor = as_operand(key, name)
    if tensor.dtype != np.uint32 or tensor.shape != (STATE_SIZE,):
        is_many = tensor.dtype == np.uint32 and tensor.shape[-1:] == (STATE_SIZE,)
        raise DTypeError(
            f"a key is u32[{STATE_SIZE}], got {tensor._type}",
            op=name,
            help="for several keys use tj.vmap" if is_many else hint,
        )
    return tensor


def _source(key: Any, name: str) -> Source:
    """Where a function of this module takes its words from."""
    if key is None:
        return _DEFAULT._draw
    state = _as_key(key, name)
    return lambda shape, bits, make: make(
        apply(ops.keyed_bits, state, shape=shape, bits=bits)
    )


# Distributions


def uniform(
    shape: Any = (),
    minval: Any = 0,
    maxval: Any = 1,
    dtype: Any = None,
    *,
    key: Any = None,
) -> Tensor:
    """Numbers spread evenly over [minval, maxval).

    `minval` and `maxval` may be tensors or variables, to which gradients flow; they
    broadcast with `shape`, and each element of the result has its own draw. The dtype
    is that of the floating-point tensors given, or the default float. Never gives
    `maxval`, not by rounding either, unless the two are equal. Numbers in the wrong
    order are refused; tensors are not looked at.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.uniform(3))
    [0.26992512 0.83156234 0.13044506]
    >>> tj.random.uniform((2, 1), maxval=tj.asarray([1.0, 10.0, 100.0])).shape
    (2, 3)
    """
    return draw_uniform(_source(key, "uniform"), shape, minval, maxval, dtype)


def normal(
    shape: Any = (),
    mean: Any = 0,
    stddev: Any = 1,
    dtype: Any = None,
    *,
    key: Any = None,
) -> Tensor:
    """Numbers of a normal distribution: `mean + stddev * noise`.

    `mean` and `stddev` may be tensors or variables, to which gradients flow; they
    broadcast with `shape`, and each element of the result has its own draw. The dtype
    is that of the floating-point tensors given, or the default float.
    A negative number as `stddev` is refused; tensors are not looked at.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> mean, stddev = tj.Variable([10.0, 20.0]), tj.Variable(0.1)
    >>> with tj.GradientTape() as tape:
    ...     x = tj.random.normal(mean=mean, stddev=stddev)
    >>> print(x, *tape.gradient(x, [mean, stddev]))
    [ 9.938696 20.096035] [1. 1.] 0.34731823
    """
    return draw_normal(_source(key, "normal"), shape, mean, stddev, dtype)


def bernoulli(p: Any = 0.5, shape: Any = (), *, key: Any = None) -> Tensor:
    """True with probability `p`, else False.

    `p` may be a tensor or a variable; it broadcasts with `shape`, and each element of
    the result has its own draw. Probabilities are met to 53 bits. A comparison has no
    gradient, so none flows to `p`.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.bernoulli([0.0, 0.1, 0.9, 1.0], shape=(3, 1)))
    [[False False  True  True]
     [False False  True  True]
     [False False  True  True]]
    """
    return draw_bernoulli(_source(key, "bernoulli"), p, shape)


def integers(
    low: Any, high: Any = None, shape: Any = (), dtype: Any = None, *, key: Any = None
) -> Tensor:
    """Integers from `low` up to but not including `high`, all equally likely.

    With one bound they start from 0. The dtype is int64 unless told otherwise. The
    probabilities differ by less than 2**-64.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.integers(6, shape=5), tj.random.integers(-1, 2, shape=5))
    [4 5 3 1 2] [ 1 -1  0  0 -1]
    """
    return draw_integers(_source(key, "integers"), low, high, shape, dtype)


def permutation(x: Any, axis: int = 0, *, key: Any = None) -> Tensor:
    """The elements of `x` in a random order along an axis.

    An integer n stands for 0, 1, ..., n - 1. Gradients flow to `x`.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.permutation(5), tj.random.permutation([1.5, 2.5, 3.5]))
    [3 4 2 0 1] [2.5 3.5 1.5]
    """
    return draw_permutation(_source(key, "permutation"), x, axis)


def _seed_or_fresh(seed: Any) -> int:
    """A seed as an int, or one of 128 bits from the operating system."""
    if seed is None:
        return int.from_bytes(os.urandom(16), "little")
    return natural(seed, "a seed", "Generator")


_DEFAULT: Final = Generator()

__all__ = [
    "Generator",
    "bernoulli",
    "default_generator",
    "fold_in",
    "integers",
    "key",
    "normal",
    "permutation",
    "set_seed",
    "split",
    "uniform",
]
