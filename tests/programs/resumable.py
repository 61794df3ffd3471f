"""A training program that can be killed at any moment and started again.

    python resumable.py CHECKPOINT LOSSES eager|function [DELAY]

Each step appends its loss, as hexadecimal digits of the float, to the file LOSSES.
Started again with the same arguments it goes on from the checkpoint, which holds the
model, the optimizer, the random generators, the data and the history. DELAY, in
seconds, makes each step take longer. Start reading at `main`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tapejit as tj

EPOCHS = 4
ROWS = 52
BATCH = 8  # seven batches an epoch, the last of four rows
EVERY = 5  # batches between two checkpoints


def build(decorate: Callable[[Any], Any]) -> tuple[dict[str, Any], Callable[..., Any]]:
    """All that changes while training, and the step."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 6)).astype(np.float32)
    y = (x[:, :2] * x[:, 2:4]).sum(axis=1)
    noise = tj.random.Generator(11)
    model = tj.nn.Sequential(
        [
            tj.nn.Dense(16, "tanh", input_size=6),
            tj.nn.BatchNorm(input_size=16),
            tj.nn.Dropout(0.2, generator=tj.random.Generator(12)),
            tj.nn.Dense(1, input_size=16),
        ]
    )
    for variable in model.trainable_variables:
        start = rng.normal(size=variable.shape, scale=0.4)
        variable.assign(start.astype(np.float32))
    schedule = tj.optimizers.schedules.ExponentialDecay(0.02, 10, 0.9)
    optimizer = tj.optimizers.AdamW(schedule, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)

    @decorate
    def step(x: Any, y: Any) -> dict[str, Any]:
        noisy = x + 0.1 * noise.normal(x.shape)
        with tj.GradientTape() as tape:
            error = model(noisy, training=True)[:, 0] - y
            loss = tj.mean(tj.square(error))
        gradients = tape.gradient(loss, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients(pairs)
        return {"loss": loss, "error": tj.mean(tj.abs(error))}

    state = {
        "model": model,
        "optimizer": optimizer,
        "noise": noise,
        "data": tj.data.batches((x, y), BATCH, shuffle=True, seed=5),
        "history": tj.History(),
    }
    return state, step


def train(
    decorate: Callable[[Any], Any], checkpoint: str, write: Callable[[int, str], None]
) -> dict[str, Any]:
    """Train to the end, from the checkpoint if there is one; the final state."""
    state, step = build(decorate)
    if os.path.exists(checkpoint):
        tj.load(checkpoint, into=state)

    class Writer:
        def on_batch_end(self, step: int, logs: dict[str, float]) -> None:
            write(step, " ".join(value.hex() for value in logs.values()))

    saving = tj.callbacks.Checkpoint(checkpoint, state, every=EVERY)
    data, history = state["data"], state["history"]
    tj.fit(step, data, EPOCHS, [Writer(), saving], history=history, verbose=0)
    return state


def main(checkpoint: str, losses: str, mode: str, delay: str = "0") -> None:
    """Run as a program: losses go to a file as they come, line by line."""
    with open(losses, "a") as file:

        def write(step: int, text: str) -> None:
            print(step, text, file=file, flush=True)
            time.sleep(float(delay))

        decorate = tj.function if mode == "function" else lambda body: body
        state = train(decorate, checkpoint, write)
    tj.save(checkpoint + ".final", state)
    print(state["history"].stopped, state["history"].epochs)


if __name__ == "__main__":
    main(*sys.argv[1:])
