"""What `tj.fit` can do besides calling the step: stop early, keep the best, save.

A callback is any object with `on_start(history)`, `on_batch_end(step, logs)`,
`on_epoch_end(epoch, logs)` or `on_end(history)`, or a plain function of an epoch and
its logs. What it returns matters only if it is True or a text: then training ends.

Start reading at `EarlyStopping`.
"""

from __future__ import annotations

import math
import os
from typing import Any

from tapejit.array.distributions import natural
from tapejit.base.errors import ArgumentError
from tapejit.base.public import public
from tapejit.training.checkpoint import Contents, gather, save
from tapejit.training.history import History

__all__ = ["Checkpoint", "EarlyStopping"]

LARGER_IS_BETTER = ("acc", "auc", "precision", "recall", "r2", "score")


@public("tapejit", "callbacks")
class EarlyStopping:
    """End the training when a measured value has stopped improving.

    It ends after `patience` epochs in a row in which `monitor` was not better than the
    best before by more than `min_delta`. Smaller is better unless `mode` is "max", or
    "auto" and the name speaks of accuracy, auc, precision, recall, r2 or a score. NaN
    is never better. `restore_best` is what gets its values of the best epoch back at
    the end of the training: variables, a module, or any structure that `tj.save` takes.

    >>> import tapejit as tj
    >>> w = tj.Variable(4.0)
    >>> def step(rate):
    ...     w.assign_sub(rate)
    ...     return tj.square(w)
    >>> stopping = tj.callbacks.EarlyStopping("loss", patience=2, restore_best=w)
    >>> history = tj.fit(step, [1.0], 20, [stopping], verbose=0)
    >>> print(history["loss"], history.stopped, w)
    [9.0, 4.0, 1.0, 0.0, 1.0, 4.0] loss has not improved for 2 epochs 0.0
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 5,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best: Any = None,
    ) -> None:
        if mode not in ("auto", "min", "max"):
            raise ArgumentError(f'mode is "auto", "min" or "max", not {mode!r}')
        self.monitor = monitor
        self.patience = max(1, natural(patience, "patience", "EarlyStopping"))
        self.min_delta = abs(float(min_delta))
        if mode == "auto":
            is_max = any(word in monitor.lower() for word in LARGER_IS_BETTER)
            mode = "max" if is_max else "min"
        self.mode = mode
        self.restore_best = restore_best
        self.best: float | None = None
        self.best_epoch: int | None = None
        self._waited = 0
        self._kept: Contents | None = None

    def on_start(self, history: History) -> None:
        """Forget an earlier training, unless this one goes on with it."""
        if history.steps == 0:
            self.best = self.best_epoch = self._kept = None
            self._waited = 0

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> str | None:
        """Compare with the best so far."""
        if self.monitor not in logs:
            raise ArgumentError(
                f"there is no {self.monitor!r} to monitor; the epoch has "
                f"{', '.join(logs) or 'no results'}",
                op="EarlyStopping",
            )
        value = logs[self.monitor]
        if self._is_better(value):
            self.best, self.best_epoch, self._waited = value, epoch, 0
            if self.restore_best is not None:
                self._kept = gather(self.restore_best)
            return None
        self._waited += 1
        if self._waited < self.patience:
            return None
        plural = "s" if self._waited > 1 else ""
        return f"{self.monitor} has not improved for {self._waited} epoch{plural}"

    def _is_better(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self.best is None:
            return True
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self.min_delta

    def on_end(self, history: History) -> None:
        """Put the values of the best epoch back."""
        if self._kept is not None:
            self._kept.load_into(self.restore_best, "the best epoch")

    def state(self) -> dict[str, Any]:
        """What it knows so far, for `tj.save`."""
        kept = self._kept
        return {
            "best": self.best,
            "best_epoch": self.best_epoch,
            "waited": self._waited,
            "arrays": None if kept is None else dict(kept.arrays),
            "values": None if kept is None else dict(kept.values),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        if not isinstance(state, dict) or state.keys() != self.state().keys():
            raise ArgumentError(f"this is no state of EarlyStopping: {state!r}")
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self._waited, self._kept = state["waited"], None
        if state["arrays"] is not None:
            self._kept = Contents()
            self._kept.arrays = dict(state["arrays"])
            self._kept.values = dict(state["values"])


@public("tapejit", "callbacks")
class Checkpoint:
    """Save while training, so that a run that is cut off can go on.

    `state` is what `tj.save` takes. `every` is a number of batches, or "epoch". The
    path may hold `{epoch}` and `{step}`, numbers that count what is done; without
    them the file is replaced each time, never leaving half a file.

    To go on exactly, the state holds all that changes: variables, the optimizer,
    generators, the data, the history and other callbacks, which come before this one.

    >>> import os, tempfile
    >>> import tapejit as tj
    >>> path = os.path.join(tempfile.mkdtemp(), "run.safetensors")
    >>> w, history = tj.Variable(0.0), tj.History()
    >>> data = tj.data.batches(tj.arange(4.0), 1, shuffle=True, seed=0)
    >>> state = {"w": w, "data": data, "history": history}
    >>> saving = tj.callbacks.Checkpoint(path, state, every=3)
    >>> def step(x):
    ...     return w.assign_add(x[0])
    >>> first = tj.fit(step, data, 2, [saving], history=history, verbose=0)
    >>> loaded = tj.load(path, into=state)  # as a new process would
    >>> history.steps
    6
    >>> second = tj.fit(step, data, 2, history=history, verbose=0)
    >>> print(second.steps, w)
    8 12.0
    """

    def __init__(
        self, path: str | os.PathLike[str], state: Any, every: int | str = "epoch"
    ) -> None:
        if every != "epoch":
            every = natural(every, "every", "Checkpoint")
        if every == 0:
            raise ArgumentError('every is "epoch" or a number of batches from 1 on')
        self.path = os.fspath(path)
        if every != "epoch" and "{epoch}" in self.path:
            raise ArgumentError(
                "a file saved between epochs has no {epoch} in its name",
                op="Checkpoint",
                help='use {step}, or every="epoch"',
            )
        self.state_to_save = state
        self.every = every
        self._steps = 0

    def on_batch_end(self, step: int, logs: dict[str, float]) -> None:
        """Save if it is time."""
        self._steps = step + 1
        if self.every != "epoch" and self._steps % int(self.every) == 0:
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Save if it is time."""
        if self.every == "epoch":
            self._save(epoch + 1)

    def _save(self, epochs: int = 0) -> None:
        path = self.path.replace("{epoch}", str(epochs))
        save(path.replace("{step}", str(self._steps)), self.state_to_save)
