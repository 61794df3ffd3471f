"""Which folder stored code may live in.

Whoever can write a stored entry can run code as the user who loads it. So the folder
belongs to the user and nobody else can write to it: one that we make is made so (mode
0700), one that we find is refused otherwise, with one warning that says what to do. A
link is judged by the folder it leads to. The files in it are held to the same rule
when they are opened, so that exchanging the folder after it was looked at gains
nothing.

Where the system has no owners and modes (Windows) the user's profile is what protects.

Start reading at `refusal`.
"""

from __future__ import annotations

import os
import stat
import sys
import warnings
from typing import Final

HAS_OWNERS: Final = hasattr(os, "geteuid")


class CacheWarning(UserWarning):
    """Stored code is not used, for a reason that its user can mend.

    >>> issubclass(CacheWarning, UserWarning)
    True
    """


def default_folder() -> str:
    """The user's folder for what can be made again; '' if the user has no home.

    >>> os.path.basename(default_folder())
    'tapejit'
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # a relative one is to be ignored, says the standard
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return ""
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData")
        elif sys.platform == "darwin":
            base = os.path.join(home, "Library", "Caches")
        else:
            base = os.path.join(home, ".cache")
    return os.path.join(base, "tapejit")


def refusal(folder: str) -> str | None:
    """Why stored code must not be read from or written to a folder; None if it may.

    A folder that is not there yet is no reason.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     refusal(folder)
    ...     os.chmod(folder, 0o777)
    ...     refusal(folder)
    'other users can write to it'
    """
    try:
        found = os.stat(folder)
    except FileNotFoundError:
        return "it is a link to nothing" if os.path.islink(folder) else None
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    return None if is_private(found) else _exposure(found)


def is_private(found: os.stat_result) -> bool:
    """Whether a file or folder is ours and nobody else can write to it."""
    return not HAS_OWNERS or not _exposure(found)


def _exposure(found: os.stat_result) -> str:
    if found.st_uid != os.geteuid():
        return f"it belongs to another user (number {found.st_uid})"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users can write to it"
    return ""


_warned: set[str] = set()


def warn_of_refusal(folder: str, reason: str) -> None:
    """Say once per folder and process why it is not used and what to do."""
    if folder in _warned:
        return
    _warned.add(folder)
    warnings.warn(
        f"tapejit keeps no native code in {folder!r}: {reason}. Stored code is run, so "
        "its folder has to be yours alone: `chmod go-w` it if it is yours, or set "
        "TAPEJIT_CACHE_DIR to a folder of your own; TAPEJIT_CACHE=0 is silent.",
        CacheWarning,
        stacklevel=3,
    )


def make_folder(folder: str) -> None:
    """Make a folder that only its owner can enter, and those above it."""
    above = os.path.dirname(folder)
    if above:
        os.makedirs(above, exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
