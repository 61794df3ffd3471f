"""What random programs are called on: all dtypes, odd layouts, special values.

Start reading at `Argument.array`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import tapejit as tj

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
ALL = (*FLOATS, *SIGNED, *UNSIGNED, "bool", *COMPLEX)
# Most programs are about single precision, as users' are.
COMMON = ("float32",) * 8 + ("float64",) * 3 + ("float16", "int32", "bool")

LAYOUTS = (
    "plain",
    "transposed",
    "fortran",
    "strided",
    "negative",
    "sliced",
    "broadcast",
)
HOLDERS = ("tensor", "shared", "array", "variable")
VALUES = ("smooth", "ties", "zeros", "special", "special")

TIES = (-1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0)
ZEROS = (-0.0, 0.0, -0.0, 0.0, -1.0, 1.0)
SPECIAL = (0.0, -0.0, 1.0, -1.5, 2.5, -3.7, 300.7, -300.2, 70000.0, 5e9, -5e9, 3e19)
RARE = (np.inf, -np.inf, np.nan)


def dtype_of(name: str) -> Any:
    """The NumPy dtype of a name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass(frozen=True)
class Argument:
    """One argument: its type, where its numbers lie, which ones, and who holds them.

    `holder` is "tensor"; "shared" for a tensor on foreign memory as it lies there;
    "array" for the ndarray itself; "variable" for one that the program assigns.
    """

    name: str
    dtype: str
    shape: Shape
    layout: str = "plain"
    values: str = "smooth"
    holder: str = "tensor"

    def array(self, rng: np.random.Generator) -> Array:
        """New numbers in the layout."""
        with np.errstate(all="ignore"):
            return laid_out(drawn(rng, self.dtype, self.shape, self.values), self, rng)

    def held(self, array: Array) -> Any:
        """What the program gets."""
        if self.holder == "array":
            return array
        if self.holder == "shared":
            return tj.asarray(array, copy=False)
        if self.holder == "variable":
            return tj.Variable(array)
        return tj.asarray(array)

    def __str__(self) -> str:
        words = [w for w in (self.layout, self.values) if w not in ("plain", "smooth")]
        notes = "".join(f", {w}" for w in (*words, self.holder) if w != "tensor")
        return f"{self.name}: {self.dtype}{list(self.shape)}{notes}"


def drawn(rng: np.random.Generator, dtype: str, shape: Shape, values: str) -> Array:
    """Numbers of a kind."""
    kind = dtype_of(dtype)
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype in (*SIGNED, *UNSIGNED):
        low = 0 if dtype in UNSIGNED else -5
        if values == "special":
            ends = np.iinfo(kind)
            return np.asarray(rng.integers(ends.min, ends.max, shape, kind, True))
        return np.asarray(rng.integers(low, 6, shape)).astype(kind)
    parts = [part(rng, shape, values) for _ in range(2 if dtype in COMPLEX else 1)]
    made = parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]
    return np.asarray(made).astype(kind)


def part(rng: np.random.Generator, shape: Shape, values: str) -> Array:
    """Real numbers of a kind."""
    if values == "smooth":
        return np.asarray(rng.uniform(-1.5, 1.5, shape))
    if values == "ties":
        return np.asarray(rng.choice(TIES, shape))
    if values == "zeros":
        return np.asarray(rng.choice(ZEROS, shape))
    some = np.asarray(rng.choice(SPECIAL, shape))
    return np.where(rng.random(shape) < 0.03, rng.choice(RARE, shape), some)


def laid_out(x: Array, argument: Argument, rng: np.random.Generator) -> Array:
    """The same numbers elsewhere in memory."""
    layout, shape = argument.layout, x.shape
    if layout == "transposed":
        return np.ascontiguousarray(x.T).T
    if layout == "fortran":
        return np.asfortranarray(x)
    if layout == "negative":
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1] if x.ndim else x
    if layout == "broadcast":
        return np.broadcast_to(x[:1], shape) if x.ndim and shape[0] else x
    if layout in ("strided", "sliced") and x.ndim:
        step = 2 if layout == "strided" else 1
        wide = np.zeros(tuple(step * n + 3 for n in shape), x.dtype)
        wide.view(np.uint8)[...] = 0xFF  # what lies between is not to be read
        view = wide[tuple(slice(1, 1 + step * n, step) for n in shape)]
        view[...] = x
        return view
    return x


SMALL = (1, 2, 3, 4, 5, 7, 8, 9)
MIDDLE = (15, 16, 17, 31, 33, 40, 64)
LARGE = (65, 100, 127, 128, 130, 200, 257)
MOST_ELEMENTS = 40_000


def sizes_of(choice: random.Random) -> list[int]:
    """The few sizes that a program has, so that its arrays meet."""
    kind = choice.random()
    if kind < 0.45:
        sizes = choice.sample(SMALL, 3)
    elif kind < 0.7:
        sizes = [*choice.sample(SMALL, 2), choice.choice(MIDDLE)]
    elif kind < 0.9:
        sizes = [choice.choice((1, 2, 3)), *choice.sample(LARGE, 2)]
    else:
        sizes = [choice.choice(SMALL), choice.choice(MIDDLE), choice.choice(LARGE)]
    return [*sizes, 0] if choice.random() < 0.06 else sizes


def shape_of(choice: random.Random, sizes: list[int], least: int = 0) -> Shape:
    """A shape of these sizes."""
    while True:
        ndim = max(least, choice.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 4)))
        shape = tuple(choice.choice(sizes) for _ in range(ndim))
        if math.prod(shape) <= MOST_ELEMENTS:
            return shape


def arguments_of(choice: random.Random, sizes: list[int]) -> tuple[Argument, ...]:
    """Arguments that can meet: matrices of the sizes, rows of them, anything else."""
    main = choice.choice(COMMON[:11] if choice.random() < 0.8 else ALL)
    most = "smooth" if choice.random() < 0.7 else choice.choice(VALUES)
    found = []
    for at in range(choice.choice((1, 2, 2, 3, 3, 4))):
        dtype = main
        if choice.random() < 0.25:
            dtype = choice.choice(ALL if choice.random() < 0.5 else COMMON)
        shape = shape_of(choice, sizes, least=0 if at else 1)
        values = most if choice.random() < 0.8 else choice.choice(VALUES)
        layout = "plain" if choice.random() < 0.7 else choice.choice(LAYOUTS)
        holder = "tensor" if layout == "plain" else choice.choice(HOLDERS[:3])
        if at and layout == "plain" and choice.random() < 0.12:
            holder = "variable"
        found.append(Argument("abcdefgh"[at], dtype, shape, layout, values, holder))
    return tuple(found)


def matrices_of(choice: random.Random, sizes: list[int]) -> tuple[Argument, ...]:
    """Matrices and stacks of them, and a row, all of one dtype."""
    dtype = choice.choice(("float32", "float32", "float32", "float64", "float16"))
    fronts: tuple[Shape, ...] = ((), (), (), (1,), (2,), (3,), (2, 1))
    shapes = [
        (*choice.choice(fronts), choice.choice(sizes), choice.choice(sizes))
        for _ in range(choice.randint(2, 4))
    ]
    shapes.append((choice.choice(sizes),))
    return tuple(
        Argument("abcdefgh"[at], dtype, shape) for at, shape in enumerate(shapes)
    )
