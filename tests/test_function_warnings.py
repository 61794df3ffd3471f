"""What the warning about many traces advises: what helps, never what was done."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import tapejit as tj

X = tj.ones(3)
OPEN = "input_signature= or reduce_retracing=True"
SIZES_AS_THEY_ARE = "int(), range() and len() make a trace for one size"
KINDS = ("float32", "float64", "int32", "int64", "int8", "uint8", "int16")

CASES: list[Any] = [
    # options, body, calls, what the advice is about (None: there is none)
    ({}, lambda x: x * 2, [(tj.ones(n),) for n in range(2, 9)], OPEN),
    (
        {"reduce_retracing": True},
        lambda x: x * 2,
        [(tj.ones((1,) * n),) for n in range(2, 9)],
        "argument x with one number of axes",
    ),
    (
        {"reduce_retracing": True},
        lambda x: x * len(x),
        [(tj.ones(n),) for n in range(2, 10)],
        SIZES_AS_THEY_ARE,
    ),
    (
        {"input_signature": [tj.TensorSpec([None])]},
        lambda x: x * len(x),
        [(tj.ones(n),) for n in range(2, 10)],
        SIZES_AS_THEY_ARE,
    ),
    (
        {"input_signature": [tj.TensorSpec(None)]},
        lambda x: x * 2,
        [(tj.ones((2,) * n),) for n in range(8)],
        None,
    ),
    ({}, lambda x, i: x * i, [(X, n) for n in range(2, 9)], 'dynamic="i"'),
    ({"static": "i"}, lambda x, i: x * i, [(X, n) for n in range(2, 9)], None),
    (
        {},
        lambda x, f: x * round(f),
        [(X, float(n)) for n in range(2, 9)],
        "argument f as a tensor: the body asks for its value",
    ),
    ({}, lambda x, f: f(x), [(X, lambda x: x * 2) for _ in range(7)], "once, outside"),
    ({}, lambda x, s: x * 2, [(X, str(n)) for n in range(7)], None),
    ({}, lambda x: x[0] * 2, [([X] * n,) for n in range(2, 9)], "of one structure"),
    ({}, lambda x: x * 2, [(tj.ones(2, dtype=k),) for k in KINDS], "x to one dtype"),
    (
        {},
        lambda x, flag: x * 2 if bool(tj.sum(x) > flag) else x,
        [(X * n, tj.asarray(float(n))) for n in range(7)],
        None,
    ),
]


@pytest.mark.parametrize(("options", "body", "calls", "advice"), CASES)
def test_the_advice_fits_the_cause_and_what_was_done(
    options: Any, body: Any, calls: Any, advice: str | None
) -> None:
    function = tj.function(**options)(body)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for args in calls:
            function(*args)
    texts = [str(x.message) for x in caught]
    if function.trace_count <= 5:
        assert not texts
        return
    assert len(texts) == 1
    _, _, given = texts[0].partition("Tracing is slow")
    assert given == "" if advice is None else advice in given
    done = ["input_signature", "reduce_retracing"] if options else []
    assert not any(option in given for option in done)
