"""What tapejit does once another library is imported: today, be known to einops.

`import tapejit` imports no einops, and einops may come later. A finder at the front of
`sys.meta_path` waits for the module of einops that knows backends, lets Python find
it as ever, has our own made after it has run, and takes itself away.

Start reading at `make_known_to_einops`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

BACKENDS = "einops._backends"


def make_known_to_einops() -> None:
    """Now if einops is there, otherwise when it comes."""
    module = sys.modules.get(BACKENDS)
    if module is not None:
        _add_backend(module)
    elif not any(isinstance(finder, AfterEinops) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterEinops())


def _add_backend(module: ModuleType) -> None:
    abstract = getattr(module, "AbstractBackend", None)
    if abstract is not None:
        from tapejit.array.einops_backend import add_backend

        add_backend(abstract)


class AfterEinops:
    """A finder of modules that finds none itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """What the other finders say, with our backend added to einops's."""
        if name != BACKENDS:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _add_backend(module)

        loader.exec_module = exec_module
        return spec
