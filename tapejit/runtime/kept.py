"""Machine code of our own that every process needs, kept on disk.

The parallel driver, the native entry and the polling for signals are modules that never
change: made once, they are loaded in a millisecond.

Start reading at `load_kept`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapejit.codegen.objects import LoadedObject


class CompiledHere:
    """Code that is in this process only; like a LoadedObject."""

    def __init__(self, module: Any) -> None:
        from tapejit.codegen.host import Library

        self.library = Library(module)
        self.functions = {
            each.name: address_of(self.library.function(each.name, None))
            for each in module.functions
            if each.blocks and each.linkage != "internal"
        }


def load_kept(name: str, make: Callable[[], Any]) -> LoadedObject | CompiledHere:
    """The code of a module, from the store if it is there: 1 ms instead of 30."""
    from tapejit.codegen.objects import ObjectError, emit, load_object
    from tapejit.runtime.store import current_store
    from tapejit.runtime.store_key import cache_key

    store, key = current_store(), cache_key(name, extras={"kind": "driver"})
    entry = store.get(key)
    if entry is not None:
        try:
            return load_object(entry.code, entry.header)
        except ObjectError:  # not what we would store
            store.drop(key)
    module = make()
    try:
        made = emit(module)
    except ObjectError:  # objects of this system cannot be kept
        return CompiledHere(module)
    store.put(key, made.header, made.code)
    return load_object(made.code, made.header)


def address_of(function: Any) -> int:
    """Where a function of ctypes is."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
