"""Train the digits of `examples/digits_mlp.py` in tapejit and in PyTorch, side by side.

Both start from the same weights, see the same batches, and take the same steps in
float32; their losses must agree to 1e-4 at each of 50 steps. They are trained by
gradient descent with momentum and by the Adam of the example, and tapejit as a function
and eagerly. Prints the table of losses; the status is 1 if one differs by more.

PyTorch's Adam adds epsilon after it has corrected the mean of squares for starting at
zero, tapejit's (as Keras's) before. So PyTorch is told an epsilon corrected likewise, a
new one at each step. Without that it is another formula, which shows in the weights of
pixels that are hardly ever inked: losses then differ by up to 4e-3.

Run with:  python benchmarks/compare_digits_torch.py   (needs torch and scikit-learn)

Start reading at `compare`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import digits_mlp
import torch

import tapejit as tj

TOLERANCE = 1e-4
STEPS_OF_THE_EXAMPLE = 880  # 20 epochs of 44 batches: what its learning rate decays in

Batches = Sequence[tuple[np.ndarray, np.ndarray]]


class Momentum:
    """Gradient descent with momentum, in both libraries."""

    def ours(self) -> tj.optimizers.Optimizer:
        return tj.optimizers.SGD(learning_rate=0.05, momentum=0.9)

    def theirs(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def settings(self, step: int) -> dict[str, float]:
        """What PyTorch's optimizer is told before a step."""
        return {}


class Adam:
    """The optimizer of the example, in both libraries."""

    def ours(self) -> tj.optimizers.Optimizer:
        return digits_mlp.make_optimizer(STEPS_OF_THE_EXAMPLE)

    def theirs(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, betas=(0.9, 0.999))

    def settings(self, step: int) -> dict[str, float]:
        """The learning rate of this step, and the epsilon that means the same."""
        decay = 0.5 * (1 + math.cos(math.pi * step / STEPS_OF_THE_EXAMPLE))
        correction = math.sqrt(1 - 0.999 ** (step + 1))
        return {"lr": digits_mlp.LEARNING_RATE * decay, "eps": 1e-7 / correction}


RULES = {"SGD with momentum": Momentum(), "Adam": Adam()}


def first_batches(count: int) -> Batches:
    """The batches that the example trains on first."""
    pixels, labels, _, _ = digits_mlp.load_data()
    data = tj.data.batches(
        (pixels, labels), digits_mlp.BATCH, shuffle=True, seed=0, drop_remainder=True
    )
    found: list[tuple[np.ndarray, np.ndarray]] = []
    while len(found) < count:
        found.extend(data)
    return found[:count]


def tapejit_losses(
    start: dict[str, Any], batches: Batches, optimizer: tj.optimizers.Optimizer
) -> list[float]:
    model = digits_mlp.make_model()
    model.load_state_dict(start)
    step = digits_mlp.make_step(model, optimizer)
    return [float(step(*batch)) for batch in batches]


def torch_model(model: tj.nn.Sequential) -> torch.nn.Sequential:
    """The same layers with the same weights; PyTorch's matrices are transposed."""
    layers: list[torch.nn.Module] = []
    for dense in model:
        linear = torch.nn.Linear(*dense.weight.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(dense.weight.numpy().T))
            linear.bias.copy_(torch.tensor(dense.bias.numpy()))
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def torch_losses(
    model: torch.nn.Sequential, batches: Batches, rule: Momentum | Adam
) -> list[float]:
    optimizer = rule.theirs(model.parameters())
    losses = []
    for step, (pixels, labels) in enumerate(batches):
        optimizer.param_groups[0].update(rule.settings(step))
        optimizer.zero_grad()
        scores = model(torch.from_numpy(pixels))
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(name: str, start: tj.nn.Sequential, batches: Batches) -> float:
    """Print the losses under one rule; returns the largest difference."""
    rule = RULES[name]
    traced = tapejit_losses(start.state_dict(), batches, rule.ours())
    with tj.config.override(eager=True):
        eager = tapejit_losses(start.state_dict(), batches, rule.ours())
    reference = torch_losses(torch_model(start), batches, rule)

    print(f"{name}\nstep   tapejit   eagerly   PyTorch  difference")
    largest = 0.0
    for step, (a, b, c) in enumerate(zip(traced, eager, reference, strict=True)):
        gaps = (abs(a - c), abs(b - c))
        apart = math.inf if math.isnan(sum(gaps)) else max(gaps)
        largest = max(largest, apart)
        print(f"{step:4}  {a:8.6f}  {b:8.6f}  {c:8.6f}     {apart:.1e}")
    return largest


def main(steps: int = 50, seed: int = 0) -> int:
    """Compare under all rules; returns the status."""
    tj.random.set_seed(seed)
    start, batches = digits_mlp.make_model(), first_batches(steps)
    largest = {name: compare(name, start, batches) for name in RULES}
    for name, apart in largest.items():
        verdict = "agrees" if apart <= TOLERANCE else "DIFFERS"
        print(f"{name}: {verdict}, largest difference in {steps} steps {apart:.1e}")
    versions = {"PyTorch": torch, "NumPy": np, "tapejit": tj}
    print(", ".join(f"{name} {x.__version__}" for name, x in versions.items()))
    return int(any(apart > TOLERANCE for apart in largest.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    sys.exit(main(**vars(parser.parse_args())))
