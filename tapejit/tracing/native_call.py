"""The native entry of a Path: what `TracedPath.run` does, in machine code.

Start reading at `native_entry`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tapejit.base.structure import flat_structure
from tapejit.tape.variable import JOURNAL
from tapejit.tensor.dispatch import TAPES, TRACE
from tapejit.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tapejit.tracing.path import TracedPath
    from tapejit.tracing.signature import FastKey

# The module: its name in the package is that of the object `config`.
_CONFIG: Final = vars(sys.modules["tapejit.base.config"])


def native_entry(path: TracedPath) -> Callable[..., Any] | None:
    """A built-in function for the path; None if not all of it is native code.

    It commits what is written to variables, over their old values where it can. Inside
    of a function that runs as plain Python it misses: that one may have to undo it.
    """
    from tapejit.runtime.native_entry import make_entry

    code = path._executable.code
    if code is None or not path._is_fixed or path.has_variable_arguments:
        return None
    kinds = [x.tensor_type for x in code.graph.inputs]
    count, end = len(path.takes), len(path.takes) + len(path.bindings)
    updated = path.updated({(out, x) for out, x in code.header["updates"]})
    commits = [
        (path._fixed[at], updated.get(out))
        for out, at in enumerate(path._writes, path.results)
    ]
    result = path.structure
    if not path.is_wrapped:
        result = flat_structure(list, path.results)
    spec = code.spec(
        arguments=kinds[:count],
        variables=[*zip(path._fixed, kinds[count:end], strict=True)],
        captured=path._captured_values,
        commits=commits,
        result=result,
        takes_scalars=False,
        context=[
            (TAPES, ()),
            (TRACE, None),
            (JOURNAL, None),
            (_CONFIG["_context"], None),
        ],
        names=[(_CONFIG, "_process", _CONFIG["_process"])],
    )
    return make_entry(spec, Tensor)


def spelled_entry(
    entry: Callable[..., Any],
    positional: int,
    names: Sequence[str],
    leaves: Sequence[int],
    short: FastKey,
) -> Callable[..., Any]:
    """The same for calls written in a certain way; `leaves` are those that are given.

    What is no input must have the value that it has now, with which it was traced.
    """
    from tapejit.runtime.native_entry import Spelling, respell

    inputs = [short.leaves[at] for at in short.places]
    given = {leaf: at for at, leaf in enumerate(leaves)}
    taken = frozenset(short.places)
    spelling = Spelling(
        positional=positional,
        names=names,
        arguments=[given.get(leaf, 0) for leaf in short.places],
        defaults={
            at: x
            for at, (leaf, x) in enumerate(zip(short.places, inputs, strict=True))
            if leaf not in given
        },
        floats=frozenset(at for at, x in enumerate(inputs) if type(x) is float),
        fixed=[
            (at, short.leaves[leaf]) for leaf, at in given.items() if leaf not in taken
        ],
    )
    return respell(entry, spelling, Tensor)
