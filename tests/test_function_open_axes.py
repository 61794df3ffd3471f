"""Open sizes of several axes: every public function, and sizes that have to agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from open_sizes import LINE, assert_same, for_any_size, sample
from public_calls import CALLS

import tapejit as tj
from tapejit.base import tree

# Every public function


def is_data(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "biufc"


RANDOM = {"nn.dropout", *(name for name in CALLS if name.startswith("random."))}

# What cannot do with one trace for all sizes, and why.
BY_VALUES = "the values decide how large the result is"
BY_SIZE = "the size decides which operations there are"
MORE_TRACES = {
    **dict.fromkeys(("repeat", "compress", "nonzero", "argwhere"), BY_VALUES),
    "dynamic_partition": BY_VALUES,
    **dict.fromkeys(
        ("unique_all", "unique_counts", "unique_inverse", "unique_values"), BY_VALUES
    ),
    **dict.fromkeys(("median", "array_split", "unstack"), BY_SIZE),
    "convolve": "the longer operand is the signal",
    "correlate": "the longer operand is the signal",
    "insert": "NumPy arranges several places",
    "linalg.pinv": "the cutoff is an attribute",
    "linalg.lstsq": "the cutoff is an attribute",
    **dict.fromkeys(("fft.fft", "fft.ifft"), "n= cuts or pads"),
    **dict.fromkeys(("fft.irfft", "fft.irfftn", "fft.hfft"), "parts of odd lengths"),
}


def enlarged(x: Any, by: int) -> tj.Tensor:
    """The same values, repeated: sizes from 2 on are so much larger."""
    shape = [size + by if size >= 2 else size for size in x.shape]
    return tj.asarray(np.resize(x, shape).astype(x.dtype) if by else x)


@pytest.mark.parametrize("name", sorted(CALLS.keys() - RANDOM))
def test_public_functions_take_tensors_of_open_sizes(name: str) -> None:
    """Every axis is open: sizes that have to agree are guards, and no number is."""
    function = tj
    for part in name.split("."):
        function = getattr(function, part)
    counts = []
    for given in CALLS[name]:
        leaves, structure = tree.flatten((given.args, given.options), none_is_leaf=True)
        places = [at for at, x in enumerate(leaves) if is_data(x)]

        def body(*arrays: Any, leaves: Any = leaves, places: Any = places) -> Any:
            put = dict(zip(places, arrays, strict=True))
            args, options = tree.unflatten(
                structure,  # noqa: B023  # called in this round
                [put.get(at, x) for at, x in enumerate(leaves)],
            )
            return function(*args, **options)

        specs = [
            tj.TensorSpec([None] * leaves[at].ndim, tj.asarray(leaves[at]).dtype)
            for at in places
        ]
        traced = tj.function(input_signature=specs)(lambda *xs, body=body: body(*xs))
        for by in (0, 1, 3):
            tensors = [enlarged(leaves[at], by) for at in places]
            try:
                wanted = body(*tensors)
            except (ValueError, np.linalg.LinAlgError):
                assert by, "the call itself has to work"
                break  # other arguments are for this size alone
            for _ in range(2):
                assert_same(traced(*tensors), wanted)
        counts.append(traced.trace_count)
    if name not in MORE_TRACES:
        assert counts == [1] * len(counts), f"if {name} cannot, say why in MORE_TRACES"
    else:
        assert max(counts) > 1, "one trace is enough by now: take it out of the table"


# Sizes of several arguments that have to agree

MATRIX = tj.TensorSpec([None, None])
LABELS = tj.TensorSpec([None], tj.int64)


def classified(logits: Any, labels: Any) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(logits)
        loss = tj.nn.sparse_softmax_cross_entropy(logits, labels)
    return loss, tape.gradient(loss, logits)


def attended(query: Any, key: Any, mask: Any) -> Any:
    with tj.GradientTape() as tape:
        tape.watch((query, key))
        out = tj.nn.scaled_dot_product_attention(query, key, key, mask)
        loss = tj.sum(out**2)
    return out, tape.gradient(loss, (query, key))


AGREEING = [
    (lambda a, b: a + b, [LINE, LINE], lambda n: (sample(n), sample(n))),
    (
        lambda a, b, c: tj.where(a > 0.5, b, c * 2),
        [MATRIX] * 3,
        lambda n: (sample(n, n + 1), sample(n, n + 1), sample(n, n + 1)),
    ),
    (lambda a, b: a * b, [MATRIX, LINE], lambda n: (sample(4, n), sample(n))),
    (lambda a: a @ a, [MATRIX], lambda n: (sample(n, n),)),
    (
        lambda a, b, c: tj.einsum("ij,jk,kl->il", a, b, c),
        [MATRIX] * 3,
        lambda n: (sample(2, n), sample(n, n + 3), sample(n + 3, 4)),
    ),
    (
        lambda a, b: tj.concat([a, b], axis=1).reshape((-1,)),
        [MATRIX, MATRIX],
        lambda n: (sample(n, 2), sample(n, n)),
    ),
    (lambda a, b: tj.stack([a, b]), [LINE, LINE], lambda n: (sample(n), sample(n))),
    (
        lambda a, i: (tj.take_along_axis(a, i, axis=1), tj.take(a, i[0], axis=0)),
        [MATRIX, tj.TensorSpec([None, None], tj.int64)],
        lambda n: (sample(n, n + 2), tj.zeros((n, 2), dtype="int64")),
    ),
    (
        lambda a, i: a[tj.arange(a.shape[0]), i] + tj.one_hot(i, 5) @ tj.ones(5),
        [MATRIX, LABELS],
        lambda n: (sample(n, 5), tj.arange(n, dtype="int64") % 5),
    ),
    (
        classified,
        [MATRIX, LABELS],
        lambda n: (sample(n, n + 1), tj.arange(n, dtype="int64")),
    ),
    (
        classified,
        [tj.TensorSpec([None, 10]), LABELS],
        lambda n: (sample(n, 10), tj.arange(n, dtype="int64") % 10),
    ),
    (
        lambda x, y: tj.nn.softmax_cross_entropy(x, y, label_smoothing=0.125),
        [MATRIX, MATRIX],
        lambda n: (sample(n, n + 1), tj.eye(n, n + 1)),
    ),
    (
        attended,
        [MATRIX, MATRIX, tj.TensorSpec([None, None], tj.bool)],
        lambda n: (sample(n, 4), sample(n + 2, 4), tj.ones((n, n + 2), dtype="bool")),
    ),
    (
        lambda a, b: tj.linalg.solve(a @ a.T + tj.eye(a.shape[0]), b),
        [MATRIX, LINE],
        lambda n: (sample(n, n + 1), sample(n)),
    ),
    (
        lambda a: (tj.diag(a), tj.diagonal(a, 1), tj.trace(a), tj.diag(a[0], -1)),
        [MATRIX],
        lambda n: (sample(n, n + 1),),
    ),
    (
        lambda a: (tj.delete(a, [0, -1]), tj.insert(a, 1, 2.0), tj.split(a, [1])[1]),
        [LINE],
        lambda n: (sample(n + 1),),
    ),
    (
        lambda x, y: tj.pad(x, ((0, y.shape[0]), (1, 0))),
        [MATRIX, LINE],
        lambda n: (sample(n, 2), sample(n + 1)),
    ),
]


@pytest.mark.parametrize(("body", "specs", "arguments"), AGREEING)
@pytest.mark.parametrize("sizes", [(4, 2, 3, 7, 5), (2, 9, 2, 4, 6)])
def test_open_sizes_that_agree_have_one_trace(
    body: Any, specs: Any, arguments: Any, sizes: Any
) -> None:
    function = for_any_size(body, *specs)
    for size in sizes:
        given = arguments(size)
        assert_same(function(*given), body(*given), exact=False)
    assert function.trace_count == 1


def test_sizes_that_agree_in_one_call_may_differ_in_the_next() -> None:
    """Only what an operation needs becomes a guard, also where all sizes are equal."""
    body = lambda a, b, c: (a + b) @ c
    function = for_any_size(body, MATRIX, MATRIX, MATRIX)
    for n, m, k in ((3, 3, 3), (2, 3, 4), (5, 2, 2), (4, 6, 3)):
        given = sample(n, m), sample(n, m), sample(m, k)
        assert_same(function(*given), body(*given), exact=False)
    assert function.trace_count == 1
    with pytest.raises(tj.ShapeError, match=r"f32\[3,4\] with f32\[3,5\]"):
        function(sample(3, 4), sample(3, 5), sample(4, 2))


def test_a_size_that_comes_out_as_one_leaves_the_others_open() -> None:
    body = lambda x, y: x[1:] * y
    function = for_any_size(body, LINE, LINE)
    for n, m in ((5, 4), (2, 4), (2, 7), (8, 7), (2, 3), (2, 9)):
        assert_same(function(sample(n), sample(m)), body(sample(n), sample(m)))
    assert function.trace_count == 2
