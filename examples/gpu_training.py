"""Handwritten digits on a GPU, or on one that this processor emulates.

What a GPU takes is `model.to(device)` and `device=` of the batches: the optimizer
follows, and the step runs where its inputs are. Without a GPU the emulated device runs
the same kernels, thread by thread, so there the network is small and epochs are few.

Run with:  python examples/gpu_training.py   (needs the `examples` extra)
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_digits

import tapejit as tj

BATCH = 64


def find_device() -> str:
    """The first GPU if there is one, else the emulated device, which is said."""
    gpus = [name for name in tj.devices() if name != "cpu"]
    if gpus and tj.config.cuda == "nvidia":
        return gpus[0]
    tj.config.update(cuda="emulated")
    print("no GPU here: cuda:0 is emulated by this processor, slow and strict")
    return tj.device("cuda:0")


def train(
    device: str, epochs: int, hidden: int, seed: int
) -> tuple[list[float], float]:
    """The loss of each epoch, and the accuracy on digits that were not trained on."""
    tj.random.set_seed(seed)
    pixels, labels = load_digits(return_X_y=True)
    pixels, labels = (pixels / 16).astype(np.float32), labels.astype(np.int32)
    held_out = np.arange(len(labels)) % 5 == 0
    data = tj.data.batches(
        (pixels[~held_out], labels[~held_out]),
        BATCH,
        shuffle=True,
        seed=seed,
        drop_remainder=True,
        device=device,
    )
    model = tj.nn.Sequential(
        tj.nn.Dense(hidden, "relu", kernel_initializer="he_normal", input_size=64),
        tj.nn.Dense(10, input_size=hidden),
    ).to(device)
    optimizer = tj.optimizers.Adam(learning_rate=1e-2)

    @tj.function
    def step(pixels: tj.Tensor, labels: tj.Tensor) -> tj.Tensor:
        with tj.GradientTape() as tape:
            loss = tj.nn.sparse_softmax_cross_entropy(model(pixels), labels)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    began = time.perf_counter()
    history = tj.fit(step, data, epochs=epochs, verbose=0)
    took = time.perf_counter() - began
    predicted = tj.argmax(model(tj.asarray(pixels[held_out], device=device)), axis=1)
    accuracy = float(np.mean(predicted.numpy() == labels[held_out]))
    print(
        f"{device}: test accuracy {accuracy:.1%}, {1e3 * took / history.steps:.1f} ms"
    )
    return history["loss"], accuracy


def main(quick: bool = False, seed: int = 0) -> float:
    """Returns the accuracy; the CPU's losses are the same up to the last digits."""
    before = tj.config.cuda
    try:
        device = find_device()
        is_small = quick or tj.config.cuda == "emulated"
        epochs, hidden = (2, 16) if is_small else (20, 256)
        losses, accuracy = train(device, epochs, hidden, seed)
        on_cpu, _ = train("cpu", epochs, hidden, seed)
    finally:
        tj.config.update(cuda=before)
    np.testing.assert_allclose(losses, on_cpu, rtol=1e-2)
    print("losses", *(f"{x:.4f}" for x in losses), "on the CPU too")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small network")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
