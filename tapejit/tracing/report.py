"""What the setting `debug` shows: why functions are traced, and what comes of it.

    1   one line per trace: the function and signature, why, how long, how many Nodes
    2   also the traced Graph
    3   also what each pass changes in a Graph before it runs, and the Graph that saves
        values for a tape, when a tape first records a call
    4   also what each pass changes in the loops of native code, and its kernels as
        Python (`executable_report` shows them)
    5   also their LLVM

Everything goes to `sys.stderr`. Nothing here runs unless a function is being traced.

Start reading at `report_trace`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tapejit.base.config import config
from tapejit.base.origin import Origin, describe
from tapejit.ir.graph import Graph
from tapejit.ir.node import LITERAL, Node
from tapejit.ir.printer import changed_lines, shown
from tapejit.ir.structural import start
from tapejit.tracing.signature import (
    describe_key,
    difference,
    is_float_part,
    is_tensor_part,
    leaf_names,
    split_key,
)

if TYPE_CHECKING:
    from tapejit.rewrite.pipeline import OnChange
    from tapejit.tracing.cache import Cache
    from tapejit.tracing.function import Function
    from tapejit.tracing.trace import Traced


def report_trace(
    function: Function[..., Any],
    cache: Cache,
    key: Any,
    place: Origin | None,
    traced: Traced,
    seconds: float,
) -> None:
    """Say that a function was traced, with the Graph if so much is wanted."""
    level = config.current().debug
    reasons = "; ".join(why_traced(function, cache, key, place))
    signature = describe_key(function._binder, key)
    count = len(operations(traced.graph))
    text = (
        f"tapejit: traced {function.__name__}{signature} in {1e3 * seconds:.1f} ms, "
        f"{count} Node{'' if count == 1 else 's'}: {reasons}\n"
    )
    if level >= 2:
        text += f"{shown(traced.graph)}\n"
    sys.stderr.write(text)  # in one piece, or the lines of two threads would mix


def report_forward(graph: Graph, results: int) -> None:
    """Show what a call under a tape runs, if so much is wanted."""
    if config.current().debug >= 3:
        saved = len(graph.outputs) - results
        sys.stderr.write(
            f"tapejit: under a tape {graph.name} saves {saved} "
            f"value{'' if saved == 1 else 's'} for the gradient\n{shown(graph)}\n"
        )


def pass_observer() -> OnChange | None:
    """Who looks on while a Graph is made ready to run; nobody if it is not wanted."""
    return report_pass if config.current().debug >= 3 else None


def report_pass(name: str, before: Graph, after: Graph) -> None:
    """Show what a pass has changed, as lines taken out and put in."""
    lines = changed_lines(shown(before), shown(after))
    counts = [len(operations(graph)) for graph in (before, after)]
    head = f"tapejit: {name} of {before.name}, {counts[0]} -> {counts[1]} Nodes"
    sys.stderr.write("\n".join([head, *lines, ""]))


def why_traced(
    function: Function[..., Any], cache: Cache, key: Any, place: Origin | None
) -> list[str]:
    """What is new: another way through the body, or what changed in the arguments.

    The arguments are compared with those of the nearest call that was traced before.
    """
    if place is not None:
        return [f"another way is taken at {describe(place)}"]
    if key in cache.entries:
        return ["other variables are passed"]
    other = _nearest(function, cache, key)
    if other is None:
        return ["the first call"]
    return difference(function._binder, key, other)


def _nearest(function: Function[..., Any], cache: Cache, key: Any) -> Any:
    """The key of a call traced before that differs least; the latest of several."""
    return min(
        reversed(list(cache.entries)),
        key=lambda other: len(difference(function._binder, key, other)),
        default=None,
    )


def how_to_trace_less(
    function: Function[..., Any], cache: Cache, key: Any, place: Origin | None
) -> str:
    """What can be done against the cause; nothing that has been done already."""
    if place is not None:
        return (
            "decide with tj.where or outside the function, and use sizes as they are: "
            "int(), range() and len() make a trace for one size"
        )
    if key in cache.entries:
        return "keep what depends on the variable itself out of the function"
    other = _nearest(function, cache, key)
    if other is None:
        return ""
    parts, structure = split_key(key)
    before, structure_before = split_key(other)
    if structure != structure_before or len(parts) != len(before):
        return "pass arguments of one structure"
    names = leaf_names(function._binder, structure)
    advice = [
        _advice(function, now, then, names[at])
        for at, (now, then) in enumerate(zip(parts, before, strict=True))
        if now != then
    ]
    return ", ".join(dict.fromkeys(text for text in advice if text))


def _advice(function: Function[..., Any], now: Any, then: Any, name: str) -> str:
    """What can be done about one argument that changes."""
    parameter = name.removeprefix("argument ").partition("[")[0]
    if is_tensor_part(now) and is_tensor_part(then):
        if now[0] != then[0]:
            return f"convert {name} to one dtype"
        if len(now[1]) != len(then[1]):
            if function._specs is not None:
                return ""  # its spec is of any rank
            return f"pass {name} with one number of axes"
        pairs = zip(now[1], then[1], strict=True)
        sizes = [n for pair in pairs if pair[0] != pair[1] for n in pair]
        if any(n is not None and n < 2 for n in sizes):
            return "sizes 0 and 1 have traces of their own: pad, or leave them out"
        if function._relaxation is not None:
            return ""  # sizes are left open already
        return "say input_signature= or reduce_retracing=True to leave sizes open"
    if parameter in function._static:
        return ""  # as it was asked for
    if is_float_part(now) and is_float_part(then):
        return f"pass {name} as a tensor: the body asks for its value"
    if now[0] in (int, bool) and then[0] in (int, bool):
        return f'pass {name} as a tensor, or say dynamic="{parameter}"'
    if now[0] == then[0] and isinstance(now[0], type) and now[0] is not str:
        return f"make {name} once, outside the loop"
    return f"pass {name} as one kind of value" if now[0] != then[0] else ""


def operations(graph: Graph) -> list[Node]:
    """The Nodes that do something: no constants, no marks of the chain of effects."""
    return [x for x in graph.nodes if x.op not in (LITERAL, start)]
