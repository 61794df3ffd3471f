"""Random numbers: functions that draw from a default generator, and keys.

The data structure is the state of `tapejit/ops/philox.py`, six words that name a stream
and a place in it. A `Generator` (in `generator.py`) holds one and moves it on with
every draw; the functions of this module draw from a default one. A key is a state
given by hand: `uniform((3,), key=k)` is a function of `k` and changes nothing.

Start reading at `key`, then `uniform`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tapejit import ops
from tapejit.array import distributions, random_distributions
from tapejit.base.errors import ArgumentError, ArgumentTypeError, ShapeError
from tapejit.base.public import names_in
from tapejit.ops import philox
from tapejit.tape.generator import DEFAULT, as_key, source_of
from tapejit.tape.generator import Generator as Generator
from tapejit.tensor.device import placed
from tapejit.tensor.dispatch import apply, as_operand
from tapejit.tensor.shape_first import shape_first
from tapejit.tensor.tensor import CONSTANT, Tensor


def default_generator() -> Generator:
    """The generator that the functions of this module draw from.

    It starts from a seed of the operating system when tapejit is imported.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> tj.random.default_generator()
    <tj.random.Generator seed 7, 0 blocks drawn>
    """
    return DEFAULT


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
    DEFAULT.reset(seed)


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
    state = philox.seed_state(distributions.natural(seed, "seed", "key"))
    return placed(Tensor(state), None)


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
    count = distributions.natural(n, "n", "split")
    return apply(ops.random_split, as_key(key, "split"), count=count)


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
    state = as_key(key, "fold_in")
    if isinstance(data, int):
        number = distributions.natural(data, "data", "fold_in")
        if number > philox.MASK64:
            raise ArgumentError(f"data is below 2**64, got {number}", op="fold_in")
        data = Tensor(np.uint64(number), CONSTANT)
        return apply(ops.random_fold_in, state, data)
    numbers = as_operand(data, "fold_in")
    if numbers.ndim:
        raise ShapeError(
            f"takes one integer, got {numbers._type}",
            op="fold_in",
            help="for one key per integer use tj.vmap",
        )
    with distributions.named("fold_in"):
        return apply(ops.random_fold_in, state, numbers)


# Distributions


@shape_first
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
    return distributions.draw_uniform(
        source_of(key, "uniform"), shape, minval, maxval, dtype
    )


@shape_first
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
    return distributions.draw_normal(
        source_of(key, "normal"), shape, mean, stddev, dtype
    )


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
    return distributions.draw_bernoulli(source_of(key, "bernoulli"), p, shape)


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
    return distributions.draw_integers(
        source_of(key, "integers"), low, high, shape, dtype
    )


def permutation(x: Any, axis: int = 0, *, key: Any = None) -> Tensor:
    """The elements of `x` in a random order along an axis.

    An integer n stands for 0, 1, ..., n - 1. Gradients flow to `x`.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.permutation(5), tj.random.permutation([1.5, 2.5, 3.5]))
    [3 4 2 0 1] [2.5 3.5 1.5]
    """
    return distributions.draw_permutation(source_of(key, "permutation"), x, axis)


def truncated_normal(
    lower: Any = -2,
    upper: Any = 2,
    shape: Any = (),
    mean: Any = 0,
    stddev: Any = 1,
    dtype: Any = None,
    *,
    key: Any = None,
) -> Tensor:
    """Numbers of a normal distribution that lie between two bounds.

    The bounds are in standard deviations from the mean: what is drawn is
    `mean + stddev * z` with lower <= z <= upper, and the bounds may be infinite. All
    four may be tensors or variables, to which gradients flow, and broadcast with
    `shape`. More than 37 standard deviations from the mean it is the nearer bound.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.truncated_normal(0, tj.inf, shape=3))
    [0.2126982  0.00497754 0.46759102]
    """
    source = source_of(key, "truncated_normal")
    return random_distributions.draw_truncated_normal(
        source, lower, upper, shape, mean, stddev, dtype
    )


@shape_first
def exponential(
    shape: Any = (), scale: Any = 1, dtype: Any = None, *, key: Any = None
) -> Tensor:
    """Positive numbers with P(x > t) = exp(-t / scale); `scale` is their mean.

    `scale` may be a tensor or a variable, to which gradients flow.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.exponential(3))
    [1.7811898 5.528616  1.0218654]
    """
    return random_distributions.draw_exponential(
        source_of(key, "exponential"), shape, scale, dtype
    )


def gamma(
    alpha: Any, shape: Any = (), scale: Any = 1, dtype: Any = None, *, key: Any = None
) -> Tensor:
    """Numbers of a gamma distribution: of density z^(alpha-1) e^-z / Γ(alpha), scaled.

    `alpha` and `scale` may be tensors or variables; they broadcast with `shape`.
    Gradients flow to both, to `alpha` by implicit reparametrisation: the number moves
    so that the probability of a smaller one stays the same. The mean is alpha · scale.
    For a small `alpha` many numbers are too small for a float and become 0.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> alpha = tj.Variable([0.5, 3.0])
    >>> with tj.GradientTape() as tape:
    ...     x = tj.random.gamma(alpha)
    >>> print(x, tape.gradient(x, alpha))
    [0.52886647 4.937157  ] [1.3771343 1.3420982]
    """
    return random_distributions.draw_gamma(
        source_of(key, "gamma"), alpha, shape, scale, dtype
    )


def beta(
    a: Any, b: Any, shape: Any = (), dtype: Any = None, *, key: Any = None
) -> Tensor:
    """Numbers in [0, 1] of a beta distribution: density x^(a-1) (1-x)^(b-1) / B(a, b).

    `a` and `b` may be tensors or variables, to which gradients flow as in `gamma`.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.beta(2.0, tj.asarray([1.0, 10.0])))
    [0.88542044 0.348863  ]
    """
    return random_distributions.draw_beta(source_of(key, "beta"), a, b, shape, dtype)


@shape_first
def laplace(
    shape: Any = (), loc: Any = 0, scale: Any = 1, dtype: Any = None, *, key: Any = None
) -> Tensor:
    """Numbers of a Laplace distribution: density exp(-|x - loc| / scale) / (2 scale).

    `loc` and `scale` may be tensors or variables, to which gradients flow.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.laplace(3))
    [1.0880426  4.835469   0.32871822]
    """
    return random_distributions.draw_laplace(
        source_of(key, "laplace"), shape, loc, scale, dtype
    )


@shape_first
def gumbel(
    shape: Any = (), loc: Any = 0, scale: Any = 1, dtype: Any = None, *, key: Any = None
) -> Tensor:
    """Numbers of a Gumbel distribution: P(x < t) = exp(-exp(-(t - loc) / scale)).

    `loc` and `scale` may be tensors or variables, to which gradients flow. Where the
    largest of `logits + gumbel(...)` is, is distributed as `softmax(logits)`.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.gumbel(3))
    [-0.57728153 -1.7099375  -0.02162979]
    """
    return random_distributions.draw_gumbel(
        source_of(key, "gumbel"), shape, loc, scale, dtype
    )


def poisson(
    rate: Any = 1, shape: Any = (), dtype: Any = None, *, key: Any = None
) -> Tensor:
    """Counts k from 0 on with probability e^-rate rate^k / k!.

    `rate` may be a tensor or a variable; it broadcasts with `shape`. The dtype is int64
    unless told otherwise. A rate that is negative, NaN or above 2**62 gives -1. Counts
    have no gradient.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.poisson([0.1, 1.0, 10.0], shape=(2, 1)))
    [[ 0  4 11]
     [ 0  1  9]]
    """
    return random_distributions.draw_poisson(
        source_of(key, "poisson"), rate, shape, dtype
    )


def categorical(
    logits: Any, shape: Any = (), axis: int = -1, dtype: Any = None, *, key: Any = None
) -> Tensor:
    """Positions along an axis of `logits`, with probabilities `softmax(logits)`.

    The other axes of `logits` broadcast with `shape`, and each element of the result
    has its own draw: for 100 from each row of a matrix, `shape=(100, 1)`. A logit of
    -inf is never chosen. A choice has no gradient; for one that has, add `gumbel` noise
    and take a softmax.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.categorical(tj.log(tj.asarray([0.4, 0.0, 0.6])), 10))
    [2 2 2 0 2 0 2 0 2 2]
    """
    source = source_of(key, "categorical")
    return random_distributions.draw_categorical(source, logits, shape, axis, dtype)


def choice(
    a: Any,
    shape: Any = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    *,
    key: Any = None,
) -> Tensor:
    """Elements of `a` along an axis; an integer n stands for 0, 1, ..., n - 1.

    With `replace=False` no element is chosen twice. `p` are their probabilities, equal
    if not given; they need not add up to 1. Gradients flow to `a`, not to `p`.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.choice(5, 3, replace=False))
    [3 4 2]
    >>> print(tj.random.choice([1.5, 2.5], (2, 3), p=[0.2, 0.8]))
    [[2.5 1.5 2.5]
     [2.5 2.5 2.5]]
    """
    return random_distributions.draw_choice(
        source_of(key, "choice"), a, shape, replace, p, axis
    )


def shuffle(x: Any, axis: int = 0, *, key: Any = None) -> Tensor:
    """The elements of a tensor in a random order along an axis.

    The tensor itself stays as it is. Gradients flow to `x`.

    >>> import tapejit as tj
    >>> tj.random.set_seed(7)
    >>> print(tj.random.shuffle([[1, 2], [3, 4], [5, 6]]))
    [[5 6]
     [1 2]
     [3 4]]
    """
    return random_distributions.draw_shuffle(source_of(key, "shuffle"), x, axis)


def __getattr__(name: str) -> Any:
    from tapejit.tensor.foreign_names import RANDOM, attribute_error

    raise attribute_error("tapejit.random", name, RANDOM)


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = ["Generator", *names_in(globals())]
