"""The native entry of a Path: what `TracedPath.run` does, in machine code.

Start reading at `native_entry`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tapejit.tape.variable import JOURNAL
from tapejit.tensor.dispatch import TAPES, TRACE
from tapejit.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tapejit.tracing.path import TracedPath

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
    spec = code.spec(
        arguments=kinds[:count],
        variables=[*zip(path._fixed, kinds[count:end], strict=True)],
        captured=path._captured_values,
        commits=commits,
        result=path.structure if path.is_wrapped else "values",
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
