"""What a training run has measured so far.

`History` is a dict from a name to one number per epoch. It also holds the sums of the
epoch that is going on, so that a run taken up in the middle of an epoch ends it with
the very numbers that an uninterrupted one has.

Start reading at `History`.
"""

from __future__ import annotations

from typing import Any

from tapejit.base.errors import ArgumentError, UnsupportedError
from tapejit.base.public import public


@public("tapejit")
class History(dict[str, list[float]]):
    """What `tj.fit` returns: one number per epoch under each name.

    `epochs` is how many epochs are complete, `batches` how many batches of the one
    after them, `steps` how many batches in all. `stopped` is None if training went to
    its end, else the reason: `"interrupted"` after Ctrl-C, or what a callback said.

    Give it to `tj.fit(..., history=history)` to go on, and to `tj.save` to keep it.

    >>> import tapejit as tj
    >>> history = tj.fit(lambda x: x * x, [1.0, 3.0], epochs=2, verbose=0)
    >>> history
    {'loss': [5.0, 5.0]}
    >>> history.epochs, history.steps, history.stopped
    (2, 4, None)
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs = 0
        self.batches = 0
        self.steps = 0
        self.stopped: str | None = None
        self._sums: dict[str, float] = {}

    def add_batch(self, logs: dict[str, float]) -> None:
        """Count the results of one batch into the epoch that is going on."""
        if self.batches and logs.keys() != self._sums.keys():
            raise ArgumentError(
                f"the step returned {_listed(logs)}, and {_listed(self._sums)} before",
                op="fit",
                help="a step returns the same names each time",
            )
        for name, value in logs.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self.batches += 1
        self.steps += 1

    def means(self) -> dict[str, float]:
        """The means over the batches of the epoch that is going on.

        >>> import tapejit as tj
        >>> history = tj.History()
        >>> history.add_batch({"loss": 2.0})
        >>> history.add_batch({"loss": 1.0})
        >>> history.means()
        {'loss': 1.5}
        """
        return {name: total / self.batches for name, total in self._sums.items()}

    def end_epoch(self, logs: dict[str, float]) -> None:
        """Append the results of an epoch and start the next."""
        for name, value in logs.items():
            self.setdefault(name, []).append(value)
        self.epochs += 1
        self.drop_batches()

    def drop_batches(self) -> None:
        """Forget the batches of an epoch that will be started over.

        >>> import tapejit as tj
        >>> history = tj.History()
        >>> history.add_batch({"loss": 2.0})
        >>> history.drop_batches()
        >>> history.batches, history.steps
        (0, 1)
        """
        self.batches, self._sums = 0, {}

    def state(self) -> dict[str, Any]:
        """All of it in plain values, for `tj.save`.

        >>> import tapejit as tj
        >>> tj.History().state()
        {'values': {}, 'epochs': 0, 'batches': 0, 'steps': 0, 'sums': {},
         'stopped': None}
        """
        return {
            "values": {name: list(values) for name, values in self.items()},
            "epochs": self.epochs,
            "batches": self.batches,
            "steps": self.steps,
            "sums": dict(self._sums),
            "stopped": self.stopped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state()` was taken of.

        >>> import tapejit as tj
        >>> first = tj.fit(lambda x: x, [2.0], verbose=0)
        >>> second = tj.History()
        >>> second.restore(first.state())
        >>> second == first
        True
        """
        if not isinstance(state, dict) or state.keys() != self.state().keys():
            raise ArgumentError(f"this is no state of a History: {state!r}")
        self.clear()
        self.update({name: list(values) for name, values in state["values"].items()})
        self.epochs, self.batches = state["epochs"], state["batches"]
        self.steps, self._sums = state["steps"], dict(state["sums"])
        self.stopped = state["stopped"]

    def plot(self, *names: str) -> Any:
        """Draw the curves with these names, or all, with matplotlib; returns the axes.

        >>> import tapejit as tj
        >>> history = tj.fit(lambda x: x, [2.0], epochs=3, verbose=0)
        >>> axes = history.plot("loss")  # doctest: +SKIP
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise UnsupportedError(
                "drawing a history needs matplotlib", help="pip install matplotlib"
            ) from None
        axes = Figure(layout="constrained").subplots()
        for name in names or self:
            epochs = range(self.epochs - len(self[name]) + 1, self.epochs + 1)
            axes.plot(epochs, self[name], label=name)
        axes.set_xlabel("epoch")
        axes.legend()
        return axes


def _listed(names: dict[str, float]) -> str:
    return ", ".join(names) or "nothing"
