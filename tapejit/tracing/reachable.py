"""Which variables a function can get hold of by itself.

A variable that is passed as an argument is bound at each call, so one trace serves all
variables of a kind. That is right only if the body reaches it through the argument
alone: reached another way too, by a closure, a global or an attribute, it is the same
variable twice. Inside the body both are one Python object, so the trace cannot tell.
Here everything that the function can reach is walked through instead: closures,
defaults, the globals that its code names, and the objects behind those.

Code that can tell two objects apart (`is`, `in`, `id`), or that can reach what no walk
finds (`eval`, `globals`), is noted: then a second variable is traced too, and comparing
the two traces tells whether any will do (`Path.compare`).

Start reading at `reached_variables`.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple
from weakref import ProxyTypes, ReferenceType

import numpy as np

from tapejit.tape.variable import Variable
from tapejit.tensor.tensor import Tensor

MAX_OBJECTS: Final = 20_000  # a walk takes about 10 ms, once per trace

# Names with which code tells objects apart, or reaches what no walk finds.
TELLING: Final = frozenset(
    {
        *("id", "is_", "is_not", "index", "remove", "count", "contains"),
        *("eval", "exec", "globals", "locals", "vars", "compile", "__import__"),
        *("modules", "import_module", "get_objects", "get_referrers", "_getframe"),
        *("__globals__", "__code__", "f_locals", "f_globals", "f_back", "currentframe"),
    }
)

_ATOMS: Final = (
    *(str, bytes, int, float, complex, bool, type(None), type(Ellipsis)),
    *(Tensor, np.generic, np.dtype, np.ufunc, range, slice, CodeType),
)
# What is imported from these knows nothing of a user's variables.
_LIBRARIES: Final = frozenset(
    {"tapejit", "numba", "numpy", "scipy", *sys.stdlib_module_names}
)


class Reached(NamedTuple):
    """The ids of variables, and whether code on the way can tell objects apart."""

    variables: frozenset[int]
    tells_apart: bool


def reached_variables(roots: Iterable[Any]) -> Reached | None:
    """The variables behind these objects; None if there is too much to look at."""
    found: set[int] = set()
    seen: dict[int, Any] = {}  # holds what it has seen, so that ids stay their own
    left = list(roots)
    tells_apart = False
    while left:
        x = left.pop()
        # A proxy comes first: of one whose object is gone nothing can be asked.
        if type(x) in ProxyTypes or isinstance(x, _ATOMS) or id(x) in seen:
            continue
        seen[id(x)] = x
        if len(seen) > MAX_OBJECTS:
            return None
        if type(x) is Variable:
            found.add(id(x))
            left.append(x._constraint)
        else:
            left += _behind(x)
        if isinstance(x, FunctionType) and not is_of_library(x):
            tells_apart = tells_apart or _tells_apart(x.__code__)
    return Reached(frozenset(found), tells_apart)


def _behind(x: Any) -> Iterable[Any]:
    """What can be reached from an object in one step."""
    if isinstance(x, FunctionType):
        return _behind_function(x)
    if isinstance(x, MethodType):
        return (x.__func__, x.__self__)
    if isinstance(x, BuiltinFunctionType):
        return (x.__self__,)
    if isinstance(x, ModuleType):
        return () if _is_library(x.__name__) else vars(x).values()
    if isinstance(x, type):
        return () if is_of_library(x) else (*vars(x).values(), *x.__mro__)
    if isinstance(x, ReferenceType):
        return (x(),)
    if isinstance(x, np.ndarray):
        return x.ravel().tolist() if x.dtype.hasobject else ()
    if type(x).__module__.startswith("numba."):
        return ()  # compiled code
    walked = getattr(type(x), "_reaches", None)
    return gc.get_referents(x) if walked is None else walked(x)


def _behind_function(function: FunctionType) -> list[Any]:
    found: list[Any] = [function.__dict__, function.__defaults__]
    found += [function.__kwdefaults__, *(function.__closure__ or ())]
    if not is_of_library(function):
        names = global_names(function.__code__)
        found += [function.__globals__.get(name) for name in names]
    return found


def global_names(code: CodeType) -> list[str]:
    """The globals that code names, with those of the functions inside it."""
    names = [
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    ]
    for part in _inner_code(code):
        names += global_names(part)
    return names


def _tells_apart(code: CodeType) -> bool:
    """Whether code can see which of two equal objects it has, or reach any object."""
    before: Any = None
    for step in dis.get_instructions(code):
        compares = step.opname == "IS_OP" and before.opname != "LOAD_CONST"
        names = isinstance(step.argval, str) and step.argval in TELLING
        if compares or names or step.opname in ("CONTAINS_OP", "IMPORT_NAME"):
            return True
        before = step
    return any(map(_tells_apart, _inner_code(code)))


def _inner_code(code: CodeType) -> list[CodeType]:
    return [part for part in code.co_consts if isinstance(part, CodeType)]


def is_of_library(x: Any) -> bool:
    return _is_library(getattr(x, "__module__", None) or "")


def _is_library(name: str) -> bool:
    return name.partition(".")[0] in _LIBRARIES
