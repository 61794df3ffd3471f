"""Where the first call of a function spends its time, by stages.

    python -m benchmarks.first_call [PROGRAM ...] [--rounds N]

Programs are a step of Adam for a transformer of 2, 6 or 12 layers, and the gradients of
an LSTM that is unrolled over 20 or 100 steps: `transformer-6`, `lstm-100`. Arrays are
small, so that the time is the compiler's. Each call is the first of a process of its
own, with an empty cache of machine code, and the best of `--rounds` is printed. The
bytecode of Python is there, as wherever tapejit was imported before: a round that is
not counted makes it. To compare two trees, run this file from the folder of each, in
turns.

| column | what it is |
|---|---|
| cpu | processor time of all threads, for machines that others use too |
| trace | Python to a Graph, and all that is in no other column |
| rewrite | the passes over the Graph |
| plan | Steps, loops, kernels and their memory |
| emit | the text of LLVM |
| LLVM | parsing it here, and waiting for machine code; the helper has begun before |
| load | making machine code callable, and keeping it on disk |
| run | the call itself: a second one |

Start reading at `measure`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

PROGRAMS: Final = (
    "transformer-2",
    "transformer-6",
    "transformer-12",
    "lstm-20",
    "lstm-100",
)
STAGES: Final = ("trace", "rewrite", "plan", "emit", "LLVM", "load", "run")
COLUMNS: Final = ("total", "cpu", *STAGES)


def transformer(layers: int) -> Callable[[], Any]:
    """A step of training: 4 heads, 64 features, 50 words, batches of 4 times 32."""
    import tapejit as tj

    rng = np.random.default_rng(0)
    width, heads, words, batch, length = 64, 4, 50, 4, 32
    nn = tj.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = nn.LayerNorm(), nn.LayerNorm()
            self.attention = nn.MultiHeadAttention(heads, width // heads)
            self.up = nn.Dense(4 * width, activation="gelu")
            self.down = nn.Dense(width)

        def __call__(self, x: Any) -> Any:
            y = self.first(x)
            x = x + self.attention(y, y, use_causal_mask=True)
            return x + self.down(self.up(self.second(x)))

    embedding = nn.Embedding(words, width)
    blocks = [Block() for _ in range(layers)]
    last, head = nn.LayerNorm(), nn.Dense(words)
    optimizer = tj.optimizers.Adam(1e-3)

    def loss_of(given: Any, wanted: Any) -> Any:
        x = embedding(given)
        for block in blocks:
            x = block(x)
        return tj.mean(nn.sparse_softmax_cross_entropy(head(last(x)), wanted))

    given, wanted = (
        tj.asarray(rng.integers(0, words, (batch, length)).astype(np.int32))
        for _ in range(2)
    )
    loss_of(given, wanted)  # makes the variables

    @tj.function
    def step(given: Any, wanted: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = loss_of(given, wanted)
        variables = tape.watched_variables()
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return lambda: step(given, wanted)


def lstm(steps: int) -> Callable[[], Any]:
    """Value and gradients: 32 features, batches of 8."""
    import tapejit as tj

    rng = np.random.default_rng(0)
    width, batch = 32, 8
    w = tj.Variable(rng.normal(size=(2 * width, 4 * width)).astype("f4") / 8)
    b = tj.Variable(np.zeros(4 * width, "f4"))

    @tj.function
    def gradients(xs: Any) -> Any:
        with tj.GradientTape() as tape:
            h = c = tj.zeros((batch, width))
            for at in range(steps):
                z = tj.concat([xs[at], h], axis=1) @ w + b
                i, f, g, o = (z[:, k * width : (k + 1) * width] for k in range(4))
                c = tj.sigmoid(f) * c + tj.sigmoid(i) * tj.tanh(g)
                h = tj.sigmoid(o) * tj.tanh(c)
            loss = tj.mean(h * h)
        return loss, tape.gradient(loss, [w, b])

    xs = tj.asarray(rng.normal(size=(steps, batch, width)).astype("f4"))
    return lambda: gradients(xs)


class Clock:
    """Seconds that functions take, by column, and the Executables that are prepared."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.executables: list[Any] = []

    def watch(self, owner: Any, name: str, column: str) -> None:
        """Count the time inside of a function, which others find by its name."""
        plain = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if column == "prepare":
                self.executables.append(args[0])
            begin = time.perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                spent = time.perf_counter() - begin
                self.seconds[column] = self.seconds.get(column, 0.0) + spent

        setattr(owner, name, timed)


def watched() -> Clock:
    """A Clock for the stages of a compilation."""
    from tapejit.rewrite import pipeline
    from tapejit.runtime.executable import Executable
    from tapejit.targets.cpu.target import CPUTarget

    clock = Clock()
    clock.watch(Executable, "prepare", "prepare")
    clock.watch(pipeline, "optimise", "rewrite")
    clock.watch(CPUTarget, "plan", "plan")
    return clock


def first_call(name: str) -> dict[str, float]:
    """The seconds of the first call in this process, by column."""
    from tapejit.runtime.executable_report import compile_seconds

    kind, _, size = name.partition("-")
    run = {"transformer": transformer, "lstm": lstm}[kind](int(size))
    clock = watched()
    begin, busy = time.perf_counter(), time.process_time()
    run()
    total, busy = time.perf_counter() - begin, time.process_time() - busy
    begin = time.perf_counter()
    run()
    again = time.perf_counter() - begin
    spent = clock.seconds
    (made,) = map(compile_seconds, clock.executables)
    assert made is not None
    emit, llvm = made["build"] - spent["plan"], made["parse"] + made["emit"]
    emit += made["print"]
    rest = spent["prepare"] - spent["rewrite"] - spent["plan"] - emit - llvm
    return {
        "total": total,
        "cpu": busy,
        "trace": total - spent["prepare"] - again,
        "rewrite": spent["rewrite"],
        "plan": spent["plan"],
        "emit": emit,
        "LLVM": llvm,
        "load": rest,
        "run": again,
    }


def measure(name: str, bytecode: str) -> dict[str, float]:
    """The same in a process of its own, with an empty cache of machine code."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "TAPEJIT_CACHE_DIR": folder,
            "PYTHONPYCACHEPREFIX": bytecode,
            "PYTHONDONTWRITEBYTECODE": "",
        }
        made = subprocess.run(
            [sys.executable, "-m", "benchmarks.first_call", name, "--here"],
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return dict(json.loads(made.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description="the first call, by stages")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(first_call(options.programs[0])))
        return
    print(f"{'seconds':16}" + "".join(f"{x:>9}" for x in COLUMNS))
    with tempfile.TemporaryDirectory() as bytecode:
        for name in options.programs or PROGRAMS:
            measure(name, bytecode)
            rounds = [measure(name, bytecode) for _ in range(options.rounds)]
            best = min(rounds, key=lambda x: x["total"])
            columns = "".join(f"{best[x]:9.3f}" for x in COLUMNS)
            print(f"{name:16}{columns}", flush=True)


if __name__ == "__main__":
    main()
