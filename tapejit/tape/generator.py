"""Generators: sources of random numbers that remember where they are.

A `Generator` holds a state of `tapejit/ops/philox.py` in a Variable and moves it on
with every draw. What the words become is in `distributions.py` and
`random_distributions.py`, whose functions take a source of words. For a generator that
is `Generator._draw`: under the generator's lock it reads the state, draws, makes of the
words what is wanted, and then moves the state on; so threads never get the same words,
and a call that fails has drawn nothing.

Start reading at `Generator`, then `Generator._draw`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tapejit import ops
from tapejit.array import distributions, random_distributions
from tapejit.array.creation import asarray
from tapejit.array.distributions import Make
from tapejit.base.dims import Shape, Size
from tapejit.base.errors import ArgumentTypeError, DTypeError
from tapejit.base.public import public
from tapejit.ir.node import Op
from tapejit.ops import philox
from tapejit.ops.random import STATE_SIZE, block_count
from tapejit.runtime.sentinels import DEVICE_ARRAYS
from tapejit.tape.variable import Variable
from tapejit.tensor.device import CPU, as_device, met, settled
from tapejit.tensor.dispatch import TRACE, apply, as_operand, host_value
from tapejit.tensor.shape_first import shape_first
from tapejit.tensor.tensor import Tensor, TracedTensor

MAX_SEEDS: Final = 256  # of those a generator was reset to, how many it remembers


@public("tapejit", "random")
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

    __slots__ = ("__weakref__", "_home", "_seeds", "_variable")

    def __init__(self, seed: Any = None) -> None:
        number = _seed_or_fresh(seed)
        self._hold(philox.seed_state(number), number)

    def _hold(self, state: Any, seed: int | None) -> None:
        # Which seed the state comes from is told by the state: a function that fails
        # puts the state back, one that is run again resets it without running this.
        self._seeds: dict[bytes, int] = {}
        self._home: str = CPU  # where draws are that meet nothing
        if seed is not None:
            self._seeds[_stream_of(state)] = seed
        # Its lock is the generator's: whoever writes a variable holds it.
        with CPU:  # until it is moved
            self._variable = Variable(state, trainable=False, name="random state")
        trace = TRACE.get()
        if trace is not None and trace.state is not None:
            trace.state.starts_from(self._variable, asarray(state))

    @property
    def seed(self) -> int | None:
        """The seed it started from; None if it was split off or given a state.

        >>> import tapejit as tj
        >>> tj.random.Generator(7).seed
        7
        """
        return self._seeds.get(_stream_of(self._state_now()))

    def _state_now(self) -> Any:
        """The state as an array; in a trace, what it is in this call."""
        held = self._variable._held()
        if isinstance(held, TracedTensor):
            return held._trace.value_of(held._value)
        return host_value(held)

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
        self._variable.assign(as_key(state, "state"))

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
        start = philox.seed_state(number)
        with self._variable._lock:
            while len(self._seeds) >= MAX_SEEDS:
                del self._seeds[next(iter(self._seeds))]
            self._seeds[_stream_of(start)] = number
            self._variable.assign(start)

    def split(self, n: int = 2) -> list[Generator]:
        """New generators, independent of this one and of each other.

        This one moves on, so that the next split gives others.

        >>> import tapejit as tj
        >>> first, second = tj.random.Generator(7).split(2)
        >>> print(first.integers(10, shape=5), second.integers(10, shape=5))
        [6 4 6 4 9] [3 4 1 1 5]
        """
        count = distributions.natural(n, "n", "split")
        with self._variable._lock:
            while True:
                state = self._variable._operand()
                states = beside_rows(ops.random_split, state, count=count)
                if self._advance(state, 1):
                    break
        return [_restored(states[row], None) for row in range(count)]

    def jump(self, n: int = 1) -> Generator:
        """A generator 2**64 · n blocks further along, while this one stays.

        Those of n = 0, 1, 2, ... never meet in practice, whatever each of them draws;
        n = 0 gives a copy. `split` gives generators that are independent and moves on.

        >>> import tapejit as tj
        >>> generator = tj.random.Generator(7)
        >>> print(generator.jump(1).integers(10, shape=5), generator)
        [2 6 0 9 5] <tj.random.Generator seed 7, 0 blocks drawn>
        """
        count = distributions.natural(n, "n", "jump")
        with self._variable._lock:
            state = self._variable._operand()
            ahead = beside_rows(ops.random_advance, state, blocks=count << 64)
        return _restored(ahead, None if count else self.seed)

    @shape_first
    def uniform(
        self, shape: Any = (), minval: Any = 0, maxval: Any = 1, dtype: Any = None
    ) -> Tensor:
        """Numbers spread evenly over [minval, maxval): see `tj.random.uniform`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).uniform(2, -1, 1))
        [-0.46014977  0.6631247 ]
        """
        return distributions.draw_uniform(self._draw, shape, minval, maxval, dtype)

    @shape_first
    def normal(
        self, shape: Any = (), mean: Any = 0, stddev: Any = 1, dtype: Any = None
    ) -> Tensor:
        """Numbers of a normal distribution: see `tj.random.normal`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).normal(2, mean=100))
        [ 99.38696 100.96036]
        """
        return distributions.draw_normal(self._draw, shape, mean, stddev, dtype)

    def bernoulli(self, p: Any = 0.5, shape: Any = ()) -> Tensor:
        """True with probability `p`: see `tj.random.bernoulli`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).bernoulli(0.5, shape=4))
        [False False False  True]
        """
        return distributions.draw_bernoulli(self._draw, p, shape)

    def integers(
        self, low: Any, high: Any = None, shape: Any = (), dtype: Any = None
    ) -> Tensor:
        """Integers from `low` up to but not including `high`: see `tj.random.integers`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).integers(1, 7, shape=6))
        [5 6 4 2 3 3]
        """
        return distributions.draw_integers(self._draw, low, high, shape, dtype)

    def permutation(self, x: Any, axis: int = 0) -> Tensor:
        """The elements of `x` in a random order: see `tj.random.permutation`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).permutation(6))
        [3 5 4 2 0 1]
        """
        return distributions.draw_permutation(self._draw, x, axis)

    def truncated_normal(
        self,
        lower: Any = -2,
        upper: Any = 2,
        shape: Any = (),
        mean: Any = 0,
        stddev: Any = 1,
        dtype: Any = None,
    ) -> Tensor:
        """Normal numbers between bounds: see `tj.random.truncated_normal`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).truncated_normal(0, 1, shape=2))
        [0.14462191 0.0033981 ]
        """
        return random_distributions.draw_truncated_normal(
            self._draw, lower, upper, shape, mean, stddev, dtype
        )

    @shape_first
    def exponential(self, shape: Any = (), scale: Any = 1, dtype: Any = None) -> Tensor:
        """Waiting times of mean `scale`: see `tj.random.exponential`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).exponential(2))
        [1.7811898 5.528616 ]
        """
        return random_distributions.draw_exponential(self._draw, shape, scale, dtype)

    def gamma(
        self, alpha: Any, shape: Any = (), scale: Any = 1, dtype: Any = None
    ) -> Tensor:
        """Numbers of a gamma distribution: see `tj.random.gamma`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).gamma(3.0, 2))
        [2.9785252 4.937157 ]
        """
        return random_distributions.draw_gamma(self._draw, alpha, shape, scale, dtype)

    def beta(self, a: Any, b: Any, shape: Any = (), dtype: Any = None) -> Tensor:
        """Numbers of a beta distribution: see `tj.random.beta`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).beta(2.0, 3.0, 2))
        [0.53077775 0.7402377 ]
        """
        return random_distributions.draw_beta(self._draw, a, b, shape, dtype)

    @shape_first
    def laplace(
        self, shape: Any = (), loc: Any = 0, scale: Any = 1, dtype: Any = None
    ) -> Tensor:
        """Numbers of a Laplace distribution: see `tj.random.laplace`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).laplace(2))
        [1.0880426 4.835469 ]
        """
        return random_distributions.draw_laplace(self._draw, shape, loc, scale, dtype)

    @shape_first
    def gumbel(
        self, shape: Any = (), loc: Any = 0, scale: Any = 1, dtype: Any = None
    ) -> Tensor:
        """Numbers of a Gumbel distribution: see `tj.random.gumbel`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).gumbel(2))
        [-0.57728153 -1.7099375 ]
        """
        return random_distributions.draw_gumbel(self._draw, shape, loc, scale, dtype)

    def poisson(self, rate: Any = 1, shape: Any = (), dtype: Any = None) -> Tensor:
        """Counts of mean `rate`: see `tj.random.poisson`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).poisson(4.0, 5))
        [ 6 10  5  3  4]
        """
        return random_distributions.draw_poisson(self._draw, rate, shape, dtype)

    def categorical(
        self, logits: Any, shape: Any = (), axis: int = -1, dtype: Any = None
    ) -> Tensor:
        """Positions with given log-probabilities: see `tj.random.categorical`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).categorical([0.0, 1.0, 2.0], 5))
        [2 2 2 1 2]
        """
        return random_distributions.draw_categorical(
            self._draw, logits, shape, axis, dtype
        )

    def choice(
        self,
        a: Any,
        shape: Any = (),
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
    ) -> Tensor:
        """Elements of `a`: see `tj.random.choice`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).choice(10, 4, replace=False))
        [7 3 5 9]
        """
        return random_distributions.draw_choice(self._draw, a, shape, replace, p, axis)

    def shuffle(self, x: Any, axis: int = 0) -> Tensor:
        """The elements of a tensor in a random order: see `tj.random.shuffle`.

        >>> import tapejit as tj
        >>> print(tj.random.Generator(7).shuffle([1.5, 2.5, 3.5]))
        [3.5 1.5 2.5]
        """
        return random_distributions.draw_shuffle(self._draw, x, axis)

    def to(self, device: Any) -> None:
        """Move to a device: there draws are made, and are unless they meet others.

        A function that draws takes the state to where it runs.

        >>> import tapejit as tj
        >>> tj.random.Generator(7).to("cpu")
        """
        self._variable._move(device)
        self._home = as_device(device)

    def _draw(
        self,
        shape: Shape,
        bits: int,
        make: distributions.Make,
        beside: Sequence[Any] = (),
    ) -> Tensor:
        """What `make` makes of random words, which are used up if it succeeds.

        They are on the device of what they meet, or of the block around, or where `to`
        has moved the generator.

        While a function is mapped, how many rows will be drawn is not known yet: the
        draw gets a stream of its own, long enough for any number.
        """
        with self._variable._lock:
            if DEVICE_ARRAYS:
                self._variable._join_trace()
            while True:
                state = source = self._variable._operand()
                trace = TRACE.get()
                if trace is not None and trace.is_transparent:
                    trace = trace.outer
                if trace is None or trace is trace.state:
                    blocks = block_count(shape, bits)
                else:
                    blocks = 1
                    split = beside_rows(ops.random_split, state, count=1)
                    source = beside_rows(ops.reshape, split, shape=(STATE_SIZE,))
                words = apply(ops.random_bits, source, shape=shape, bits=bits)
                made = make(met(words, beside))
                if self._advance(state, blocks):
                    return settled(made, beside, self._home)

    def _advance(self, state: Tensor, blocks: Size) -> bool:
        """Go on from `state`; False if a finalizer has drawn in the meantime."""
        ahead = beside_rows(ops.random_advance, state, blocks=blocks)
        return self._variable._put(ahead, state)

    def __repr__(self) -> str:
        low, high = self._state_now()[2:4].tolist()
        known = self.seed
        seed = "" if known is None else f"seed {known}, "
        return f"<tj.random.Generator {seed}{low + (high << 32)} blocks drawn>"

    def __copy__(self) -> Generator:
        return self  # as a Variable: the state is all there is, and it is shared

    def __getstate__(self) -> tuple[Any, int | None]:
        with self._variable._lock:
            return (np.array(self._state_now()), self.seed)

    def __setstate__(self, state: tuple[Any, int | None]) -> None:
        self._hold(*state)


def _restored(state: Any, seed: int | None) -> Generator:
    """A generator at a state."""
    generator = Generator.__new__(Generator)
    generator._hold(state, seed)
    return generator


def _stream_of(state: Any) -> bytes:
    """What draws leave as it is: all of a state but the low half of its counter."""
    array = host_value(state) if isinstance(state, Tensor) else state
    return np.asarray(array)[[0, 1, 4, 5]].tobytes()


def beside_rows(op: Op, state: Tensor, **attrs: Any) -> Tensor:
    """An op on a state, which all rows share while a function is mapped."""
    trace = TRACE.get()
    if trace is None or trace.state is None:
        return apply(op, state, **attrs)
    shared: Tensor = trace.state.unrecorded(lambda: apply(op, state, **attrs))
    return shared


def as_key(key: Any, name: str) -> Tensor:
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


def source_of(key: Any, name: str) -> distributions.Draws:
    """Where a function of this module takes its words from."""
    if key is None:
        return DEFAULT._draw
    state = as_key(key, name)

    def draw(shape: Shape, bits: int, make: Make, beside: Sequence[Any] = ()) -> Tensor:
        words = apply(ops.keyed_bits, state, shape=shape, bits=bits)
        others = (state, *beside)
        return settled(make(met(words, others)), others, CPU)

    return draw


def _seed_or_fresh(seed: Any) -> int:
    """A seed as an int, or one of 128 bits from the operating system."""
    if seed is None:
        return int.from_bytes(os.urandom(16), "little")
    return distributions.natural(seed, "a seed", "Generator")


DEFAULT: Final = Generator()
