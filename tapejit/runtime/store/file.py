"""The format of one stored entry: a line that describes it, JSON, object code.

An entry is code that will run in this process, so nothing of it is used before all of
it has been checked: the first line gives the lengths of the two parts and a SHA-256
over the key, the lengths and both parts. There is no bit in a file, its name included,
that can change without being noticed.

    tapejit-object 1 <digest> <length of header> <length of code>
    <header: JSON>
    <code>++++

Each use of an entry appends one `+`: that counts the uses, and makes the file the most
recently changed one, by one write that needs no lock.

Start reading at `unpack`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

FORMAT: Final = b"tapejit-object 1"
USE: Final = b"+"


class DamagedEntry(Exception):
    """What is in the file is not what was stored under its name.

    >>> try:
    ...     unpack("key", b"")
    ... except DamagedEntry as error:
    ...     print(error)
    not an entry of this version
    """


class CacheEntry(NamedTuple):
    """What is stored under a key; `uses` says how often it has been asked for.

    >>> unpack("key", pack("key", {"name": "loss"}, b"code") + USE)
    CacheEntry(header={'name': 'loss'}, code=b'code', uses=1)
    """

    header: dict[str, Any]
    code: bytes
    uses: int = 0


def pack(key: str, header: Mapping[str, Any], code: bytes) -> bytes:
    """The content of the file for an entry.

    >>> pack("key", {"name": "loss"}, b"code").splitlines()[1:]
    [b'{"name":"loss"}', b'code']
    """
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    digest = _digest(key, text, code)
    return b"%s %s %d %d\n%s\n%s" % (FORMAT, digest, len(text), len(code), text, code)


def unpack(key: str, data: bytes) -> CacheEntry:
    """The entry in the content of a file; DamagedEntry unless it is what was packed."""
    line, _, rest = data.partition(b"\n")
    if line[: len(FORMAT) + 1] != FORMAT + b" ":
        raise DamagedEntry("not an entry of this version")
    words = line.split(b" ")
    if len(words) != 5 or not (words[3].isdigit() and words[4].isdigit()):
        raise DamagedEntry("its first line cannot be read")
    length, size = int(words[3][:20]), int(words[4][:20])
    text, code = rest[:length], rest[length + 1 : length + 1 + size]
    uses = rest[length + 1 + size :]
    if len(code) != size:
        raise DamagedEntry("it is incomplete")
    # As bytes: lengths that are equal as numbers can be written in several ways.
    if line != b"%s %s %d %d" % (FORMAT, _digest(key, text, code), length, size):
        raise DamagedEntry("its content does not match its checksum")
    if rest[length : length + 1] != b"\n" or uses.strip(USE):
        raise DamagedEntry("there is something in it that does not belong there")
    return CacheEntry(json.loads(text), code, len(uses))


def _digest(key: str, text: bytes, code: bytes) -> bytes:
    whole = hashlib.sha256(b"%s %d %d\n" % (key.encode(), len(text), len(code)))
    whole.update(text)
    whole.update(code)
    return whole.hexdigest().encode()
