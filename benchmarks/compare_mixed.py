"""Compare programs in halves with the same in float32: a stream, and training steps.

Results are compared first: a loss in halves is near the one in float32, and a step is
one native call. Then all three are timed in turn, round after round in one process, and
the ratio of the least times to that of float32 is printed. More than 1 is faster.

Run with:  python benchmarks/compare_mixed.py

Start reading at `compare`.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tapejit as tj

HALVES = ("bfloat16", "float16")
POLICIES = ("float32", *(f"mixed_{half}" for half in HALVES))
COUNT, BATCH, IMAGES, ROUNDS = 1 << 24, 128, 32, 12

Run = Callable[[], Any]


def stream(formula: Callable[..., Any]) -> list[Run]:
    """A formula of two large arrays, in float32 and in each half."""
    rng = np.random.default_rng(0)
    arrays = [tj.asarray(rng.random(COUNT, dtype=np.float32)) for _ in range(2)]
    function = tj.function(formula)
    runs = []
    for dtype in ("float32", *HALVES):
        given = [x.astype(dtype) for x in arrays]
        runs.append(lambda given=given: function(*given))
    return runs


def make_mlp(policy: str) -> Any:
    sizes = (784, 512, 256, 10)
    layers = [
        tj.nn.Dense(after, "relu" if after > 10 else None, input_size=before)
        for before, after in pairwise(sizes)
    ]
    return tj.nn.Sequential(layers, policy=policy)


def make_cnn(policy: str) -> Any:
    return tj.nn.Sequential(
        tj.nn.Conv2D(16, 3, padding="SAME", activation="relu", input_size=1),
        tj.nn.MaxPool2D(),
        tj.nn.Conv2D(32, 3, padding="SAME", activation="relu", input_size=16),
        tj.nn.MaxPool2D(),
        tj.nn.Flatten(),
        tj.nn.Dense(10, input_size=7 * 7 * 32),
        policy=policy,
    )


def training(make: Callable[[str], Any], shape: Sequence[int]) -> list[Run]:
    """A step of SGD under each policy."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    labels = rng.integers(0, 10, shape[0])
    runs, losses = [], []
    for policy in POLICIES:
        tj.random.set_seed(0)
        model, optimizer = make(policy), tj.optimizers.SGD(0.01)

        @tj.function
        def step(
            x: Any, labels: Any, model: Any = model, optimizer: Any = optimizer
        ) -> Any:
            with tj.GradientTape() as tape:
                loss = tj.nn.sparse_softmax_cross_entropy(model(x), labels)
            variables = model.trainable_variables
            pairs = zip(tape.gradient(loss, variables), variables, strict=True)
            optimizer.apply_gradients(pairs)
            return loss

        losses.append(float(step(x, labels)))
        assert ", native in " in str(step.explain(x, labels)), policy
        runs.append(lambda step=step: step(x, labels))
    np.testing.assert_allclose(losses, losses[0], rtol=0.02)
    return runs


def compare(name: str, runs: Sequence[Run]) -> None:
    """Time them in turn, and print how much faster the halves are."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, found in zip(runs, seconds, strict=True):
            run()
            start = time.perf_counter()
            run()
            found.append(time.perf_counter() - start)
    plain, *others = map(min, seconds)
    ratios = "  ".join(
        f"{half} {plain / each:5.2f}" for half, each in zip(HALVES, others, strict=True)
    )
    print(f"{name:18} float32 {1e3 * plain:7.2f} ms   {ratios}")


def main() -> None:
    warnings.filterwarnings("ignore", "a CPU multiplies")
    compare("x * y", stream(lambda x, y: x * y))
    four = stream(lambda x, y: tj.maximum(x * y + x, y - x) * 0.5)
    compare("four operations", four)
    compare("MLP step", training(make_mlp, (BATCH, 784)))
    compare("CNN step", training(make_cnn, (IMAGES, 28, 28, 1)))


if __name__ == "__main__":
    main()
