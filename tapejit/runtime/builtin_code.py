"""Machine code of our own that every process needs, kept on disk.

The parallel driver, the native entry and the polling for signals are modules that never
change: made once, they are loaded in a millisecond.

Start reading at `load_kept`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tapejit.base.blas import address_of

if TYPE_CHECKING:
    from tapejit.targets.cpu.machine.objects import LoadedObject


class CompiledHere:
    """Code that is in this process only; like a LoadedObject."""

    def __init__(self, module: Any) -> None:
        from tapejit.targets.cpu.machine.host import Library

        self.library = Library(module)
        self.functions = {
            each.name: address_of(self.library.function(each.name, None))
            for each in module.functions
            if each.blocks and each.linkage != "internal"
        }


_begun: dict[str, Any] = {}  # what the helper is making code of, by name
_loaded: set[str] = set()


def load_kept(name: str, make: Callable[[], Any]) -> LoadedObject | CompiledHere:
    """The code of a module, from the store if it is there: 1 ms instead of 30."""
    from tapejit.runtime.store.store import current_store
    from tapejit.targets.cpu.machine.objects import ObjectError, load_object

    _loaded.add(name)
    store, key = current_store(), key_of(name)
    entry = store.get(key)
    if entry is not None:
        try:
            return load_object(entry.code, entry.header)
        except ObjectError:  # not what we would store
            store.drop(key)
    from tapejit.targets.cpu.machine.compile_thread import submit
    from tapejit.targets.cpu.machine.objects import joined

    job = _begun.pop(name, None) or submit(str(make()))
    try:
        made = joined([job.result()])
    except ObjectError:  # objects of this system cannot be kept
        return CompiledHere(make())
    store.put(key, made.header, made.code)
    return load_object(made.code, made.header)


def begin_kept(name: str, make: Callable[[], Any]) -> None:
    """Let the helper make code of a module that will be needed, if there is none."""
    from tapejit.runtime.store.store import current_store
    from tapejit.targets.cpu.machine.compile_thread import has_help, submit

    if name in _loaded or name in _begun or not has_help():
        return
    if current_store().get(key_of(name)) is None:
        _begun[name] = submit(str(make()))


def forget_begun() -> None:
    """Give up what nobody has asked for."""
    _begun.clear()


def key_of(name: str) -> str:
    """What the code of a module is stored under."""
    from tapejit.runtime.store.key import cache_key

    return cache_key(name, extras={"kind": "driver"})
