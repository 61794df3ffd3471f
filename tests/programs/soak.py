"""Calls native functions again and again and watches memory and references.

    python soak.py [--calls N] [--full]

Four functions take turns: small arguments, a training step with variables, one that
misses its native entry at each call (a strided argument), one whose code fails and is
replayed. After a warm-up, memory (resident pages) must not grow by 1 %, nor may the
references to what every call handles. Prints JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import tapejit as tj

CALLS, ALL_CALLS = 20_000, 1_000_000
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of memory that this process has in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def references(things: list[Any]) -> list[int]:
    gc.collect()
    return [sys.getrefcount(x) for x in things]


def functions() -> tuple[list[Callable[[], Any]], list[Any]]:
    """What to call, and the objects whose references are to be counted."""
    rng = np.random.default_rng(2)
    x = tj.asarray(rng.normal(size=(8, 4)).astype("f4"))
    wide = rng.normal(size=(8, 8)).astype("f4")
    w = tj.Variable(rng.normal(size=(4, 3)).astype("f4"))
    speed = tj.Variable(np.zeros((4, 3), "f4"), trainable=False)
    table = tj.asarray(np.arange(5, dtype="f4"))
    beyond = tj.asarray(np.array([0, 9]))

    @tj.function
    def small(x: Any) -> Any:
        return tj.sum(tj.tanh(x) * x), x + 1.0

    @tj.function
    def step(x: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.mean(tj.tanh(x @ w) ** 2)
        speed.assign(0.9 * speed + tape.gradient(loss, w))
        w.assign_sub(0.01 * speed)
        return loss

    @tj.function
    def pick(table: Any, at: Any) -> Any:
        return tj.take(table, at) * 2.0

    def failing() -> None:
        try:
            pick(table, beyond)
        except tj.OutOfRangeError:
            return
        raise AssertionError("an index that is out of range was accepted")

    calls = [
        lambda: small(x),
        lambda: step(x),
        lambda: small(wide[:, ::2]),
        failing,
    ]
    return calls, [x, wide, w, speed, table, beyond, small, step, np.float32]


def soak(calls: int) -> dict[str, Any]:
    """Call, measure, call again, measure."""
    every, things = functions()
    usual, unusual = every[:2], every[2:]

    def go(count: int) -> None:
        for at in range(count):
            for call in usual:
                call()
            if at % 20 == 0:  # these take the long way
                for call in unusual:
                    call()

    go(max(2000, calls // 20))
    counts, before = references(things), resident()
    go(calls)
    after = resident()
    return {
        "calls": calls,
        "before": before,
        "after": after,
        "growth": after / before - 1,
        "references": [
            late - early for late, early in zip(references(things), counts, strict=True)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    tj.config.update(native=True)
    print(json.dumps(soak(ALL_CALLS if options.full else options.calls)))


if __name__ == "__main__":
    main()
