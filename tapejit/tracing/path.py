"""One way through a function: a Graph, what it is bound to, and calling it.

A `TracedPath` is the result of one trace. Its Graph holds for calls that answer its
guards alike; `TracedPath.run` binds arguments, variables and captured tensors to the
inputs, runs the Executable, and commits what was assigned. If a tape is watching, the
call is recorded as one `call` Node, whose Graph also has the residuals that the adjoint
looks at among its outputs.

Start reading at `TracedPath.run`, then `TracedPath._run_recorded`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from tapejit.base import tree
from tapejit.base.binding import bind_shapes
from tapejit.base.collector import resting
from tapejit.base.config import NUMERICS, config
from tapejit.base.errors import TapejitError
from tapejit.base.structure import LEAF
from tapejit.ir.graph import Graph, topological_order
from tapejit.ir.interpret import bind_dims
from tapejit.ir.node import Node
from tapejit.ir.structural import GuardFailed, bound_type, call, guard, reread
from tapejit.runtime.executable import Executable, RunState, executable_for, steps_of
from tapejit.runtime.result_containers import can_be_native
from tapejit.runtime.sentinels import DEVICE_ARRAYS, MISS
from tapejit.tape.commits import (
    MIDST,
    Overtaken,
    all_at_once,
    held,
    in_order,
    note_assigned,
    replace_all,
)
from tapejit.tape.recording import Recording
from tapejit.tape.variable import JOURNAL, Variable, warn_tracked
from tapejit.tensor.dispatch import TAPES, described_node, muted
from tapejit.tensor.recorder import Observer
from tapejit.tensor.tensor import Provenance, Tensor, another, tensor_of
from tapejit.tracing import report
from tapejit.tracing.bound_variables import Binding, Passed
from tapejit.tracing.native_call import native_entry
from tapejit.tracing.on_device import are_alone, device_of_values, let_follow
from tapejit.tracing.reachable import Reached
from tapejit.tracing.signature import FLOATS, FastKey, is_scalar
from tapejit.tracing.trace import Traced, host_array
from tapejit.transforms.partition import partition
from tapejit.transforms.vjp import carries_gradient, passes_gradient, vjp_graph

if TYPE_CHECKING:
    from tapejit.runtime.cuda.devices import Device

_new = Tensor.__new__


class WrongPath(Exception):
    """A guard of this path does not hold: which one, and the answer it met."""

    def __init__(self, at: int, answer: bool | int) -> None:
        super().__init__(at, answer)
        self.at = at
        self.answer = answer


_tensor_held = attrgetter("_tensor")
_array_held = attrgetter("_tensor._value")


class TracedPath:
    """A traced Graph with everything a call needs.

    answers    what its guards demand; places, where they were asked
    adapts_sizes  whether which sizes it asks about depends on the sizes
    takes      the leaves of the arguments that are the Graph's first inputs
    bindings   the variables, in the order of the Graph's inputs

    `leaves` are the arguments it was traced with, `reached` the variables that the
    function gets hold of by itself, None if that is not known. `positions` says where
    among the leaves the variables are.
    """

    def __init__(
        self,
        traced: Traced,
        takes: tuple[int, ...],
        positions: dict[int, int],
        compile: str | None = None,
        *,
        leaves: Sequence[Any] = (),
        reached: Reached | None = None,
    ) -> None:
        graph = traced.graph
        self._compile = compile
        self.graph = graph
        self.takes = takes  # some may be floats that the key names by value
        self.answers = traced.answers
        self.places = traced.places
        self.adapts_sizes = traced.adapts_sizes
        self.asked = traced.asked
        self.structure = traced.structure
        self.results = traced.results
        self.captured = traced.captured
        self._taken = traced.taken
        self._captured_from = traced.made
        self.bindings = tuple(
            Binding(slot, positions.get(id(slot.variable))) for slot in traced.slots
        )
        self.has_variable_arguments = bool(positions)
        self._owned = {id(b.variable) for b in self.bindings if b.variable is not None}
        touched = {id(slot.variable) for slot in traced.slots} | traced.pinned
        self._told_apart: frozenset[int] = frozenset()
        fixed = touched
        if reached is not None and reached.tells_apart:
            self._told_apart = reached.variables
        elif reached is not None:
            fixed = touched & (reached.variables | traced.pinned)
        self._passed = [
            Passed(
                position,
                leaves[position] if known in fixed else None,
                is_pinned=known in traced.pinned,
                facts={
                    fact: getattr(leaves[position], fact)
                    for fact in traced.facts_seen.get(known, ())
                },
            )
            for known, position in positions.items()
        ]
        self._fixed = [b.variable for b in self.bindings]
        self._is_fixed = all(variable is not None for variable in self._fixed)
        written = [b for b in self.bindings if b.is_written]
        self._writes = tuple(at for at, b in enumerate(self.bindings) if b.is_written)
        self._written: tuple[Any, ...] = ()
        if self._is_fixed:
            self._written = in_order([b.variable for b in written])
        self._captured_values = tuple(x._value for x in traced.captured)
        self._is_single = traced.structure is LEAF
        self._unused = _unused(graph)
        self._on_cpu = traced.on_cpu
        self.on_devices: dict[tuple[str, Graph], Any] = {}
        places = {id(slot): at for at, slot in enumerate(traced.slots)}
        self._unread = [(at, places[id(slot)]) for at, slot in traced.unread.items()]
        observe = report.pass_observer()
        self._executable: Executable = executable_for(graph, observe, compile)
        self._arguments = len(traced.arguments)
        self._shared: tuple[int, ...] | None = None
        # Whether its native entry makes all that is returned, containers too.
        self.is_wrapped = can_be_native(self.structure)
        self._entry: Any = MISS  # until it is asked for
        self._checking: dict[Graph, Executable] = {}
        self._forwards: dict[
            tuple[bool, ...], tuple[Graph, Executable, str | None]
        ] = {}

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Whether the variables among the arguments are such as it was traced for.

        One that the function also reaches by itself, or whose identity mattered or
        may matter, needs a path of its own.
        """
        for passed in self._passed:
            x = leaves[passed.position]
            if not passed.fits(x) or id(x) in self._owned:
                return False
            if passed.variable is None and id(x) in self._told_apart:
                return False
        return True

    @property
    def written(self) -> list[Variable]:
        """The variables it writes, but for those that are arguments."""
        found = [b.variable for b in self.bindings if b.is_written]
        return [variable for variable in found if variable is not None]

    @property
    def assigned(self) -> list[tuple[str, Node]]:
        """The names of the variables it writes, and the Nodes of their next values."""
        inputs = [self.graph.inputs[len(self.takes) + at] for at in self._writes]
        names = [x.name or "a variable" for x in inputs]
        return [*zip(names, self.graph.outputs[self.results :], strict=True)]

    def generality(self) -> int:
        """How many variables among the arguments may be any."""
        return sum(passed.variable is None for passed in self._passed)

    def compare(self, other: TracedPath) -> None:
        """Learn from another path with an equal Graph, traced with other variables.

        What it neither was given nor reached is reached through the argument alone,
        so any variable can take its place.
        """
        if self._executable is not other._executable:
            return
        given = {id(p.variable()) for p in other._passed if p.variable is not None}
        for passed in self._passed:
            if passed.variable is None or passed.is_pinned:
                continue
            known = id(passed.variable())
            if known not in given and known not in other._owned:
                passed.variable = None

    def check(self, arrays: list[Any], leaves: Sequence[Any]) -> None:
        """Raise WrongPath if a call on these arrays would not take this path.

        Only what the guards ask for is computed: nothing is committed, nothing shown.
        """
        link = self.graph.effects
        while link is not None and link.op is not guard:
            link = link.inputs[-1] if link.inputs else None
        if link is None:
            return
        guards = Graph(self.graph.name, self.graph.inputs, (), link)
        executable = Executable(guards)
        variables: list[Any] = [
            leaves[b.position] if b.position is not None else b.variable
            for b in self.bindings
        ]
        values = all_at_once(_array_held, variables)
        try:
            given = [*arrays, *values, *self._captured_values]
            executable.run([host_array(x) for x in given])
        except Exception as error:  # of any op; raised again, explained
            raise self._explained(error, guards, executable, leaves) from None

    def run_short(self, short: FastKey) -> Any:
        """Call on the leaves of a short call, natively if that is possible."""
        native = self.native
        found = MISS if native is None else native(*short.taken)
        if found is not MISS:
            return self.put_together(found)
        return self.run(short.arrays, short.leaves, short.foreign)

    def run(self, arrays: list[Any], leaves: Sequence[Any], foreign: list[Any]) -> Any:
        """Call on these arrays, a list that is used up.

        `foreign` are those whose memory is not ours.
        """
        if self._is_fixed:
            variables: list[Any] = self._fixed
            written = self._written
        else:
            variables = [
                leaves[b.position] if b.position is not None else b.variable
                for b in self.bindings
            ]
            written = in_order([variables[at] for at in self._writes])
        if not written:
            return self._run(arrays, leaves, variables, foreign)
        with held([variable._lock for variable in written]):
            try:
                return self._run(arrays.copy(), leaves, variables, foreign)
            except Overtaken:
                pass
            while True:
                try:
                    with muted():  # what is shown was shown
                        return self._run(arrays.copy(), leaves, variables, foreign)
                except Overtaken:
                    pass

    def _run(
        self,
        arrays: list[Any],
        leaves: Sequence[Any],
        variables: list[Any],
        foreign: list[Any],
    ) -> Any:
        if DEVICE_ARRAYS and variables:
            let_follow(variables, [*arrays, *self._captured_values])
        if TAPES.get():
            recorded = self._run_recorded(arrays, leaves, variables)
            if recorded is not MISS:
                return recorded
        if DEVICE_ARRAYS:
            elsewhere = self._run_elsewhere(arrays, leaves, variables)
            if elsewhere is not MISS:
                return elsewhere
        executable = self._executable
        has_missed = not self._writes
        is_checked = NUMERICS and config.check_numerics
        if is_checked:
            executable = self._checked(self.graph)
        try:
            if not is_checked and self._executable.state is RunState.WAITING:
                self._executable.prepare()
                has_missed = False
            entry = None if has_missed else self.native
            # First: what Python refers to is not written over.
            found: Any = MISS if entry is None else entry(*self._taken_from(leaves))
            if found is not MISS:
                return self.put_together(found)
            values = arrays
            entry_values = all_at_once(_tensor_held, variables) if variables else []
            values += [x._value for x in entry_values]
            if self._captured_values:
                values += self._captured_values
            found = executable.run(values)
        except Exception as error:  # of any op; raised again, explained
            raise self._explained(error, self.graph, executable, leaves) from None
        if foreign and self._may_share():
            self._separate(found, foreign)
        if self._writes:
            self._commit(variables, entry_values, found)
        if self._unread and TAPES.get():
            return self._results([Tensor(value) for value in found], variables)
        if self._is_single:
            result = _new(Tensor)
            result._value = found[0]
            result._id = 0
            result._made = None
            return result
        return tree.unflatten(
            self.structure, [Tensor(value) for value in found[: self.results]]
        )

    # On a device

    def _run_elsewhere(
        self,
        arrays: Sequence[Any],
        leaves: Sequence[Any],
        variables: Sequence[Variable],
    ) -> Any:
        """Run on the device where the inputs are; MISS if that is the CPU."""
        held = all_at_once(_tensor_held, variables) if variables else []
        values = [*arrays, *[x._value for x in held], *self._captured_values]
        device = device_of_values(self.graph, values)
        if device is None:
            return MISS
        executable: Any = None
        try:
            executable = self._executable_on(device, self.graph)
            found = self._run_on(executable, values, held)
        except Exception as error:  # of any op; raised again, explained
            raise self._explained(error, self.graph, executable, leaves) from None
        if self._writes:
            self._commit(variables, held, found)
        return self._results([tensor_of(x) for x in found], variables)

    def _executable_on(self, device: Device, graph: Graph) -> Any:
        """What runs a Graph on a device: NumPy, while numerics are checked."""
        from tapejit.runtime.cuda.executable import HostExecutable, device_executable

        if NUMERICS and config.check_numerics:
            return HostExecutable(self._checked(graph), device)
        found = device_executable(graph, device)
        self.on_devices[device.name, graph] = found  # as long as this is there
        return found

    def _run_on(
        self, executable: Any, values: list[Any], held: Sequence[Tensor]
    ) -> list[Any]:
        """The outputs of a run on a device, constants on the CPU among them."""
        first = len(self.takes)
        alone = [False] * len(values)
        if held:
            alone[first : first + len(held)] = are_alone(held, values, first)
        written = enumerate(self._writes, self.results)
        found: list[Any] = executable.run(
            values, {out: first + at for out, at in written}, alone
        )
        for at, value in self._on_cpu.items():
            found[at] = value
        return found

    def _taken_from(self, leaves: Sequence[Any]) -> list[Any]:
        """The arguments that are inputs, as a native entry takes them."""
        given = [leaves[at] for at in self.takes]
        return [
            Tensor(np.float64(x)) if isinstance(x, FLOATS) else _as_input(x)
            for x in given
        ]

    @property
    def executable(self) -> Executable:
        """What runs a call that no tape looks at."""
        return self._executable

    def put_together(self, found: Any) -> Any:
        """What a call returns whose native entry has given `found`."""
        return found if self.is_wrapped else tree.unflatten(self.structure, found)

    def finished(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """A native entry, and what is left to do in Python: unusual containers."""
        if self.is_wrapped:
            return native

        structure = self.structure

        def call(*args: Any, **kwargs: Any) -> Any:
            found = native(*args, **kwargs)
            return found if found is MISS else tree.unflatten(structure, found)

        return call

    def updated(self, pairs: set[tuple[int, int]]) -> dict[int, int]:
        """The variables whose next value may be written over the present one.

        `pairs` are the numbers of outputs and inputs of which that is so; the result
        has those of variables among the outputs and among the inputs.
        """
        if not self._is_fixed or self.has_variable_arguments:
            return {}  # such calls have no native entry
        first = len(self.takes)
        found = {out: first + at for out, at in enumerate(self._writes, self.results)}
        return {out: x for out, x in found.items() if (out, x) in pairs}

    def _checked(self, graph: Graph) -> Executable:
        """What runs a Graph of this path while numerics are checked."""
        found = self._checking.get(graph)
        if found is None:
            checking = Executable(graph, when="now", checks=True)
            found = self._checking.setdefault(graph, checking)
        return found

    @property
    def native(self) -> Callable[..., Any] | None:
        """A built-in function of the inputs that does what `run` does, or misses.

        Unless all `is_wrapped`, it gives a list of Tensors.
        """
        if NUMERICS and config.check_numerics:
            return None
        if self._entry is MISS:
            if self._executable.is_waiting:
                return None  # nothing is compiled yet
            with resting():  # modules are imported
                self._entry = native_entry(self)
        entry: Callable[..., Any] | None = self._entry
        return entry

    def _commit(
        self,
        variables: Sequence[Variable],
        held: Sequence[Tensor],
        found: Sequence[Any],
    ) -> None:
        """Put the assigned values in place: all of them at once.

        Raises Overtaken, and does nothing, if a variable does not hold what it `held`
        when it was read.
        """
        written = [variables[at] for at in self._writes]
        before = [held[at] for at in self._writes]
        new = [
            variable._holding(value)
            for variable, value in zip(written, found[self.results :], strict=False)
        ]
        journal = JOURNAL.get()
        noted = {}
        if journal is not None:  # called by a function that runs eagerly
            pairs = zip(written, before, strict=True)
            noted = {id(x): (x, then) for x, then in pairs if id(x) not in journal}
            journal.update(noted)
        if not replace_all(written, before, new):
            if journal is not None:
                for key in noted:
                    del journal[key]
            raise Overtaken
        if MIDST:
            note_assigned(written)

    def _may_share(self) -> tuple[int, ...]:
        """The results that may be a view of an argument."""
        if self._shared is None:
            executable = self._executable
            self._shared = ()
            if executable.code is None:  # native code makes arrays of its own
                # Asked of what really runs: there `x * 1` is x itself.
                self._shared = _may_share(executable.graph, self._arguments)
        return self._shared

    def _separate(self, found: list[Any], foreign: Sequence[Any]) -> None:
        """Copy what shares memory with an array that its owner may change."""
        for at in self._may_share():
            if any(np.may_share_memory(found[at], array) for array in foreign):
                found[at] = np.array(found[at])[()]

    def _explained(
        self,
        error: Exception,
        graph: Graph,
        executable: Executable | None,
        leaves: Sequence[Any],
    ) -> Exception:
        """A failure in terms of the user's program."""
        step = None if executable is None else executable.failed_step(error)
        if step is None:
            return error
        steps = steps_of(graph)
        node = steps[step]
        if isinstance(error, GuardFailed):
            guards = [x for x in steps if x.op is guard]
            return WrongPath(guards.index(node), error.found)
        made = self._made(leaves)
        sizes = self._sizes(leaves)
        if sizes:
            node, error = _in_numbers(node, error, sizes, made)
        return described_node(error, node, made)

    def _sizes(self, leaves: Sequence[Any]) -> dict[str, int]:
        """The symbolic sizes of the Graph in this call."""
        pairs = [
            (x.shape, leaves[at].shape)
            for x, at in zip(self.graph.inputs, self.takes, strict=False)
            if not x.tensor_type.is_static
        ]
        return bind_shapes([x for x, _ in pairs], [actual for _, actual in pairs])

    def _made(self, leaves: Sequence[Any]) -> dict[Node, Provenance | None]:
        """Where the inputs of this call came from, for messages."""
        made: dict[Node, Provenance | None] = {
            x: getattr(leaves[at], "_made", None)
            for x, at in zip(self.graph.inputs, self.takes, strict=False)
        }
        rest = self.graph.inputs[len(self.takes) :]
        for x, binding in zip(rest, self.bindings, strict=False):
            at = binding.position
            variable: Any = binding.variable if at is None else leaves[at]
            made[x] = variable._tensor._made
        made.update(self._captured_from)
        return made

    # Under tapes

    def _run_recorded(
        self, arrays: list[Any], leaves: Sequence[Any], variables: Sequence[Variable]
    ) -> Any:
        """Run and record one `call`; MISS if no tape is concerned."""
        thread = get_ident()
        observers = [tape for tape in TAPES.get() if isinstance(tape, Observer)]
        tapes: list[Any] = [tape for tape in TAPES.get() if tape.thread == thread]
        tapes += observers
        if not tapes:
            return MISS
        tensors = self._tensors(arrays, leaves)
        marks = [
            (tape, tape.state, len(tape.order))
            for tape in tapes
            if (self.answers or self._writes) and isinstance(tape, Recording)
        ]
        held = all_at_once(_tensor_held, variables)
        for binding, variable, x in zip(self.bindings, variables, held, strict=True):
            if binding.was_read:
                variable._note_read(x)
        tensors += held
        tensors.extend(self.captured)
        for at in self._unused:  # being passed is no use: no tape hears of them
            tensors[at] = another(tensors[at])
        watched = tuple(
            [
                x._id != 0
                and any(x._id in t.nodes or x._id in t.pending for t in tapes)
                for x in tensors
            ]
        )
        if True not in watched and not observers:
            return MISS
        graph, executable, assigned = self._forward(watched)
        if NUMERICS and config.check_numerics:
            executable = self._checked(graph)
        if assigned is not None:
            warn_tracked(assigned)
        values = [x._value for x in tensors]
        device = device_of_values(graph, values) if DEVICE_ARRAYS else None
        try:
            if device is None:
                found = executable.run(values)
            else:
                executable = self._executable_on(device, graph)
                found = self._run_on(executable, values, ())
        except Exception as error:  # of any op; raised again, explained
            explained = self._explained(error, graph, executable, leaves)
            if isinstance(explained, WrongPath):
                for recording, state, count in marks:  # another path reads its own
                    recording.forget_reads(state, count)
            raise explained from None
        results = tuple([tensor_of(value) for value in found])
        if self._writes:
            try:
                self._commit(variables, held, found)
            except Overtaken:
                for recording, state, count in marks:
                    recording.forget_reads(state, count)
                raise
        for tape in tapes if results else ():
            tape.record(call, tensors, {"graph": graph}, results)
        return self._results(results, variables)

    def _results(self, found: Sequence[Tensor], variables: Sequence[Variable]) -> Any:
        """What the function returns; an unused result of `assign` is no read yet."""
        results = list(found[: self.results])
        for at, which in self._unread:
            variable = variables[which]
            made = Provenance("assign", None, variable._name)
            results[at] = variable._pending(tensor_of(results[at]._value, made))
        return tree.unflatten(self.structure, results)

    def _tensors(self, arrays: Sequence[Any], leaves: Sequence[Any]) -> list[Tensor]:
        """The arguments as Tensors: those that were given, copies of foreign arrays."""
        tensors = []
        for at, array in zip(self.takes, arrays, strict=True):
            x = leaves[at]
            tensors.append(x if isinstance(x, Tensor) else Tensor(np.array(array)[()]))
        return tensors

    @property
    def was_recorded(self) -> bool:
        """Whether a tape has recorded a call."""
        return bool(self._forwards)

    def saved(self, watched: tuple[bool, ...]) -> tuple[Node, ...]:
        """What a tape keeps of a call whose inputs are watched so."""
        return self._forward(watched)[0].outputs[len(self.graph.outputs) :]

    def _forward(
        self, watched: tuple[bool, ...]
    ) -> tuple[Graph, Executable, str | None]:
        """The Graph with residuals for gradients of the watched inputs.

        Also the first method that assigns what a tape of these inputs would track.
        """
        found = self._forwards.get(watched)
        if found is None:
            wrt = [
                x
                for x, flag in zip(self.graph.inputs, watched, strict=True)
                if flag and carries_gradient(x.type)
            ]
            joint = vjp_graph(self.graph, wrt=wrt)
            forward, _ = partition(
                joint, inputs=len(self.graph.inputs), outputs=len(self.graph.outputs)
            )
            assigned = assigns_tracked(self._taken, wrt)
            report.report_forward(forward, len(self.graph.outputs))
            observe = report.pass_observer()
            found = (forward, executable_for(forward, observe, self._compile), assigned)
            self._forwards[watched] = found
        return found


def assigns_tracked(
    taken: Sequence[tuple[Node, str]], watched: Sequence[Node]
) -> str | None:
    """The first method that was given a value which depends on what is watched."""
    tracked = set(watched)
    for node in topological_order([value for value, _ in taken], stop=tracked):
        inputs = node.inputs[1:] if node.op is reread else node.inputs
        if passes_gradient(node) and not tracked.isdisjoint(inputs):
            tracked.add(node)
    return next((name for value, name in taken if value in tracked), None)


def _in_numbers(
    node: Node,
    error: Exception,
    sizes: dict[str, int],
    made: dict[Node, Provenance | None],
) -> tuple[Node, Exception]:
    """A Node that failed and its error, as if it had been traced for these sizes.

    A type rule may refuse the actual sizes where it took the symbolic ones.
    """
    inputs = []
    for x in node.inputs:
        kind = bound_type(x.type, sizes)
        inputs.append(Node(x.op, x.inputs, x.attrs, kind, x.origin))
        made[inputs[-1]] = made.get(x)
    attrs = {name: bind_dims(value, sizes) for name, value in node.attrs.items()}
    numbers = Node(node.op, tuple(inputs), attrs, node.type, node.origin)
    if not isinstance(error, TapejitError):
        try:
            node.op.infer_type([x.type for x in inputs], attrs)
        except TapejitError as better:
            return numbers, better
    return numbers, error


def _as_input(x: Any) -> Any:
    return Tensor(x) if is_scalar(x) else x


def _unused(graph: Graph) -> tuple[int, ...]:
    """The inputs that nothing depends on."""
    used = {x for node in graph.nodes for x in node.inputs}.union(graph.outputs)
    return tuple(at for at, x in enumerate(graph.inputs) if x not in used)


def _may_share(graph: Graph, arguments: int) -> tuple[int, ...]:
    """The outputs that may be a view of an argument."""
    sharing: set[Node] = set(graph.inputs[:arguments])
    for node in graph.nodes:
        # Elementwise operations write a new array.
        if node.op.deriv is None and any(x in sharing for x in node.inputs):
            sharing.add(node)
    return tuple(at for at, x in enumerate(graph.outputs) if x in sharing)
