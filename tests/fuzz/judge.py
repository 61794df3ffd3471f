"""Runs a program eagerly and as native code, and says in what they differ.

Start reading at `judge`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from native.conditioning import steady_outputs

import tapejit as tj
from tapejit.base import tree
from tapejit.base.tolerance import COMPOSED, difference, round_to
from tapejit.ir import Graph, Node
from tapejit.ir.node import LITERAL, Derived
from tapejit.ops import add, eq_mask, mul

from .arguments import Array
from .program import Number, Program, State, body_of, function_of
from .spelled import with_spelled

RUNS = 60  # by which a result that differs is asked whether it is steady
CALLS = (0, 1, 0)  # arguments of each call: the last one finds everything there


@dataclass(frozen=True)
class Failure:
    """What is wrong with a program."""

    kind: str  # "numbers", "types", "None", "structure" or the name of an exception
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def judge(program: Program) -> Failure | None:
    """What differs between the eager and the compiled program, if anything.

    Numbers that rounding errors alone could change are not judged.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with tj.mixed_precision.policy(program.policy):
            return Trial(program).run()


class Trial:
    """One program with the states of both ways."""

    def __init__(self, program: Program) -> None:
        self.program = program
        arrays = program.arrays(0)
        self.plain, self.compiled = State(program, arrays), State(program, arrays)
        self.reference = self.plain_body(number=Number)
        # A Graph has no numbers that are asked for: there they stay tensors.
        self.traceable = self.plain_body(number=lambda x: x)
        self.is_around = program.mode in ("outside", "outside twice")
        function = function_of(program, self.compiled, tj.function)
        if self.is_around:
            self.native = body_of(program, self.compiled, tj.function(function))
        else:
            self.native = tj.function(body_of(program, self.compiled, function))
        self.spelled: Callable[..., Any] | None = None
        is_asked = program.mode in ("inside", "outside", "forward")
        if is_asked and with_spelled(program.source())[1]:
            self.spelled = self.plain_body(is_spelled=True, number=Number)

    def plain_body(self, **options: Any) -> Callable[..., Any]:
        """What is asked, with nothing decorated."""
        function = function_of(self.program, self.plain, lambda f: f, **options)
        return body_of(self.program, self.plain, function)

    def run(self) -> Failure | None:
        """Some calls of both."""
        for number, salt in enumerate(CALLS):
            before = self.plain.read()
            self.compiled.write(before)
            arrays = self.program.arrays(salt)
            given = self.arguments(arrays)
            tensors = [tj.asarray(x) for x in given]
            plain = outcome(self.reference, tensors, self.plain)
            compiled = outcome(self.native, given, self.compiled)
            found = self.compare(plain, compiled, arrays, before)
            if found is None and self.spelled is not None and is_finite(plain):
                self.plain.write(before)
                other = outcome(self.spelled, tensors, self.plain)
                pair = map(without_signs, (plain, other))
                found = self.compare(*pair, arrays, before)
                if found is not None:
                    found = replace(found, text=f"spelled out, {found.text}")
            if found is not None:
                return Failure(found.kind, f"call {number}, {found.text}")
        return None

    def arguments(self, arrays: list[Array]) -> list[Any]:
        return [
            x.held(array)
            for x, array in zip(self.program.arguments, arrays, strict=True)
            if x.holder != "variable"
        ]

    def compare(
        self, plain: Any, compiled: Any, arrays: list[Array], before: list[Array]
    ) -> Failure | None:
        """The first thing that differs."""
        if isinstance(plain, Exception) or isinstance(compiled, Exception):
            return other_error(plain, compiled)
        (expected, spec), (got, found) = (
            tree.flatten(x, none_is_leaf=True) for x in (plain, compiled)
        )
        if spec != found:
            return Failure("structure", f"{found} is not {spec}")
        wrong: list[tuple[int, Failure]] = []
        at = 0  # among results that are tensors, which a Graph has as outputs
        for place, (x, y) in enumerate(zip(got, expected, strict=True)):
            failure = other_value(x, y)
            if failure is not None:
                if failure.kind != "numbers":
                    return Failure(failure.kind, f"result {place}: {failure.text}")
                wrong.append(
                    (at, Failure("numbers", f"result {place}: {failure.text}"))
                )
            at += y is not None
        if wrong:
            steady = self.steady(arrays, before)
            for at, failure in wrong:
                if steady[at]:
                    return failure
        return None

    def steady(self, arrays: list[Array], before: list[Array]) -> list[bool]:
        """Which results say something."""
        after = self.plain.read()
        self.plain.write(before)
        try:
            function = tj.function(self.traceable)
            arguments = self.arguments(arrays)
            function.get_concrete_function(*arguments)
            (entry,) = function._cache.entries.values()
            (path,) = entry.paths
            given = [np.asarray(arguments[at]) for at in path.takes]
            given += [np.asarray(x.variable) for x in path.bindings]
            given += [np.asarray(x) for x in path.captured]
            unordered = cotangent_sums(path.graph) if self.is_around else set()
            seed = self.program.seed
            found = steady_outputs(path.graph, given, seed, unordered, runs=RUNS)
        finally:
            self.plain.write(after)
        # A Graph gives what was assigned last; of the state all is compared.
        written = iter(found[path.results :])
        states = {id(x.variable): next(written) for x in path.bindings if x.is_written}
        variables = [*self.plain.variables.values()]
        state = [states.get(id(x), True) for x in variables]
        return [*found[: path.results], *state, True]


def cotangent_sums(graph: Graph) -> set[Node]:
    """Where cotangents meet: across the border of a call they do in another order."""
    return {
        node
        for node in graph.nodes
        if node.op is add
        and isinstance(node.origin, Derived)
        and node.origin.by == "vjp"
        and not any(map(is_of_a_rule, node.inputs))
    }


def is_of_a_rule(node: Node) -> bool:
    """Whether a term is no cotangent: rules themselves add numbers and masks only."""
    if node.op is mul:
        return all(map(is_of_a_rule, node.inputs))
    return node.op is LITERAL or node.op is eq_mask


def outcome(body: Callable[..., Any], arguments: list[Any], state: State) -> Any:
    """Results and state after a call, or what it raises."""
    try:
        found = body(*arguments)
    except Exception as error:
        return error
    return found, [tj.asarray(x) for x in state.read()]


def is_finite(found: Any) -> bool:
    """Whether results are: what NaN and infinities become is no matter of records."""
    if isinstance(found, Exception):
        return False
    (results, *_), _ = found
    values = [np.asarray(x) for x in tree.leaves(results) if x is not None]
    return all(bool(np.all(np.isfinite(x.astype(np.clongdouble)))) for x in values)


def without_signs(found: Any) -> Any:
    """An outcome with 0 for -0: arithmetic adds zeros that a record does not."""
    return found if isinstance(found, Exception) else tree.map(plus_zero, found)


def plus_zero(x: Any) -> Any:
    return x + 0 if isinstance(x, tj.Tensor) and x.dtype != bool else x


def other_error(plain: Any, compiled: Any) -> Failure | None:
    """Errors belong to a program: both ways raise the same."""
    if isinstance(plain, Exception) and isinstance(compiled, Exception):
        if type(plain) is type(compiled):
            return None
        return Failure("error", f"{compiled!r} is not {plain!r}")
    if isinstance(compiled, Exception):
        return Failure(type(compiled).__name__, str(compiled))
    return Failure(type(plain).__name__, f"only the eager program raises {plain}")


def other_value(got: Any, expected: Any) -> Failure | None:
    """How one leaf of the results differs."""
    if (got is None) != (expected is None):
        return Failure("None", f"{got} is not {expected}")
    if expected is None:
        return None
    if isinstance(expected, Number):  # a double, as precise as what it was taken from
        dtype = expected.dtype
        pair = (np.asarray(np.float64(x)) for x in (got, expected))
        got, expected = (round_to(x, dtype) for x in pair)
    x, y = np.asarray(got), np.asarray(expected)
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return Failure("types", f"{x.dtype}{x.shape} is not {y.dtype}{y.shape}")
    found = difference(COMPOSED, x, y)
    if found is None:
        return None
    return Failure(
        "numbers",
        f"{found.count} of {found.size} elements, at {list(found.index)} got "
        f"{found.got!r} for {found.expected!r}: {found.what}",
    )
