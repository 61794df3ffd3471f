"""Faults that there were, put back: what the generator has to find.

A fault is a line of the package as it was, given as text of a function that is in force
while it is put back. So a fault that no longer fits the package is an error here.

    python -m tests.fuzz --fault keep_apart --seeds 0:5000 --stop 1

Start reading at `FAULTS`.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tapejit.runtime.executable import EXECUTABLES


@dataclass(frozen=True)
class Fault:
    """Text of a function, and what stood in its place; `where` is "module:function".

    A number in the path is that of an element.
    """

    where: str
    text: str
    before: str

    def function(self) -> Any:
        """The function that it is in."""
        module, _, path = self.where.partition(":")
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = found[int(part)] if part.isdigit() else getattr(found, part)
        return found


FAULTS: dict[str, tuple[Fault, ...]] = {
    # Private memory read before it is written.
    "keep_apart": (
        Fault(
            "tapejit.targets.cpu.schedule.vectorize:keep_apart",
            " or leaf.source in made_here",
            "",
        ),
    ),
    # Results that no gradient can pass, of a function under a tape.
    "cut_results": (
        Fault(
            "tapejit.transforms.vjp:vjp",
            "active = reached_from(sources, nodes)",
            """active = set(sources)
    for node in nodes:
        if any(x in active for x in node.inputs) and passes_gradient(node):
            active.add(node)""",
        ),
        Fault(
            "tapejit.tape.recording:Recording._grow",
            "and carries_gradient(operand.type)",
            "and operand not in self.cut",
        ),
    ),
    # The sign of a zero that is the largest or smallest number.
    "zero_of_extremes": (
        Fault(
            "tapejit.targets.cpu.nest.reductions:Reductions.finished_extreme",
            "found = b.select(found.eq(0.0) & was_there, zero, found)",
            "pass",
        ),
    ),
    # Floats that no unsigned integer is near to.
    "unsigned": (
        Fault(
            "tapejit.ops.arithmetic:to_unsigned",
            "x.astype(np.int64).astype(dtype)",
            "x.astype(dtype)",
        ),
    ),
    # A double that a body takes from a tensor, as a result.
    "float_of_double": (
        Fault("tapejit.tensor.scope:returned", "scope.has_doubles", "False"),
    ),
    # The slope of x log(y) at 0.
    "xlogy": (
        Fault(
            "tapejit.ops.exponentials:xlogy.deriv.0",
            "gate(t * log(y), 1 - is_void)",
            "t * log(y - is_void)",
        ),
    ),
}


def put_back(name: str) -> None:
    """Put a fault back for the rest of the process."""
    for fault in FAULTS[name]:
        function = fault.function()
        # All who know the function have it so, records too.
        function.__code__ = as_it_was(fault).__code__


@contextmanager
def with_fault(name: str) -> Iterator[None]:
    """Put a fault back for a while."""
    functions = [fault.function() for fault in FAULTS[name]]
    codes = [function.__code__ for function in functions]
    EXECUTABLES.clear()  # equal Graphs are compiled again
    put_back(name)
    try:
        yield
    finally:
        EXECUTABLES.clear()
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code


def as_it_was(fault: Fault) -> Any:
    """The function with the text of before."""
    function = fault.function()
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(fault.text) == 1, f"{fault.where} has no longer {fault.text!r}"
    source = source.replace(fault.text, fault.before)
    names = function.__code__.co_freevars
    if names:  # of the function it was made in
        inner = textwrap.indent(source, "    ")
        source = f"def outer({', '.join(names)}):\n{inner}"
        source += f"    return {function.__name__}\n"
    made: dict[str, Any] = {}
    code = compile(f"from __future__ import annotations\n{source}", fault.where, "exec")
    exec(code, function.__globals__, made)
    if names:
        return made["outer"](*names)
    return made[function.__name__]
