"""How functions are pickled: by name, or with the Python function they are made of.

`pickle` finds a function by its name. If that names the plain function, because the
decorated one has another name, the plain one goes by name and is decorated again. With
cloudpickle, which joblib and others use, functions of a script go by value.

Start reading at `named_in_module`.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any


def named_in_module(function: Any) -> Any:
    """What the module of a function has under its name, None if nothing."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found


def is_pickled_by_cloudpickle() -> bool:
    """Whether cloudpickle, or the copy of it in joblib, is asking."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.endswith("cloudpickle.cloudpickle"):
            return True
        frame = frame.f_back
    return False
