"""The memory pool: memory of large results, lent to later ones when they have died.

Memory that is new to the process costs more than writing to it: the system clears and
maps each page when it is touched first, which for 64 MB is half of the time. A loop
makes results of the same sizes again and again, so what dies is kept and lent again.

A block is an array of bytes that begins on a cache line. A `Loan` stands between it and
its users: it is the `base` of the array that is made over the block, and whatever else
refers to that memory (views, memoryviews, DLPack) keeps the array and by it the Loan.
A `LoanReceipt` is a weak reference to the Loan and has the block: when the Loan dies,
Python puts the LoanReceipt into `_returned`. Nothing looks at reference counts, and no
Python code runs then: results die anywhere, in a collection or at the end of the
process, and the error of Ctrl-C would be lost in a finalizer.

So the limit has to hold before: all that is lent for a while (`_lent`) and all that
waits (`_free`, by size) are together at most what the setting `kept_memory` allows.
Beyond it memory is as usual: it goes with its Loan.

There is no lock. Each step is one operation of a dict, list or deque, which nothing
interrupts; whoever comes between two steps, a thread, a collection, a fork or Ctrl-C,
finds a block in one place, or in none: then it is freed, or about to be in the next.
So threads at once can be over the limit by a block each, until the next new block.

Start reading at `lend`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from math import prod
from typing import Any, Final
from weakref import ref

import numpy as np

from tapejit.base.config import ON_CHANGE, config
from tapejit.base.types import DType

Array = np.ndarray[Any, Any]

KEPT_FROM: Final = 1 << 18  # bytes from which a Loan, 2 µs, costs less than new pages
GRAIN: Final = 1 << 16  # sizes are multiples of it: similar results share blocks
PATIENCE: Final = 1000  # Loans after which one is no longer expected to end soon
ALIGNMENT: Final = 64
MEGABYTE: Final = 1 << 20


class Loan:
    """The right to use a block, for as long as the Loan lives.

    NumPy makes an array over the memory of a Loan, whose `base` it is.

    >>> loan = lend(1 << 20)
    >>> whole = np.asarray(loan)
    >>> whole.nbytes, whole.base is loan
    (1048576, True)
    """

    __slots__ = ("__weakref__", "_block")

    def __init__(self, block: Array) -> None:
        self._block = block

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._block.__array_interface__


class LoanReceipt(ref[Loan]):
    """What has the block when its Loan has died; `number` says which is older."""

    __slots__ = ("block", "number")

    block: Array
    number: int


_numbers: Final = count()
_lent: Final[dict[int, LoanReceipt]] = {}
_returned: Final[deque[LoanReceipt]] = deque()
_free: Final[dict[int, list[LoanReceipt]]] = {}


def lend(size: int) -> Loan:
    """A Loan of at least `size` bytes: the block that was used last, or a new one.

    >>> first = lend(1 << 20)
    >>> where = address_of(first)
    >>> del first
    >>> address_of(lend(1 << 20)) == where
    True
    """
    size = -(-size // GRAIN) * GRAIN
    number = next(_numbers)
    if _returned:
        take_in()
    waiting = _free.get(size)
    try:
        block = waiting.pop().block if waiting else None
    except IndexError:  # another thread was faster
        block = None
    is_new = block is None
    if block is None:
        block = new_block(size)
    loan = Loan(block)
    if is_new and size > allowed():
        return loan
    receipt = LoanReceipt(loan, _returned.append)
    receipt.block = block
    receipt.number = number
    _lent[number] = receipt
    # With this one counted, so that of two threads with new blocks none overlooks the
    # other. Where there is no room the memory goes with its Loan.
    if is_new and not let_go(allowed(), number - PATIENCE):
        _lent.pop(number, None)
    return loan


def take_in() -> None:
    """Have the blocks of all Loans that have died among those that wait."""
    while _returned:
        try:
            receipt = _returned.popleft()
        except IndexError:  # another thread was faster
            return
        if _lent.pop(receipt.number, None) is None:
            continue  # it was given up meanwhile
        size = receipt.block.nbytes
        waiting = _free.get(size)
        if waiting is None:
            waiting = _free.setdefault(size, [])
        waiting.append(receipt)


def let_go(limit: int, number: int) -> bool:
    """Give up blocks until those that are left have at most `limit` bytes.

    Loans that are older than `number`, if all that is lent is too much, else those that
    wait; the oldest first. Gives whether that was enough.
    """
    while lent_bytes() > limit:
        oldest = min(_lent.copy(), default=number)
        if oldest >= number:
            return False
        _lent.pop(oldest, None)  # without its LoanReceipt the memory goes with the Loan
    while lent_bytes() + kept_bytes() > limit:
        waiting = [each for each in _free.copy().values() if each]
        if not waiting:  # another thread has just made a Loan
            return False
        del min(waiting, key=age_of_first)[:1]
    return True


def age_of_first(waiting: list[LoanReceipt]) -> int:
    """When the first of those that wait was lent, as a number of Loans."""
    return waiting[0].number if waiting else 0


def kept_bytes() -> int:
    """How much memory waits at this moment, lent to nobody.

    >>> loan = lend(1 << 20)
    >>> before = kept_bytes()
    >>> del loan
    >>> kept_bytes() - before
    1048576
    """
    take_in()
    return sum(size * len(waiting) for size, waiting in _free.copy().items())


def lent_bytes() -> int:
    """How much memory is lent that will be kept afterwards."""
    return sum(receipt.block.nbytes for receipt in _lent.copy().values())


def allowed() -> int:
    """How many bytes may be kept, by the setting in force."""
    return config.kept_memory * MEGABYTE


def new_block(size: int) -> Array:
    """Memory that was not ours before; where there is none, what waits has to go."""
    try:
        room = np.empty(size + ALIGNMENT, np.uint8)
    except MemoryError:
        take_in()
        _free.clear()
        room = np.empty(size + ALIGNMENT, np.uint8)
    start = -address_of(room) % ALIGNMENT
    return room[start : start + size]


def empty(shape: Sequence[int], dtype: DType) -> Array:
    """Like `np.empty`; the memory of a large array is lent.

    >>> empty((3, 1 << 20), np.dtype(np.float32)).shape
    (3, 1048576)
    """
    size = prod(shape) * dtype.itemsize
    if size < KEPT_FROM:
        return np.empty(shape, dtype)
    return np.asarray(lend(size))[:size].view(dtype).reshape(shape)


def address_of(holder: Array | Loan) -> int:
    """Where the memory of an array or a Loan begins."""
    # Not `array.ctypes`, which imports: that fails when Python is about to end.
    return int(holder.__array_interface__["data"][0])


def follow_setting() -> None:
    """Give up what the setting in force does not allow."""
    if _lent or _free:
        let_go(allowed(), next(_numbers))


ON_CHANGE.append(follow_setting)
