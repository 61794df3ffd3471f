"""Two models trained together: an encoder and a decoder, and one gradient for both.

The encoder turns a digit of 64 pixels into 8 numbers, the decoder turns them back. The
gradient is taken with respect to a dict of both models' variables and comes back in the
same structure, so each model can have its own optimizer. The error on digits not
trained on is compared with the best that a linear map to 8 numbers can do.

Run with:  python examples/two_models.py   (needs the `examples` extra)
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_digits

import tapejit as tj

CODE = 8


def load_data() -> tuple[np.ndarray, np.ndarray]:
    """Pixels from 0 to 1, for training and for testing."""
    pixels = (load_digits().data / 16).astype(np.float32)
    held_out = np.arange(len(pixels)) % 5 == 0
    return pixels[~held_out], pixels[held_out]


def linear_error(pixels: np.ndarray, test_pixels: np.ndarray) -> float:
    """The error with the first principal components of the training digits."""
    mean = pixels.mean(axis=0)
    directions = np.linalg.svd(pixels - mean, full_matrices=False)[2][:CODE]
    restored = (test_pixels - mean) @ directions.T @ directions + mean
    return float(np.mean((restored - test_pixels) ** 2))


class Encoder(tj.nn.Module):
    def __init__(self) -> None:
        self.hidden = tj.nn.Dense(128, "gelu")
        self.code = tj.nn.Dense(CODE)

    def __call__(self, pixels: tj.Tensor) -> tj.Tensor:
        return self.code(self.hidden(pixels))


class Decoder(tj.nn.Module):
    def __init__(self) -> None:
        self.hidden = tj.nn.Dense(128, "gelu")
        self.pixels = tj.nn.Dense(64, "sigmoid")

    def __call__(self, code: tj.Tensor) -> tj.Tensor:
        return self.pixels(self.hidden(code))


def main(quick: bool = False) -> tuple[float, float]:
    """Returns the error on digits not trained on, and that of the linear map."""
    tj.random.set_seed(0)
    pixels, test_pixels = load_data()
    models = {"encoder": Encoder(), "decoder": Decoder()}
    optimizers = {
        "encoder": tj.optimizers.Adam(learning_rate=1e-3),
        "decoder": tj.optimizers.AdamW(learning_rate=2e-3, weight_decay=1e-3),
    }

    def error(pixels: tj.Tensor) -> tj.Tensor:
        restored = models["decoder"](models["encoder"](pixels))
        return tj.nn.squared_error(restored, pixels)

    @tj.function
    def step(pixels: tj.Tensor) -> dict[str, tj.Tensor]:
        with tj.GradientTape() as tape:
            loss = error(pixels)
        variables = {name: m.trainable_variables for name, m in models.items()}
        gradients = tape.gradient(loss, variables)
        for name, optimizer in optimizers.items():
            pairs = zip(gradients[name], variables[name], strict=True)
            optimizer.apply_gradients(pairs)
        norms = {name: tj.global_norm(gradients[name]) for name in models}
        return {"loss": loss, **norms}

    data = tj.data.batches(pixels, 64, shuffle=True, seed=0, drop_remainder=True)
    epochs = 10 if quick else 60
    print("epoch   error   |gradient| of encoder and decoder")

    def show(epoch: int, logs: dict[str, float]) -> None:
        if (epoch + 1) % (epochs // 5) == 0:
            norms = f"{logs['encoder']:.4f}  {logs['decoder']:.4f}"
            print(f"{epoch + 1:5}  {logs['loss']:.4f}   {norms}")

    began = time.perf_counter()
    history = tj.fit(step, data, epochs=epochs, callbacks=[show], verbose=0)
    took = 1e6 * (time.perf_counter() - began) / history.steps

    ours, linear = float(error(test_pixels)), linear_error(pixels, test_pixels)
    print(
        f"test error {ours:.4f}, of a linear map {linear:.4f}, {took:.0f} µs per step"
    )
    return ours, linear


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    main(**vars(parser.parse_args()))
