"""Initial values of variables, by name and as objects: `tj.nn.initializers`.

An `Initializer` is called with a shape and a dtype. It has a rule, one function of the
table `RULES`, its options, and a source of random numbers: its own generator, a seed
from which it starts anew each time, or else the default generator.

Three families scale with the layer so that signals keep their size: the variance is
`scale / fan`, where the fan counts the inputs of a unit (He, LeCun) or is the mean of
its inputs and outputs (Glorot). A truncated normal is drawn wider before it is cut off
at two standard deviations, so that its variance is that number too.

Start reading at `Initializer`, then `_variance_scaling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tapejit.array.creation import asarray, eye, full
from tapejit.array.elementwise import where
from tapejit.array.manipulation import broadcast_to, matrix_transpose, reshape
from tapejit.base.errors import ArgumentError, ArgumentTypeError, ShapeError
from tapejit.base.public import names_in
from tapejit.base.types import DType, as_dtype, default_float, wide_dtype
from tapejit.tape.generator import DEFAULT, Generator
from tapejit.tensor.dispatch import cast
from tapejit.tensor.tensor import Tensor

Shape = tuple[int, ...]

# The standard deviation of a standard normal cut off at -2 and 2.
_CUT_WIDTH: Final = math.sqrt(
    1 - 4 * math.exp(-2) / (math.sqrt(2 * math.pi) * math.erf(math.sqrt(2)))
)


class Initializer:
    """Gives a variable its first values, given a shape.

    The functions of `tj.nn.initializers` make them. With a `generator` each call draws
    other numbers from it; with a `seed` each call draws the same.

    >>> import tapejit as tj
    >>> draw = tj.nn.initializers.glorot_uniform(seed=3)
    >>> draw
    glorot_uniform(seed=3)
    >>> draw((2, 2), dtype="float64").dtype
    dtype('float64')
    >>> bool(tj.all(draw((4, 4)) == draw((4, 4))))
    True
    """

    def __init__(
        self,
        name: str,
        options: dict[str, Any],
        generator: Generator | None = None,
        seed: int | None = None,
    ) -> None:
        if generator is not None and seed is not None:
            raise ArgumentError("takes a generator or a seed, not both", op=name)
        if generator is not None and not isinstance(generator, Generator):
            raise ArgumentTypeError(
                f"generator is a tj.random.Generator, got {type(generator).__name__}",
                op=name,
                help="for an integer write seed=",
            )
        self.name = name
        self.options = options
        self.generator = generator
        self.seed = seed

    def __call__(self, shape: Any, dtype: Any = None) -> Tensor:
        sizes = _sizes(shape, self.name)
        kind = default_float() if dtype is None else as_dtype(dtype)
        source = self.generator or DEFAULT
        if self.seed is not None:
            source = Generator(self.seed)
        return RULES[self.name](source, sizes, kind, **self.options)

    @property
    def has_source(self) -> bool:
        """Whether it has random numbers of its own."""
        return self.generator is not None or self.seed is not None

    def __repr__(self) -> str:
        texts = [f"{name}={value!r}" for name, value in self.options.items()]
        if self.generator is not None:
            texts.append(f"generator={self.generator!r}")
        if self.seed is not None:
            texts.append(f"seed={self.seed}")
        return f"{self.name}({', '.join(texts)})"


# Plain values


def zeros() -> Initializer:
    """Zeros.

    >>> import tapejit as tj
    >>> print(tj.nn.initializers.zeros()(3))
    [0. 0. 0.]
    """
    return Initializer("zeros", {})


def ones() -> Initializer:
    """Ones.

    >>> import tapejit as tj
    >>> print(tj.nn.initializers.ones()(3))
    [1. 1. 1.]
    """
    return Initializer("ones", {})


def constant(value: Any = 0.0) -> Initializer:
    """One number everywhere, or an array that fits.

    >>> import tapejit as tj
    >>> print(tj.nn.initializers.constant(0.5)(3))
    [0.5 0.5 0.5]
    """
    return Initializer("constant", {"value": value})


def identity(gain: float = 1.0) -> Initializer:
    """A matrix with `gain` on its diagonal and zeros elsewhere.

    >>> import tapejit as tj
    >>> print(tj.nn.initializers.identity(2.0)((2, 3)))
    [[2. 0. 0.]
     [0. 2. 0.]]
    """
    return Initializer("identity", {"gain": gain})


# Random values


def uniform(
    minval: float = -0.05,
    maxval: float = 0.05,
    *,
    generator: Generator | None = None,
    seed: int | None = None,
) -> Initializer:
    """Numbers spread evenly over [minval, maxval).

    >>> import tapejit as tj
    >>> values = tj.nn.initializers.uniform(-1, 1)((100,))
    >>> bool(tj.all(tj.abs(values) <= 1))
    True
    """
    options = {"minval": minval, "maxval": maxval}
    return Initializer("uniform", options, generator, seed)


def normal(
    mean: float = 0.0,
    stddev: float = 0.05,
    *,
    generator: Generator | None = None,
    seed: int | None = None,
) -> Initializer:
    """Numbers of a normal distribution.

    >>> import tapejit as tj
    >>> tj.nn.initializers.normal(stddev=0.1)((2, 3)).shape
    (2, 3)
    """
    options = {"mean": mean, "stddev": stddev}
    return Initializer("normal", options, generator, seed)


def truncated_normal(
    mean: float = 0.0,
    stddev: float = 0.05,
    *,
    generator: Generator | None = None,
    seed: int | None = None,
) -> Initializer:
    """Normal numbers within two standard deviations of the mean.

    `stddev` is that of the distribution before it is cut off: what is left has 0.88
    of it.

    >>> import tapejit as tj
    >>> values = tj.nn.initializers.truncated_normal(stddev=1.0)((100,))
    >>> bool(tj.all(tj.abs(values) <= 2))
    True
    """
    options = {"mean": mean, "stddev": stddev}
    return Initializer("truncated_normal", options, generator, seed)


def orthogonal(
    gain: float = 1.0, *, generator: Generator | None = None, seed: int | None = None
) -> Initializer:
    """A random matrix with orthonormal columns, or rows if it has fewer, times `gain`.

    All such matrices are equally likely. More than two axes count as a matrix with the
    last axis as its columns.

    >>> import tapejit as tj
    >>> q = tj.nn.initializers.orthogonal()((5, 3))
    >>> tj.allclose(q.T @ q, tj.eye(3), atol=1e-6)
    True
    """
    return Initializer("orthogonal", {"gain": gain}, generator, seed)


def variance_scaling(
    scale: float = 1.0,
    mode: str = "fan_in",
    distribution: str = "truncated_normal",
    *,
    generator: Generator | None = None,
    seed: int | None = None,
) -> Initializer:
    """Random numbers of mean 0 and variance `scale / fan`.

    `mode` says which fan: "fan_in", "fan_out" or their mean "fan_avg". `distribution`
    is "uniform", "normal" or "truncated_normal".

    >>> import tapejit as tj
    >>> draw = tj.nn.initializers.variance_scaling(2.0, "fan_out", "normal", seed=1)
    >>> print(tj.round(tj.var(draw((100, 50))) * 50))
    2.0
    """
    options = {"scale": scale, "mode": mode, "distribution": distribution}
    made = Initializer("variance_scaling", options, generator, seed)
    for label, given, known in (
        ("mode", mode, ("fan_in", "fan_out", "fan_avg")),
        ("distribution", distribution, ("uniform", "normal", "truncated_normal")),
    ):
        if given not in known:
            raise ArgumentError(
                f"{label} is one of {', '.join(known)}, got {given!r}",
                op="variance_scaling",
            )
    if not 0 < scale < math.inf:
        raise ArgumentError(
            f"scale is a positive number, got {scale}", op="variance_scaling"
        )
    return made


def glorot_uniform(
    *, generator: Generator | None = None, seed: int | None = None
) -> Initializer:
    """Uniform numbers of variance 2 / (inputs + outputs).

    >>> import tapejit as tj
    >>> values = tj.nn.initializers.glorot_uniform()((4, 2))
    >>> bool(tj.all(tj.abs(values) <= 1))
    True
    """
    return Initializer("glorot_uniform", {}, generator, seed)


def glorot_normal(
    *, generator: Generator | None = None, seed: int | None = None
) -> Initializer:
    """Truncated normal numbers of variance 2 / (inputs + outputs).

    >>> import tapejit as tj
    >>> tj.nn.initializers.glorot_normal()((4, 2)).shape
    (4, 2)
    """
    return Initializer("glorot_normal", {}, generator, seed)


def he_uniform(
    *, generator: Generator | None = None, seed: int | None = None
) -> Initializer:
    """Uniform numbers of variance 2 / inputs, for layers followed by a relu.

    >>> import tapejit as tj
    >>> values = tj.nn.initializers.he_uniform()((6, 2))
    >>> bool(tj.all(tj.abs(values) <= 1))
    True
    """
    return Initializer("he_uniform", {}, generator, seed)


def he_normal(
    *, generator: Generator | None = None, seed: int | None = None
) -> Initializer:
    """Truncated normal numbers of variance 2 / inputs, for layers before a relu.

    >>> import tapejit as tj
    >>> tj.nn.initializers.he_normal()((6, 2)).shape
    (6, 2)
    """
    return Initializer("he_normal", {}, generator, seed)


def lecun_uniform(
    *, generator: Generator | None = None, seed: int | None = None
) -> Initializer:
    """Uniform numbers of variance 1 / inputs.

    >>> import tapejit as tj
    >>> values = tj.nn.initializers.lecun_uniform()((3, 2))
    >>> bool(tj.all(tj.abs(values) <= 1))
    True
    """
    return Initializer("lecun_uniform", {}, generator, seed)


def lecun_normal(
    *, generator: Generator | None = None, seed: int | None = None
) -> Initializer:
    """Truncated normal numbers of variance 1 / inputs.

    >>> import tapejit as tj
    >>> tj.nn.initializers.lecun_normal()((3, 2)).shape
    (3, 2)
    """
    return Initializer("lecun_normal", {}, generator, seed)


# By name


def get(
    initializer: str | Callable[..., Any], generator: Generator | None = None
) -> Callable[..., Any]:
    """An initializer by its name; a callable is returned as it is.

    A callable takes a shape and a `dtype=`. `generator` is where an initializer that
    has no source of its own draws from.

    >>> import tapejit as tj
    >>> tj.nn.initializers.get("he_normal")
    he_normal()
    """
    if isinstance(initializer, str):
        if initializer not in RULES:
            import difflib

            near = difflib.get_close_matches(initializer, RULES, n=1)
            tail = f"; did you mean {near[0]!r}?" if near else ""
            raise ArgumentError(
                f"no initializer is called {initializer!r}{tail}",
                help=f"there are {', '.join(sorted(RULES))}",
            )
        made: Initializer = globals()[initializer]()
        initializer = made
    if not callable(initializer):
        raise ArgumentTypeError(
            f"an initializer is a name or a function, got {type(initializer).__name__}"
        )
    if isinstance(initializer, Initializer) and not initializer.has_source:
        return Initializer(initializer.name, initializer.options, generator)
    return initializer


# The rules


def _constant(source: Generator, shape: Shape, dtype: DType, *, value: Any) -> Tensor:
    return broadcast_to(asarray(value, dtype=dtype), shape)


def _zeros(source: Generator, shape: Shape, dtype: DType) -> Tensor:
    return full(shape, 0, dtype=dtype)


def _ones(source: Generator, shape: Shape, dtype: DType) -> Tensor:
    return full(shape, 1, dtype=dtype)


def _identity(source: Generator, shape: Shape, dtype: DType, *, gain: float) -> Tensor:
    if len(shape) != 2:
        raise ShapeError(f"makes matrices, got the shape {shape}", op="identity")
    matrix: Tensor = eye(*shape, dtype=dtype) * gain
    return matrix


def _uniform(
    source: Generator, shape: Shape, dtype: DType, *, minval: float, maxval: float
) -> Tensor:
    return source.uniform(shape, minval, maxval, dtype)


def _normal(
    source: Generator, shape: Shape, dtype: DType, *, mean: float, stddev: float
) -> Tensor:
    return source.normal(shape, mean, stddev, dtype)


def _truncated_normal(
    source: Generator, shape: Shape, dtype: DType, *, mean: float, stddev: float
) -> Tensor:
    return source.truncated_normal(-2, 2, shape, mean, stddev, dtype)


def _orthogonal(
    source: Generator, shape: Shape, dtype: DType, *, gain: float
) -> Tensor:
    """Q of a normal matrix; with the signs of R's diagonal all Q are equally likely."""
    if len(shape) < 2:
        raise ShapeError(
            f"needs at least two axes, got the shape {shape}", op="orthogonal"
        )
    rows, columns = math.prod(shape[:-1]), shape[-1]
    wide = wide_dtype(dtype)
    tall = (rows, columns) if rows >= columns else (columns, rows)
    from tapejit.array.factorisations import qr  # the others need no decompositions
    from tapejit.array.linalg import diagonal

    q, r = qr(source.normal(tall, dtype=wide))
    q = where(diagonal(r) < 0, -q, q)
    if rows < columns:
        q = matrix_transpose(q)
    return cast(reshape(q * gain, shape), dtype)


def _variance_scaling(
    source: Generator,
    shape: Shape,
    dtype: DType,
    *,
    scale: float,
    mode: str,
    distribution: str,
) -> Tensor:
    """Mean 0, variance scale / fan."""
    inputs, outputs = _fans_of(shape)
    fan = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}
    stddev = math.sqrt(scale / max(fan[mode], 1))
    if distribution == "uniform":
        limit = math.sqrt(3) * stddev
        return source.uniform(shape, -limit, limit, dtype)
    if distribution == "normal":
        return source.normal(shape, 0, stddev, dtype)
    return source.truncated_normal(-2, 2, shape, 0, stddev / _CUT_WIDTH, dtype)


def _family(scale: float, mode: str, distribution: str) -> Callable[..., Tensor]:
    def rule(source: Generator, shape: Shape, dtype: DType) -> Tensor:
        return _variance_scaling(
            source, shape, dtype, scale=scale, mode=mode, distribution=distribution
        )

    return rule


RULES: Final[dict[str, Callable[..., Tensor]]] = {
    "zeros": _zeros,
    "ones": _ones,
    "constant": _constant,
    "identity": _identity,
    "uniform": _uniform,
    "normal": _normal,
    "truncated_normal": _truncated_normal,
    "orthogonal": _orthogonal,
    "variance_scaling": _variance_scaling,
    "glorot_uniform": _family(1.0, "fan_avg", "uniform"),
    "glorot_normal": _family(1.0, "fan_avg", "truncated_normal"),
    "he_uniform": _family(2.0, "fan_in", "uniform"),
    "he_normal": _family(2.0, "fan_in", "truncated_normal"),
    "lecun_uniform": _family(1.0, "fan_in", "uniform"),
    "lecun_normal": _family(1.0, "fan_in", "truncated_normal"),
}


def _fans_of(shape: Sequence[int]) -> tuple[int, int]:
    """How many inputs and outputs a unit has: the last two axes are these.

    The axes before them are a window that both pass through.

    >>> _fans_of((64, 10)), _fans_of((3, 3, 16, 32)), _fans_of((5,)), _fans_of(())
    ((64, 10), (144, 288), (5, 5), (1, 1))
    """
    if len(shape) < 2:
        size = math.prod(shape)
        return size, size
    window = math.prod(shape[:-2])
    return shape[-2] * window, shape[-1] * window


def _sizes(shape: Any, name: str) -> Shape:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    for size in sizes:
        if int(size) < 0:
            raise ShapeError(f"a size is negative in {sizes}", op=name)
    return tuple(int(size) for size in sizes)


if not TYPE_CHECKING:  # checkers see what is defined here
    __all__ = names_in(globals())
