"""The paths by which users reach classes and functions; pickles name no others.

So what is pickled does not depend on the file something is in. Pickles of before did:
whoever loads one is told.

Start reading at `public`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, Final, TypeVar

C = TypeVar("C", bound=type)

FORMER: Final = frozenset({"tapejit.api", "tapejit.kits"})  # folders


def public(module: str, within: str = "") -> Callable[[C], C]:
    """Give a class its public path: a module, and a namespace that is no module.

    >>> import tapejit as tj
    >>> print(tj.Variable, tj.nn.Dense, tj.metrics.Mean)
    <class 'tapejit.Variable'> <class 'tapejit.nn.Dense'> <class 'tapejit.metrics.Mean'>
    """

    def named(cls: C) -> C:
        cls.__module__ = module
        cls.__qualname__ = f"{within}.{cls.__name__}".lstrip(".")
        return cls

    return named


def names_in(module: Mapping[str, Any], path: str = "") -> list[str]:
    """The functions and classes that a module defines and does not hide, or `path` has.

    >>> from tapejit.array import fft
    >>> names_in(vars(fft))[:3]
    ['fft', 'fftfreq', 'fftn']
    """
    homes = {module["__name__"], path}
    return sorted(
        name
        for name, x in module.items()
        if name[0] != "_" and getattr(x, "__module__", None) in homes
    )


def publish(names: Iterable[str], namespace: Mapping[str, Any], module: str) -> None:
    """Give functions that a module makes public its path."""
    for name in names:
        x = namespace[name]
        if type(x) is FunctionType and x.__module__.startswith(f"{module}."):
            x.__module__ = module


class _Former:
    """Asked for modules that nobody has: explains those that pickles may name."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        if name in FORMER:
            raise ModuleNotFoundError(
                f"there is no {name} any more: what was pickled by an earlier tapejit, "
                "before pickles named public paths such as tapejit.Variable, cannot be "
                "loaded; write a checkpoint with that version, tj.save(path, x), and "
                "load it with this one",
                name=name,
            )


sys.meta_path.append(_Former())
