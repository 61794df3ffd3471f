"""The training loop, for those who do not want to write it.

It is the two nested loops everybody writes, over epochs and over batches, with what
everybody adds: means of what the step returns, a line that shows where it stands,
callbacks, and an end after the current step when the user presses Ctrl-C. Variables,
gradients and optimizers are the step's business: the loop knows nothing of them.

Start reading at `fit`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from tapejit.array.distributions import natural
from tapejit.base.errors import ArgumentTypeError
from tapejit.tensor.foreign_keywords import with_hints
from tapejit.training.history import History
from tapejit.training.progress import Progress, progress_for

__all__ = ["History", "fit"]

Logs = dict[str, float]

HOOKS: Final = ("on_start", "on_batch_end", "on_epoch_end", "on_end")


@with_hints
def fit(
    step: Callable[..., Any],
    data: Iterable[Any],
    epochs: int = 1,
    callbacks: Iterable[Any] = (),
    *,
    validation: Callable[[], Any] | None = None,
    history: History | None = None,
    verbose: int = 1,
) -> History:
    """Call `step` on each batch of `data`, epoch after epoch; return what it gave.

    A batch that is a tuple or a list is unpacked: `step(*batch)`. The step returns a
    scalar, which is called "loss", or a dict of scalars, and its mean over the batches
    of an epoch goes into the history. `validation` is called after each epoch without
    arguments; what it returns gets "val_" before its name.

    A callback is a function `f(epoch, logs)`, called after each epoch, or an object
    with any of `on_start(history)`, `on_batch_end(step, logs)`,
    `on_epoch_end(epoch, logs)` and `on_end(history)`; numbers count from 0. If one
    returns True or a text after a batch or an epoch, training ends, and the text is
    `history.stopped`: see `tj.callbacks`.

    Ctrl-C ends the training after the current step; the history so far is returned,
    with `history.stopped == "interrupted"`. A second Ctrl-C raises KeyboardInterrupt.

    With a `history` of an earlier call the training goes on where that stopped, up to
    `epochs` in all. `verbose=0` shows nothing; otherwise a terminal shows one line per
    epoch that is rewritten as it goes on, and files get that line at its end.

    >>> import numpy as np
    >>> import tapejit as tj
    >>> w = tj.Variable(0.0)
    >>> @tj.function
    ... def step(x, y):
    ...     with tj.GradientTape() as tape:
    ...         loss = tj.mean(tj.square(w * x - y))
    ...     w.assign_sub(0.1 * tape.gradient(loss, w))
    ...     return loss
    >>> x = np.linspace(-1, 1, 8, dtype=np.float32)
    >>> data = tj.data.batches((x, 3 * x), 4, shuffle=True, seed=0)
    >>> history = tj.fit(step, data, epochs=30, verbose=0)
    >>> print(len(history["loss"]), np.round(w, 1))
    30 3.0
    """
    epochs = natural(epochs, "epochs", "fit")
    history = History() if history is None else history
    history.stopped = None
    if history.batches and not _goes_on(data, history):
        history.drop_batches()
    hooks = CallbackHooks(callbacks)
    hooks.on_start(history)
    progress = progress_for(verbose, epochs, data)
    with interruption(progress) as was_interrupted:
        while history.epochs < epochs and history.stopped is None:
            _run_epoch(step, data, history, hooks, progress, was_interrupted)
            if history.stopped is not None:
                break
            logs = history.means()
            if validation is not None:
                logs |= {f"val_{k}": v for k, v in scalars(validation()).items()}
            history.end_epoch(logs)
            progress.end_epoch(history, logs)
            history.stopped = hooks.on_epoch_end(history.epochs - 1, logs)
            if was_interrupted():
                break
        if history.stopped is None and was_interrupted():
            history.stopped = "interrupted"
    progress.end(history)
    hooks.on_end(history)
    return history


def _goes_on(data: Any, history: History) -> bool:
    """Make the data hand out the rest of an epoch that was broken off, if it can."""
    if getattr(data, "position", None) != history.batches:
        return False
    data.restore(data.state())
    return True


def _run_epoch(
    step: Callable[..., Any],
    data: Iterable[Any],
    history: History,
    hooks: CallbackHooks,
    progress: Progress,
    was_interrupted: Callable[[], bool],
) -> None:
    """The batches of one epoch, or of what is left of it."""
    progress.start_epoch(history)
    before = history.batches
    batch: Any = None
    for batch in data:
        is_several = isinstance(batch, (tuple, list))
        logs = scalars(step(*batch) if is_several else step(batch))
        history.add_batch(logs)
        progress.show(history)
        history.stopped = hooks.on_batch_end(history.steps - 1, logs)
        if history.stopped is None and was_interrupted():
            history.stopped = "interrupted"
        if history.stopped is not None:
            return
    if history.batches == before == 0:
        raise ArgumentTypeError(
            f"epoch {history.epochs + 1} of the data has no batches",
            op="fit",
            help="the data is iterated over once per epoch: give a list, "
            "tj.data.batches or another object that allows it, not a generator",
        )


def scalars(result: Any) -> Logs:
    """What a step returned, as named floats.

    >>> scalars(np.float32(0.5)), scalars({"loss": 1, "accuracy": 0.5}), scalars(None)
    ({'loss': 0.5}, {'loss': 1.0, 'accuracy': 0.5}, {})
    """
    if result is None:
        return {}
    named = result if isinstance(result, Mapping) else {"loss": result}
    return {str(name): _as_float(name, value) for name, value in named.items()}


def _as_float(name: str, value: Any) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind in "cOSU":
        kind = type(value).__name__
        raise ArgumentTypeError(
            f"a step returns a real scalar or a dict of them; {name!r} is a {kind} of "
            f"{array.dtype} and shape {array.shape}",
            op="fit",
            help="reduce it, for example with tj.mean",
        )
    return float(array.reshape(()))


class CallbackHooks:
    """The callbacks, as one function for each occasion."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self.callbacks = list(callbacks)
        for each in self.callbacks:
            if not callable(each) and not _has_hooks(each):
                raise ArgumentTypeError(
                    f"{each!r} is no callback",
                    op="fit",
                    help=f"a callback is a function or has one of {', '.join(HOOKS)}",
                )

    def on_start(self, history: History) -> None:
        """Call those that want to hear of the start."""
        for each in self.callbacks:
            if hasattr(each, "on_start"):
                each.on_start(history)

    def on_batch_end(self, step: int, logs: Logs) -> str | None:
        """Call those that want to hear of batches."""
        return self._ask("on_batch_end", step, logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> str | None:
        """Call those that want to hear of epochs, plain functions among them."""
        return self._ask("on_epoch_end", epoch, logs)

    def on_end(self, history: History) -> None:
        """Call those that want to hear of the end."""
        for each in self.callbacks:
            if hasattr(each, "on_end"):
                each.on_end(history)

    def _ask(self, name: str, number: int, logs: Logs) -> str | None:
        """The first reason to stop; all of them are called in any case."""
        reasons = []
        for each in self.callbacks:
            hook = getattr(each, name, None)
            if hook is None and name == "on_epoch_end" and not _has_hooks(each):
                hook = each
            if hook is None:
                continue
            answer = hook(number, dict(logs))
            # Only these two: what a one-line function happens to return is no wish.
            if isinstance(answer, str) or answer is True:
                reasons.append("a callback" if answer is True else answer)
        return reasons[0] if reasons else None


def _has_hooks(callback: Any) -> bool:
    return any(hasattr(callback, name) for name in HOOKS)


@contextmanager
def interruption(progress: Progress) -> Iterator[Callable[[], bool]]:
    """Remember a first Ctrl-C in the block instead of raising; a second one raises.

    Signals reach the main thread alone; a handler of the user's own stays.
    """
    pressed: list[int] = []
    is_ours_to_take = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )

    def note(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        progress.say("stopping after this step; press Ctrl-C again to stop at once")

    if not is_ours_to_take:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
