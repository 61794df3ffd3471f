"""Products that sum over shared axes: tensordot, vecdot, einsum and their kin.

Every contraction of two tensors is one matrix product: their axes are put in order
(those both keep, those one keeps, those that are summed), run together, multiplied,
and taken apart again. Without an axis to sum it is an elementwise product.

`einsum` reads its subscripts into lists of labels, one label per axis; what `...`
stands for gets labels of its own, counted from the right as broadcasting does.
Diagonals are taken first, then tensors are contracted in pairs, in the order that
opt_einsum finds cheapest if there are more than two.

Start reading at `einsum`, then `_contract`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

from tapejit.array import elementwise, reductions
from tapejit.array.arrangement import moveaxis, roll
from tapejit.array.manipulation import permute_dims, reshape
from tapejit.array.matmul import matmul
from tapejit.array.selection import diagonal
from tapejit.base.dims import Dim
from tapejit.base.errors import ArgumentError, ArgumentTypeError, AxisError, ShapeError
from tapejit.base.types import as_dtype, is_complex
from tapejit.ops.shapes import normalize_axis
from tapejit.tensor.dispatch import as_operand, cast, is_weak, operands
from tapejit.tensor.naming import named
from tapejit.tensor.tensor import Tensor

_LIKELY_SIZE: Final = 64  # of an axis whose size is left open, to choose an order

_Labels = list[str]


@named
def tensordot(x: Any, y: Any, /, axes: Any = 2) -> Tensor:
    """The sum of products over pairs of axes.

    `axes` is a number (the last axes of `x` meet as many first ones of `y`) or a pair
    of axes or sequences of axes, those of `x` and those of `y`.

    >>> import tapejit as tj
    >>> x, y = tj.ones((2, 3, 4)), tj.ones((4, 3, 5))
    >>> tj.tensordot(x, y, axes=((1, 2), (1, 0))).shape
    (2, 5)
    """
    x, y = operands((x, y), "tensordot")
    of_x, of_y = _paired_axes(axes, x, y)
    for at, to in zip(of_x, of_y, strict=True):
        if x.shape[at] != y.shape[to]:
            raise ShapeError(
                f"axis {at} of {x._type} has size {x.shape[at]}, axis {to} of "
                f"{y._type} has {y.shape[to]}",
                help="axes that are summed together need equal sizes",
            )
    of_labels = [f"x{at}" for at in range(x.ndim)]
    to_labels = [f"y{at}" for at in range(y.ndim)]
    for at, to in zip(of_x, of_y, strict=True):
        to_labels[to] = of_labels[at]
    kept = {*of_labels} ^ {*to_labels}
    out, labels = _contract(x, of_labels, y, to_labels, kept)
    wanted = [label for label in (*of_labels, *to_labels) if label in kept]
    return _ordered(out, labels, wanted)


def _paired_axes(axes: Any, x: Tensor, y: Tensor) -> tuple[list[int], list[int]]:
    if isinstance(axes, int):
        if not 0 <= axes <= min(x.ndim, y.ndim):
            raise AxisError(f"cannot sum over {axes} axes of {x._type} and {y._type}")
        return list(range(x.ndim - axes, x.ndim)), list(range(axes))
    pair = tuple(axes)
    if len(pair) != 2:
        raise ArgumentError(
            f"axes is a number or a pair, got {axes!r}",
            help="give the axes of both: axes=((0, 1), (1, 0))",
        )
    of_x, of_y = (
        [normalize_axis(operator.index(at), tensor.ndim) for at in _several(given)]
        for given, tensor in zip(pair, (x, y), strict=True)
    )
    if len(of_x) != len(of_y):
        raise ArgumentError(f"{len(of_x)} axes cannot be paired with {len(of_y)}")
    for chosen, given in ((of_x, pair[0]), (of_y, pair[1])):
        if len(set(chosen)) != len(chosen):
            raise AxisError(f"an axis is given twice in {given}")
    return of_x, of_y


def _several(axes: Any) -> Sequence[Any]:
    return (axes,) if isinstance(axes, int) else tuple(axes)


@named
def vecdot(x: Any, y: Any, /, *, axis: int = -1) -> Tensor:
    """The inner product of vectors; of complex ones the first is conjugated.

    >>> import tapejit as tj
    >>> print(tj.vecdot(tj.asarray([[1.0, 2.0], [3.0, 4.0]]), tj.asarray([1.0, 1.0])))
    [3. 7.]
    >>> print(tj.vecdot(1j * tj.ones(2), 1j * tj.ones(2)))
    (2+0j)
    """
    x, y = operands((x, y), "vecdot")
    x, y = moveaxis(_conjugate(x), axis, -1), moveaxis(y, axis, -1)
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"the vectors of {x._type} and {y._type} differ in length",
            help="the other axes broadcast, the axis of the vectors does not",
        )
    row = reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    out = matmul(row, reshape(y, (*y.shape, 1)))
    return reshape(out, out.shape[:-2])


def _conjugate(x: Tensor) -> Tensor:
    return elementwise.conj(x) if is_complex(x.dtype) else x


@named
def vdot(x: Any, y: Any, /) -> Tensor:
    """The inner product of all elements; of complex tensors the first is conjugated.

    >>> import tapejit as tj
    >>> print(tj.vdot(tj.ones((2, 2)), tj.asarray([[1.0, 2.0], [3.0, 4.0]])))
    10.0
    """
    x, y = operands((x, y), "vdot")
    return vecdot(reshape(x, (-1,)), reshape(y, (-1,)))


@named
def matvec(x: Any, y: Any, /) -> Tensor:
    """Matrices times vectors; both may be stacks.

    >>> import tapejit as tj
    >>> tj.matvec(tj.ones((5, 2, 3)), tj.ones((5, 3))).shape
    (5, 2)
    """
    x, y = operands((x, y), "matvec")
    if not y.ndim:
        raise ShapeError(f"takes vectors on the right, got {y._type}")
    out = matmul(x, reshape(y, (*y.shape, 1)))
    return reshape(out, out.shape[:-1])


@named
def vecmat(x: Any, y: Any, /) -> Tensor:
    """Vectors, conjugated, times matrices; both may be stacks.

    >>> import tapejit as tj
    >>> tj.vecmat(tj.ones((5, 2)), tj.ones((5, 2, 3))).shape
    (5, 3)
    """
    x, y = operands((x, y), "vecmat")
    if not x.ndim:
        raise ShapeError(f"takes vectors on the left, got {x._type}")
    x = _conjugate(x)
    out = matmul(reshape(x, (*x.shape[:-1], 1, x.shape[-1])), y)
    return reshape(out, (*out.shape[:-2], out.shape[-1]))


@named
def inner(x: Any, y: Any, /) -> Tensor:
    """The sums of products over the last axes; nothing is conjugated.

    >>> import tapejit as tj
    >>> tj.inner(tj.ones((2, 3)), tj.ones((4, 5, 3))).shape
    (2, 4, 5)
    """
    x, y = operands((x, y), "inner")
    if not x.ndim or not y.ndim:
        return elementwise.multiply(x, y)
    return tensordot(x, y, axes=(-1, -1))


@named
def outer(x: Any, y: Any, /) -> Tensor:
    """Every product of an element of `x` and one of `y`; both are flattened.

    >>> import tapejit as tj
    >>> print(tj.outer(tj.asarray([1.0, 2.0]), tj.asarray([3.0, 4.0])))
    [[3. 4.]
     [6. 8.]]
    """
    x, y = operands((x, y), "outer")
    return elementwise.multiply(reshape(x, (-1, 1)), reshape(y, (1, -1)))


@named
def trace(
    x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None
) -> Tensor:
    """The sums of the diagonals of the matrices in two axes.

    >>> import tapejit as tj
    >>> print(tj.trace(tj.asarray([[1.0, 2.0], [3.0, 4.0]])))
    5.0
    """
    found = diagonal(x, offset, axis1, axis2)
    kind = None if dtype is None else as_dtype(dtype)
    out = reductions.sum(found, axis=-1, dtype=kind)
    return out if kind is None else cast(out, kind)


@named
def cross(x: Any, y: Any, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements.

    >>> import tapejit as tj
    >>> print(tj.cross(tj.asarray([1.0, 0.0, 0.0]), tj.asarray([0.0, 1.0, 0.0])))
    [0. 0. 1.]
    """
    x, y = operands((x, y), "cross")
    x, y = moveaxis(x, axis, -1), moveaxis(y, axis, -1)
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise ShapeError(
            f"takes vectors of 3 elements, got {x.shape[-1]} and {y.shape[-1]}",
            op="cross",
            help="append a 0 to vectors of the plane",
        )

    def ahead(v: Tensor) -> Tensor:
        return roll(v, -1, axis=-1)

    return moveaxis(ahead(x * ahead(y) - ahead(x) * y), -1, axis)


# Two tensors with labelled axes


def _contract(
    x: Tensor, of_x: _Labels, y: Tensor, of_y: _Labels, kept: set[str]
) -> tuple[Tensor, _Labels]:
    """The product of two tensors, summed over every label that is not kept.

    The result has the shared labels first, then those of `x`, then those of `y`.
    """
    x, of_x = _summed(x, of_x, {*of_y, *kept})
    y, of_y = _summed(y, of_y, {*of_x, *kept})
    shared = [label for label in of_x if label in of_y]
    both = [label for label in shared if label in kept]
    gone = [label for label in shared if label not in kept]
    left = [label for label in of_x if label not in of_y]
    right = [label for label in of_y if label not in of_x]
    size = dict(zip((*of_x, *of_y), (*x.shape, *y.shape), strict=True))

    def sizes(labels: _Labels) -> tuple[Any, ...]:
        return tuple(size[label] for label in labels)

    if not gone:
        x = _ordered(x, of_x, both + left)
        y = _ordered(y, of_y, both + right)
        x = reshape(x, (*sizes(both + left), *(1,) * len(right)))
        y = reshape(y, (*sizes(both), *(1,) * len(left), *sizes(right)))
        return elementwise.multiply(x, y), both + left + right
    rows, inner_size, columns = (math.prod(sizes(part)) for part in (left, gone, right))
    x = reshape(_ordered(x, of_x, both + left + gone), (*sizes(both), rows, inner_size))
    y = reshape(
        _ordered(y, of_y, both + gone + right), (*sizes(both), inner_size, columns)
    )
    return reshape(matmul(x, y), sizes(both + left + right)), both + left + right


def _summed(x: Tensor, labels: _Labels, kept: set[str]) -> tuple[Tensor, _Labels]:
    """`x` without the axes whose label nobody keeps."""
    axes = tuple(at for at, label in enumerate(labels) if label not in kept)
    if not axes:
        return x, labels
    # A sum of small integers is wider than they are; a contraction is not.
    total = cast(reductions.sum(x, axis=axes), x.dtype)
    return total, [label for label in labels if label in kept]


def _ordered(x: Tensor, labels: _Labels, wanted: Sequence[str]) -> Tensor:
    if list(wanted) == labels:
        return x
    return permute_dims(x, [labels.index(label) for label in wanted])


# einsum


@named
def einsum(subscripts: Any, /, *tensors: Any, optimize: Any = "auto") -> Tensor:
    """Sums of products, with a letter for each axis, as NumPy's.

    Letters of the operands that are not in the result are summed over. Without `->`
    the result has the letters that occur once, in alphabetical order. A letter that
    occurs twice in one operand takes its diagonal, and `...` stands for axes that
    broadcast.

    `optimize` says in which order more than two operands are contracted: what
    `opt_einsum.contract_path` takes, or False for left to right.

    >>> import tapejit as tj
    >>> x = tj.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> print(tj.einsum("ij,j->i", x, tj.asarray([1.0, 1.0])))
    [3. 7.]
    >>> print(tj.einsum("ii", x), tj.einsum("...j->...", x))
    5.0 [3. 7.]
    """
    if not isinstance(subscripts, str):
        subscripts, tensors = _from_lists((subscripts, *tensors))
    if not tensors:
        raise ArgumentError("needs at least one operand")
    # Some results are views of their operand: an array is copied.
    given = [x if is_weak(x) else as_operand(x, "einsum") for x in tensors]
    xs = operands(given, "einsum")
    inputs, output = _read_subscripts(subscripts, [x.ndim for x in xs])
    terms = [_diagonals(x, labels) for x, labels in zip(xs, inputs, strict=True)]
    terms = _without_repeated(terms)
    for places in _path(terms, output, optimize):
        chosen = [terms[at] for at in places]
        terms = [term for at, term in enumerate(terms) if at not in places]
        while len(chosen) > 1:
            (x, of_x), (y, of_y), *chosen = chosen
            others = [*chosen, *terms]
            kept = {*output, *(label for _, labels in others for label in labels)}
            chosen.insert(0, _contract(x, of_x, y, of_y, kept))
        terms += chosen
    ((x, labels),) = terms
    x, labels = _summed(x, labels, set(output))
    return permute_dims(x, [labels.index(label) for label in output])


def _from_lists(given: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """The other form, `einsum(x, [0, 1], y, [1, 2], [0, 2])`, as the usual one."""

    def text(labels: Any) -> str:
        try:
            return "".join("..." if at is Ellipsis else _letter(at) for at in labels)
        except TypeError:
            raise ArgumentTypeError(
                f"takes subscripts first, or lists of integers, got {labels!r}",
                help='write einsum("ij,jk->ik", x, y)',
            ) from None

    pairs = len(given) // 2
    inputs = ",".join(text(given[2 * at + 1]) for at in range(pairs))
    output = f"->{text(given[-1])}" if len(given) % 2 else ""
    return inputs + output, tuple(given[2 * at] for at in range(pairs))


def _letter(at: Any) -> str:
    index = operator.index(at)
    if not 0 <= index < 52:
        raise ArgumentError(f"labels are integers from 0 to 51, got {at}")
    return chr(ord("A") + index) if index < 26 else chr(ord("a") + index - 26)


def _read_subscripts(
    subscripts: str, ranks: Sequence[int]
) -> tuple[list[_Labels], _Labels]:
    """One label per axis of each operand, and those of the result."""
    before, arrow, after = subscripts.replace(" ", "").partition("->")
    words = before.split(",")
    if len(words) != len(ranks):
        raise ArgumentError(
            f"{subscripts!r} has subscripts for {len(words)} operands, got {len(ranks)}"
        )
    letters = [_split_dots(word, subscripts) for word in words]
    inputs = []
    for at, ((left, right), rank) in enumerate(zip(letters, ranks, strict=True)):
        has_dots = right is not None
        right = right or ""
        spread = rank - len(left) - len(right)
        if spread < 0 or (spread and not has_dots):
            raise ShapeError(
                f"{words[at]!r} does not fit operand {at}, which has {rank} axes",
                help="write one letter per axis, or ... for several",
            )
        inputs.append([*left, *_dots(spread), *right])
    widest = max((_count_dots(labels) for labels in inputs), default=0)
    if not arrow:
        flat = before.replace(",", "").replace(".", "")
        once = sorted(letter for letter in set(flat) if flat.count(letter) == 1)
        return inputs, [*_dots(widest), *once]
    left, right = _split_dots(after, subscripts)
    output = [*left, *_dots(widest if right is not None else 0), *(right or "")]
    known = {label for labels in inputs for label in labels}
    for label in output:
        if output.count(label) > 1:
            raise ArgumentError(f"{label!r} is twice in the result of {subscripts!r}")
        if label not in known:
            raise ArgumentError(
                f"{label!r} of the result is in no operand of {subscripts!r}"
            )
    return inputs, output


def _split_dots(word: str, subscripts: str) -> tuple[str, str | None]:
    """The letters before and after `...`; None after if there is none."""
    left, dots, right = word.partition("...")
    if any(not (c.isascii() and c.isalpha()) for c in left + right):
        raise ArgumentError(
            f"cannot read {word!r} in {subscripts!r}",
            help="subscripts are letters, with commas between operands, at most one "
            "... each, and -> before the result",
        )
    return left, right if dots else None


def _dots(count: int) -> _Labels:
    """Labels of the axes behind `...`, the last axis always with the same one."""
    return [f"...{at}" for at in reversed(range(count))]


def _count_dots(labels: _Labels) -> int:
    return sum(label.startswith("...") for label in labels)


def _diagonals(x: Tensor, labels: _Labels) -> tuple[Tensor, _Labels]:
    """`x` with one axis per label."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError(
                    f"{label!r} has sizes {x.shape[first]} and {x.shape[second]} in "
                    f"{x._type}",
                    help="a diagonal needs axes of equal size",
                )
            x = diagonal(x, 0, first, second)
            rest = [at for at in range(len(labels)) if at not in (first, second)]
            labels = [*(labels[at] for at in rest), label]
    return x, labels


def _without_repeated(terms: Sequence[tuple[Tensor, _Labels]]) -> list[Any]:
    """Operands without the axes of size one along which others make them repeat."""
    size: dict[str, Any] = {}
    for x, labels in terms:
        for label, found in zip(labels, x.shape, strict=True):
            known = size.setdefault(label, found)
            if known == 1:
                size[label] = found
            elif found not in (1, known):
                name = "..." if label.startswith("...") else label
                raise ShapeError(f"{name!r} has sizes {known} and {found}")
    narrowed = []
    for x, labels in terms:
        pairs = list(zip(labels, x.shape, strict=True))
        kept = [label for label, n in pairs if n == size[label]]
        shape = tuple(n for label, n in pairs if n == size[label])
        narrowed.append((x if kept == labels else reshape(x, shape), kept))
    return narrowed


def _path(
    terms: Sequence[tuple[Tensor, _Labels]], output: _Labels, optimize: Any
) -> list[tuple[int, ...]]:
    """Which operands to contract together; results go to the end of the list."""
    if len(terms) < 3 or optimize is False:
        return [tuple(range(len(terms)))]
    import opt_einsum

    known = dict.fromkeys(label for _, labels in terms for label in labels)
    symbol = {label: opt_einsum.get_symbol(at) for at, label in enumerate(known)}

    def text(labels: _Labels) -> str:
        return "".join(symbol[label] for label in labels)

    spec = ",".join(text(labels) for _, labels in terms) + "->" + text(output)
    shapes = [
        tuple(_LIKELY_SIZE if isinstance(n, Dim) else n for n in x.shape)
        for x, _ in terms
    ]
    how = "auto" if optimize is True else optimize
    path, _ = opt_einsum.contract_path(spec, *shapes, shapes=True, optimize=how)
    return [tuple(places) for places in path]
