"""How functions are pickled: by name, or with the Python function they are made of.

`pickle` finds a function by its name. If that names the plain function, because the
decorated one has another name, the plain one goes by name and is decorated again. With
cloudpickle, which joblib and others use, functions of a script go by value.

Start reading at `pickled`.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from tapejit.base.errors import ArgumentTypeError


def pickled(function: Any, by_value: tuple[Any, ...]) -> str | tuple[Any, ...]:
    """What `__reduce__` of a function gives: its name, or how it is made again."""
    found = named_in_module(function)
    name: str = function.__qualname__
    if is_pickled_by_cloudpickle():
        # A script's own functions are not found by name in another process.
        is_found = found is function and function.__module__ != "__main__"
        return name if is_found else by_value
    if found is function:
        return name
    if found is function.python_function:  # fast = tj.function(plain)
        return by_value
    raise ArgumentTypeError(
        f"{name} is local and cannot be pickled by name"
        if found is None
        else f"{function.__module__}.{name} is not this function, which cannot be "
        "pickled by name",
        help="define it at the top of a module, or use cloudpickle",
    )


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
