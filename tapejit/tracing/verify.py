"""Comparing the two ways a function can run: as plain Python and as a Graph.

Both runs start from the same state: what they assign is noted in a journal, compared,
and put back. Numbers are judged by the table of `base.tolerance`: results that come
from operations which are rounded alike everywhere must have the same bits, others may
differ as a composition of operations may.

Start reading at `verify`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapejit.base import tree
from tapejit.base.config import config
from tapejit.base.errors import Disagreement, UnsupportedError
from tapejit.base.tolerance import COMPOSED, EXACT, difference
from tapejit.base.types import TensorType, is_complex
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.node import Node
from tapejit.tape.variable import JOURNAL, Variable
from tapejit.tensor.dispatch import TAPES, TRACE
from tapejit.tensor.tensor import Tensor
from tapejit.tracing.function import Function
from tapejit.tracing.inspect import asked


class Run:
    """What one way of running gave.

    `leaves` and `structure` are the results, `written` is id -> variables and the
    values they got; `error` is what was raised instead.
    """

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []
        self.structure: tree.Structure | None = None
        self.written: dict[int, tuple[Variable, Tensor]] = {}
        self.error: Exception | None = None


def verify(
    function: Function[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise unless the body and its Graph do the same on these arguments."""
    if TRACE.get() is not None:
        raise UnsupportedError(
            f"{function.__name__} is verified while a function is traced",
            help="verify outside of functions",
        )
    with config.override(eager=True):
        eager = _observed(lambda: function(*args, **kwargs))
    with config.override(eager=False):
        traced = _observed(lambda: function(*args, **kwargs))
        if eager.error is not None:
            _compare_errors(function.__name__, eager.error, traced.error)
            raise eager.error
        if traced.error is not None:
            raise traced.error
        path = asked(function, args, kwargs).path
    graph = None if path is None else path.graph
    _compare(function.__name__, eager, traced, graph)


def _observed(run: Callable[[], Any]) -> Run:
    """Run, note what came of it, and put everything back."""
    found = Run()
    journal: dict[int, tuple[Variable, Tensor]] = {}
    tapes_token = TAPES.set(())  # nobody records what is only a test
    token = JOURNAL.set(journal)
    try:
        found.leaves, found.structure = tree.flatten(run())
    except Exception as error:  # the body's; what it raises is compared as well
        found.error = error
    finally:
        JOURNAL.reset(token)
        TAPES.reset(tapes_token)
        for key, (variable, before) in journal.items():
            found.written[key] = (variable, variable._tensor)
            variable._tensor = before
    return found


def _compare_errors(name: str, eager: Exception, traced: Exception | None) -> None:
    if type(eager) is not type(traced):
        what = "nothing" if traced is None else f"{type(traced).__name__}: {traced}"
        raise Disagreement(
            f"{name} raises {type(eager).__name__} eagerly ({eager}), {what} traced"
        ) from eager


def _compare(name: str, eager: Run, traced: Run, graph: Graph | None) -> None:
    if eager.structure != traced.structure:
        raise Disagreement(
            f"{name} returns {eager.structure} eagerly, {traced.structure} traced"
        )
    assert eager.structure is not None
    outputs: list[Node | None] = [None] * len(eager.leaves)
    if graph is not None:
        outputs = list(graph.outputs[: len(outputs)])
    pairs = zip(eager.structure.paths(), outputs, strict=True)
    for (path, node), one, other in zip(
        pairs, eager.leaves, traced.leaves, strict=True
    ):
        _compare_values(f"{name}(...){path}", one, other, _op_class(node, graph))
    for key in {**eager.written, **traced.written}:
        variable = (eager.written.get(key) or traced.written[key])[0]
        before = variable._tensor  # what is not written keeps its value
        unchanged = (variable, before)
        one = eager.written.get(key, unchanged)[1]
        other = traced.written.get(key, unchanged)[1]
        _compare_values(f"variable {variable.name!r}", one, other, _whole_class(graph))


def _compare_values(path: str, eager: Tensor, traced: Tensor, op_class: str) -> None:
    if eager._type != traced._type:
        raise Disagreement(
            f"{path} is {eager._type} eagerly, {traced._type} traced", path=path
        )
    found = difference(op_class, traced._value, eager._value)
    if found is None:
        return
    raise Disagreement(
        f"{path} differs at {list(found.index)}: {found.expected!s} eagerly, "
        f"{found.got!s} traced ({found.what}); {found.count} of {found.size} "
        "elements do",
        path=path,
        index=found.index,
        values=(np.asarray(found.expected).item(), np.asarray(found.got).item()),
        ulps=found.ulps,
        help="a body that depends on more than its arguments and variables (time, "
        "files, Python objects that change) cannot be a Graph",
    )


def _op_class(end: Node | None, graph: Graph | None) -> str:
    """How near two results of the same Nodes have to be."""
    if end is None or graph is None:
        return EXACT  # both ran as plain Python
    nodes = topological_order([end], stop=frozenset(graph.inputs))
    return EXACT if all(map(_is_identical, nodes)) else COMPOSED


def _whole_class(graph: Graph | None) -> str:
    """The same for anything that a Graph computes."""
    if graph is None or all(map(_is_identical, graph.nodes)):
        return EXACT
    return COMPOSED


def _is_identical(node: Node) -> bool:
    """Whether a Node is rounded in the same way wherever and however it runs.

    Of complex numbers some are sums of products, which hardware may fuse.
    """
    kind = node.type
    is_complex_number = isinstance(kind, TensorType) and is_complex(kind.dtype)
    return node.op.exact is True or (bool(node.op.exact) and not is_complex_number)
