"""Arrays in batches, in an order that can be taken up again.

`Batches` is an object to iterate over as often as wanted; each time around is an epoch.
The order of an epoch is a function of the seed and of the epoch's number, drawn by the
generator that `tj.random` uses, so it is the same on every machine. What `state()`
gives (the seed, the epoch, how many batches were handed out) is therefore all that is
needed to go on with the very next batch, in another process too.

Start reading at `batches`, then `Batches.__iter__`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from tapejit.array.creation import asarray
from tapejit.array.distributions import natural
from tapejit.base import tree
from tapejit.base.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tapejit.base.public import public
from tapejit.ops import philox
from tapejit.tensor.device import as_device
from tapejit.tensor.foreign_keywords import with_hints

__all__ = ["Batches", "batches"]

Array = np.ndarray[Any, Any]


@with_hints
def batches(
    arrays: Any,
    size: int,
    shuffle: bool = False,
    seed: int | None = None,
    drop_remainder: bool = False,
    *,
    device: Any = None,
) -> Batches:
    """Cut arrays into batches along their first axis, to iterate over.

    `arrays` is any structure of arrays, tensors or pandas objects with the same number
    of rows; each batch is the same structure of NumPy arrays, views of the originals
    unless they are shuffled. The last batch may be smaller; `drop_remainder` leaves it
    out, which spares a traced function another size. With `shuffle`, every epoch has
    another order; without a `seed`, the orders differ from run to run. With a `device`
    the batches are tensors there.

    >>> import numpy as np
    >>> import tapejit as tj
    >>> x, y = np.arange(10.0).reshape(5, 2), np.arange(5)
    >>> for rows, labels in tj.data.batches((x, y), 2):
    ...     print(rows.shape, labels)
    (2, 2) [0 1]
    (2, 2) [2 3]
    (1, 2) [4]
    >>> data = tj.data.batches(y, 5, shuffle=True, seed=1)
    >>> [batch.tolist() for epoch in range(2) for batch in data]
    [[0, 3, 4, 1, 2], [4, 0, 1, 3, 2]]
    """
    return Batches(arrays, size, shuffle, seed, drop_remainder, device=device)


@public("tapejit", "data")
class Batches:
    """What `tj.data.batches` returns: iterate over it once for each epoch.

    `len()` is the number of batches of an epoch. `state()` says where it stands and
    `restore(state)` goes there, also in another process: the next iteration hands out
    the remaining batches of that epoch, in the order it had. `tj.save` and `tj.load`
    do both.

    >>> import numpy as np
    >>> import tapejit as tj
    >>> data = tj.data.batches(np.arange(6), 2, shuffle=True, seed=1)
    >>> len(data)
    3
    >>> for batch in data:
    ...     print(batch)
    ...     break
    [0 3]
    >>> other = tj.data.batches(np.arange(6), 2, shuffle=True)
    >>> other.restore(data.state())
    >>> list(other)
    [array([4, 5]), array([1, 2])]
    """

    def __init__(
        self,
        arrays: Any,
        size: int,
        shuffle: bool = False,
        seed: int | None = None,
        drop_remainder: bool = False,
        *,
        device: Any = None,
    ) -> None:
        self._device = None if device is None else as_device(device)
        leaves, self._spec = tree.flatten(arrays, is_leaf=_is_array)
        paths = self._spec.paths()
        self._arrays = [
            _as_array(leaf, path or "the array")
            for leaf, path in zip(leaves, paths, strict=True)
        ]
        self._count = _common_length(self._arrays, paths)
        self._size = natural(size, "size", "batches")
        if self._size == 0:
            raise ArgumentError("a batch has at least one row", op="batches")
        self._shuffle = bool(shuffle)
        self._drop_remainder = bool(drop_remainder)
        if self._count and not len(self):
            raise ArgumentError(
                f"{self._count} rows give no batch of {self._size}",
                op="batches",
                help="without drop_remainder they give one smaller batch",
            )
        if seed is None:
            self._seed = int.from_bytes(os.urandom(8), "little")
        else:
            self._seed = natural(seed, "a seed", "batches")
        self._next_epoch = 0  # of the next iteration
        self._epoch = 0  # where state() says it stands
        self._position = 0
        self._first = 0  # the batch that the next iteration starts with

    @property
    def seed(self) -> int:
        """The seed; without one given, one of the operating system."""
        return self._seed

    @property
    def epoch(self) -> int:
        """The number of the epoch that is going on, or of the next if none is.

        >>> import tapejit as tj
        >>> data = tj.data.batches(tj.zeros(4), 2)
        >>> for batch in data:
        ...     pass
        >>> data.epoch
        1
        """
        return self._epoch

    @property
    def position(self) -> int:
        """How many batches of this epoch were handed out.

        >>> import tapejit as tj
        >>> data = tj.data.batches(tj.zeros(4), 1)
        >>> next(iter(data)), data.position
        (array([0.], dtype=float32), 1)
        """
        return self._position

    def __len__(self) -> int:
        if self._drop_remainder:
            return self._count // self._size
        return -(-self._count // self._size)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch, or the rest of one that was restored."""
        epoch, first = self._next_epoch, self._first
        self._next_epoch, self._first = epoch + 1, 0
        self._epoch, self._position = epoch, first
        return self._batches(epoch, first)

    def _batches(self, epoch: int, first: int) -> Iterator[Any]:
        order = self._order(epoch) if self._shuffle else None
        total = len(self)
        for at in range(first, total):
            # Whoever asks while a batch is being used wants to go on with the next.
            self._epoch, self._position = epoch, at + 1
            rows: Any = slice(at * self._size, (at + 1) * self._size)
            if order is not None:
                rows = order[rows]
            parts: list[Any] = [array[rows] for array in self._arrays]
            if self._device is not None:
                parts = [asarray(part, device=self._device) for part in parts]
            yield tree.unflatten(self._spec, parts)
        self._epoch, self._position = epoch + 1, 0

    def _order(self, epoch: int) -> Array:
        """The rows in the order of an epoch."""
        state = philox.fold_in(philox.seed_state(self._seed), epoch)
        _, words = philox.random_bits(state, self._count, 64)
        return np.argsort(words, kind="stable")

    def state(self) -> dict[str, Any]:
        """Where it stands, in plain values.

        >>> import tapejit as tj
        >>> tj.data.batches(tj.zeros(4), 2, seed=5).state()
        {'seed': 5, 'epoch': 0, 'position': 0, 'rows': 4, 'size': 2,
         'shuffle': False, 'drop_remainder': False}
        """
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            **self._settings(),
        }

    def _settings(self) -> dict[str, Any]:
        """What has to be the same for a position to mean the same."""
        return {
            "rows": self._count,
            "size": self._size,
            "shuffle": self._shuffle,
            "drop_remainder": self._drop_remainder,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go where `state()` was taken; the data itself must be the same.

        >>> import tapejit as tj
        >>> data = tj.data.batches(tj.zeros(4), 2)
        >>> data.restore({**data.state(), "epoch": 3})
        >>> data.epoch
        3
        """
        own = self._settings()
        if not isinstance(state, dict) or state.keys() != self.state().keys():
            raise ArgumentError(
                f"this is no state of tj.data.batches: {state!r}", op="restore"
            )
        different = [
            f"{name} is {state[name]!r} in the state, {own[name]!r} here"
            for name in own
            if state[name] != own[name]
        ]
        if different:
            raise ArgumentError(
                "the state is of other batches: " + "; ".join(different), op="restore"
            )
        seed = natural(state["seed"], "the seed", "restore")
        epoch = natural(state["epoch"], "the epoch", "restore")
        position = natural(state["position"], "the position", "restore")
        if position > len(self):
            raise ArgumentError(
                f"the position {position} is past the {len(self)} batches of an epoch",
                op="restore",
            )
        self._seed = seed
        self._epoch = self._next_epoch = epoch
        self._position = self._first = position

    def __repr__(self) -> str:
        order = f", shuffled with seed {self._seed}" if self._shuffle else ""
        return f"<tj.data.Batches {len(self)} of {self._size} rows{order}>"


def _is_array(x: Any) -> bool:
    """Whether something that looks like a container is an array nonetheless."""
    return hasattr(x, "__array__") or hasattr(x, "__array_interface__")


def _as_array(leaf: Any, path: str) -> Array:
    if leaf is None or isinstance(leaf, (int, float, complex, str)):
        raise ArgumentTypeError(
            f"{path} is {leaf!r}, not an array",
            op="batches",
            help="a list is a structure of its elements; make it an array first: "
            "np.asarray(x)",
        )
    array = np.asarray(leaf)
    if array.ndim == 0:
        raise ShapeError(f"{path} has no axis to cut into batches", op="batches")
    if array.dtype == object:
        kinds = getattr(leaf, "dtypes", None)
        text = "objects" if kinds is None else f"columns of {_columns(kinds)}"
        raise DTypeError(
            f"{path} holds {text}, not numbers of one type",
            op="batches",
            help="convert it first, for example with .astype('float32')",
        )
    return array


def _columns(kinds: Any) -> str:
    """The dtypes of a pandas object, each once."""
    if not hasattr(kinds, "tolist"):
        return str(kinds)
    return ", ".join(dict.fromkeys(str(kind) for kind in kinds.tolist()))


def _common_length(arrays: list[Array], paths: list[str]) -> int:
    if not arrays:
        raise ArgumentError("there are no arrays to cut into batches", op="batches")
    for array, path in zip(arrays, paths, strict=True):
        if len(array) != len(arrays[0]):
            raise ShapeError(
                f"arrays{paths[0]} has {len(arrays[0])} rows, "
                f"arrays{path} has {len(array)}",
                op="batches",
            )
    return len(arrays[0])
