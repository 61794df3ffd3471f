"""Examples in docstrings belong to the file that they are in.

Public classes and functions say that they are of the module by which users reach them,
and doctest would look for them there.
"""

from __future__ import annotations

import doctest
import inspect
import re
from types import ModuleType
from typing import Any

PUBLIC = frozenset({"tapejit", "tapejit.nn", "tapejit.optimizers"})
_is_of = doctest.DocTestFinder._from_module  # type: ignore[attr-defined]  # no other way


def _is_written_in(self: Any, module: ModuleType, x: Any) -> bool:
    """Whether the definition of something stands in a module."""
    is_definition = inspect.isclass(x) or inspect.isroutine(x)
    if not is_definition or getattr(x, "__module__", None) not in PUBLIC:
        return bool(_is_of(self, module, x))
    definition = rf"^(class|def) {x.__name__}\b"
    return re.search(definition, inspect.getsource(module), re.M) is not None


doctest.DocTestFinder._from_module = _is_written_in  # type: ignore[attr-defined]
