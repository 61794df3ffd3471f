"""Looking at what a function runs: its Graph, and a report on it.

A question finds exactly what a call with the same arguments would run, traced now if
need be, in the same way, but where the call would run a path, only its guards are asked
whether it is the right one. So nothing happens: no variable changes, no effect is
performed.

Start reading at `chosen`, then `Explanation`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tapejit.base.config import config
from tapejit.base.dims import Dim
from tapejit.base.errors import ArgumentError, UnsupportedError
from tapejit.base.origin import describe
from tapejit.base.types import TOKEN, TensorType
from tapejit.ir.graph import Graph
from tapejit.ir.node import Node
from tapejit.ir.structural import guard
from tapejit.runtime.executable_report import Inside, OnNumPy, timing_text
from tapejit.tensor.dispatch import TRACE
from tapejit.tracing import report
from tapejit.tracing.bound_variables import Binding
from tapejit.tracing.cache import Specialization, tracing
from tapejit.tracing.function import Function
from tapejit.tracing.inside_of_call import (
    AUTO,
    device_of_call,
    inside_of_call,
    seconds_of_call,
)
from tapejit.tracing.path import TracedPath
from tapejit.tracing.signature import describe_key, numbers_of
from tapejit.transforms.vjp import carries_gradient

if TYPE_CHECKING:
    from tapejit.runtime.cuda.inside import ReadBack
    from tapejit.targets.cpu.kernel_report import KernelReport

WIDTH: Final = 80  # columns of a report


class Asked(NamedTuple):
    """What a question is about; no Path if that runs eagerly, no leaves if no call."""

    entry: Specialization
    path: TracedPath | None
    leaves: Sequence[Any] | None = None


def chosen(
    function: Function[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Asked:
    """What a call with these arguments runs."""
    if TRACE.get() is not None:
        raise UnsupportedError(
            f"{function.__name__} is looked at while a function is traced",
            help="ask outside of functions",
        )
    cache = function._cache
    if function._specs is not None:
        args, kwargs = function._specs.conform(function._binder, args, kwargs)
    with tracing():
        call = function._bound(cache, numbers_of(config.current()), args, kwargs)
        path = function._call_by_full_key(cache, call, args, kwargs, looks=True)
        entry = cache.last
    assert entry is not None
    return Asked(entry, None if entry.is_eager else path, call.leaves)


def graph(
    function: Function[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Graph:
    """The Graph of a call, or of the only one there was."""
    entry, path, _ = asked(function, args, kwargs)
    if path is None:
        raise UnsupportedError(
            f"{function.__name__} runs eagerly, so there is no Graph: it {entry.reason}"
        )
    return path.graph


def inside(
    function: Function[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    target: str = AUTO,
) -> Inside:
    """The kernels of a call; if it runs without native code, those it would have."""
    entry, path, leaves = asked(function, args, kwargs)
    if path is None:
        raise UnsupportedError(
            f"{function.__name__} runs eagerly, so it has no kernels: it {entry.reason}"
        )
    found, _ = inside_of_call(entry, path, leaves, target)
    return found


def own_keyword(
    function: Function[..., Any], kwargs: dict[str, Any], name: str, value: Any
) -> str:
    """What a question's keyword says, unless the function has one of that name."""
    if name not in function._binder.signature.parameters:
        return str(value)
    if not (isinstance(value, str) and value == AUTO):
        kwargs[name] = value
    return AUTO


def asked(
    function: Function[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Asked:
    """What these arguments select; without any, what there is to select."""
    parameters = function._binder.signature.parameters.values()
    if args or kwargs or not parameters:
        return chosen(function, args, kwargs)
    found = [
        Asked(entry, path)
        for entry in list(function._cache.entries.values())
        for path in (*entry.paths, *([None] if entry.is_eager else []))
    ]
    if len(found) == 1:
        return found[0]
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if all(p.default is not p.empty or p.kind in optional for p in parameters):
        return chosen(function, args, kwargs)
    what = "has not been traced"
    if found:
        listed = "\n  ".join(function.signatures())
        what = f"has {len(found)} Graphs, for\n  {listed}"
    raise ArgumentError(
        f"{function.__name__} {what}", help="give the arguments of a call"
    )


class Guard(NamedTuple):
    """A question that the body asked, the answer, and where."""

    answer: bool | int
    where: str


class Effect(NamedTuple):
    """Something a call does beside its results, and where."""

    name: str
    where: str


class VariableUse(NamedTuple):
    """A variable that a call uses."""

    name: str
    type: TensorType
    is_read: bool
    is_written: bool
    in_place: bool = False  # if nobody else refers to its value


class Explanation:
    """What a call of a function runs; made by `Function.explain`.

    signature    the kind of call
    reason       why it runs eagerly, as a half sentence; None if it does not
    graph        what it runs, None if it runs eagerly
    ops          how many Nodes there are of each op, the most frequent first
    arguments    name -> type of the arguments that are inputs
    variables    the variables it reads and writes, as `VariableUse`s
    captured     the types of the tensors that the body reaches by itself
    results      path -> type of what it returns
    guards       the questions whose answers the Graph is for, as `Guard`s
    effects      what it does beside that, as `Effect`s
    paths        how many ways through the body are known for this signature
    executable   how the Graph is run: "interpreted" or "native"
    kernels      if it is native, its kernels as `KernelReport`s
    device       where these are: "cpu", or a GPU and what kind it is
    on_numpy     then also the Nodes that NumPy performs all the same, with reasons
    reads_back   on a GPU: values that the host waits for in the middle of a call
    arena_bytes  then also the working memory of a call
    seconds      what compiling took, by stage; {} if it was on disk, None if not done

    Its text is a report:

    >>> import tapejit as tj
    >>> w = tj.Variable([1.0, 2.0], name="w")
    >>> @tj.function
    ... def step(x):
    ...     w.assign_sub(0.5 * x)
    ...     return tj.sum(w * x)
    >>> step.explain(tj.ones(2))  # nothing is run, or compiled
    step(x: f32[2]): 5 Nodes, native in 1 kernel; path 1 of 1
      arguments  x: f32[2]
      variables  w: f32[2] read and written in place
      returns    f32[]
      Nodes      mul 2, reread 1, sub 1, sum 1
      kernels    kernel_0: i<2 by 2>; mul 2, sub, sum; reads 16 bytes, writes 12
                 bytes, 8 flop
      memory     64 bytes to work in
      compiled   not yet
    """

    def __init__(
        self,
        function: Function[..., Any],
        asked: Asked,
        target: str = AUTO,
    ) -> None:
        entry, path, _ = asked
        self.name = function.__name__
        self.signature = describe_key(function._binder, entry.key)
        self.reason = entry.reason if path is None else None
        self.graph = None if path is None else path.graph
        self.paths = len(entry.paths)
        self.executable = "plain Python" if path is None else "interpreted"
        self._inside: Inside | None = None
        self.on_numpy: list[OnNumPy] = []
        self.reads_back: Sequence[ReadBack] = ()
        self.device = "cpu"
        self.arena_bytes = 0
        self.seconds: dict[str, float] | None = None
        self.ops: dict[str, int] = {}
        self.arguments: dict[str, TensorType] = {}
        self.variables: tuple[VariableUse, ...] = ()
        self.captured: tuple[TensorType, ...] = ()
        self.results: dict[str, TensorType] = {}
        self.guards: tuple[Guard, ...] = ()
        self.effects: tuple[Effect, ...] = ()
        self._path = path
        self._number = 0
        if path is not None:
            self._number = entry.paths.index(path) + 1
            self._describe(path)
            if path.executable.is_native or target != AUTO or on_gpu(asked):
                self._describe_kernels(path, asked, target)

    @property
    def kernels(self) -> list[KernelReport]:
        """Each kernel in numbers; these take longer than the rest, so not before."""
        return [] if self._inside is None else self._inside.kernels

    def _describe(self, path: TracedPath) -> None:
        nodes = report.operations(path.graph)
        counts = Counter(x.op.name for x in nodes)
        self.ops = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        count = len(path.takes)
        self.arguments = {
            x.name or "": x.tensor_type for x in path.graph.inputs[:count]
        }
        entries = path.graph.inputs[count : count + len(path.bindings)]
        self.variables = tuple(
            VariableUse(_variable_name(binding, x), x.tensor_type, *_uses(binding))
            for binding, x in zip(path.bindings, entries, strict=True)
        )
        self.captured = tuple(x._type for x in path.captured)
        names = path.structure.paths()
        outputs = path.graph.outputs[: path.results]
        self.results = {
            name: x.tensor_type for name, x in zip(names, outputs, strict=True)
        }
        self.guards = tuple(
            Guard(answer, describe(place))
            for answer, place in zip(path.answers, path.places, strict=True)
        )
        self.effects = tuple(
            Effect(x.op.name, describe(x.origin) if isinstance(x.origin, tuple) else "")
            for x in nodes
            if x.type is TOKEN and x.op is not guard
        )

    def _describe_kernels(self, path: TracedPath, asked: Asked, target: str) -> None:
        self.executable = "native"
        entry, _, leaves = asked
        found, self.device = inside_of_call(entry, path, leaves, target)
        self._inside = found
        places = path.updated(found.updates).values()
        self.variables = tuple(
            x._replace(in_place=at in places)
            for at, x in enumerate(self.variables, len(path.takes))
        )
        self.on_numpy = found.on_numpy
        self.reads_back = found.reads_back
        self.arena_bytes = found.arena_size
        self.seconds = seconds_of_call(entry, path, self.device)

    @property
    def predicted(self) -> dict[str, float]:
        """Name of a GPU -> seconds for all kernels at best; {} on the CPU.

        A prediction of a model, which no GPU has confirmed.
        """
        return {} if self._inside is None else self._inside.predicted

    @property
    def residuals(self) -> tuple[TensorType, ...]:
        """What a tape that watches every input keeps of a call, besides the inputs.

        >>> import tapejit as tj
        >>> @tj.function
        ... def energy(x):
        ...     return tj.sum(tj.exp(x) ** 2)
        >>> [str(x) for x in energy.explain(tj.ones(3)).residuals]
        ['f32[3]']
        """
        if self._path is None:
            return ()
        inputs = self._path.graph.inputs
        saved = self._path.saved(tuple(carries_gradient(x.type) for x in inputs))
        return tuple(x.tensor_type for x in saved if x not in inputs)

    @property
    def residual_bytes(self) -> int:
        """The memory of the residuals; symbolic sizes count as 1."""
        return sum(map(_bytes, self.residuals))

    def __str__(self) -> str:
        head = f"{self.name}{self.signature}: "
        if self._path is None:
            head += f"runs eagerly, it {self.reason}"
        else:
            count = sum(self.ops.values())
            is_all_numpys = self.executable == "native" and not self.kernels
            how = "performed by NumPy" if is_all_numpys else self.executable
            if self.device != "cpu" and self.kernels:
                how = f"on {self.device}"
            head += f"{_counted(count, 'Node')}, {how}"
            if self.kernels:
                head += f" in {_counted(len(self.kernels), 'kernel')}"
            head += "; "
            head += f"path {self._number} of {self.paths}"
        rows = [
            ("arguments", [f"{name}: {kind}" for name, kind in self.arguments.items()]),
            ("variables", [_variable_text(x) for x in self.variables]),
            ("captured", [f"{x} {_size_text(_bytes(x))}" for x in self.captured]),
            (
                "returns",
                [f"{k}: {x}" if k else str(x) for k, x in self.results.items()],
            ),
            ("Nodes", [f"{name} {count}" for name, count in self.ops.items()]),
        ]
        lines = textwrap.wrap(head, WIDTH, subsequent_indent="    ")
        for title, parts in rows:
            lines += _row(title, parts)
        for at, text in enumerate(_guard_texts(self.guards)):
            lines += _sentence("" if at else "guards", text)
        for at, x in enumerate(self.effects):
            lines += _sentence("" if at else "effects", f"{x.name} at {x.where}")
        for at, kernel in enumerate(self.kernels):
            lines += _sentence("" if at else "kernels", str(kernel))
        for at, node in enumerate(self.on_numpy):
            lines += _sentence("" if at else "NumPy", str(node))
        for at, value in enumerate(self.reads_back):
            lines += _sentence("" if at else "waits", str(value))
        if self.kernels:
            lines += _sentence("memory", f"{self.arena_bytes} bytes to work in")
            if self.predicted:
                lines += _sentence("predicted", prediction_text(self.predicted))
            if self._inside is not None and self._inside.missing:
                lines += _sentence("registers", f"unknown: {self._inside.missing}")
            took = "not yet" if self.seconds is None else timing_text(self.seconds)
            lines += _sentence("compiled", took)
        if self._path is not None and self._path.was_recorded:
            saved = _counted(len(self.residuals), "value")
            size = _size_text(self.residual_bytes)
            lines += _sentence("tapes", f"keep {saved} {size} besides the inputs")
        return "\n".join(lines)

    __repr__ = __str__


def on_gpu(asked: Asked) -> bool:
    """Whether a call runs on a GPU."""
    return asked.path is not None and bool(device_of_call(asked.entry, asked.path))


def prediction_text(predicted: Mapping[str, float]) -> str:
    """`A100 2.6 us, H100 1.9 us at best`, and whose word that is."""
    times = [f"{name} {1e6 * seconds:.1f} us" for name, seconds in predicted.items()]
    return f"{', '.join(times)} at best: a model says so, no GPU has confirmed it"


def _row(title: str, parts: Sequence[str]) -> list[str]:
    """One entry of a report; the words of a part stay together."""
    # No-break spaces are what `wrap` does not break at.
    text = ", ".join(part.replace(" ", "\xa0") for part in parts)
    return [line.replace("\xa0", " ") for line in _sentence(title, text)]


def _sentence(title: str, text: str) -> list[str]:
    """One entry of a report that may be broken anywhere; none if it is empty."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"  {title:<9}  ",
        subsequent_indent=" " * 13,
        break_on_hyphens=False,
    )


def _guard_texts(guards: Sequence[Guard]) -> list[str]:
    """`True 3 times, False at train.py:14 ...`: a loop asks one question often."""
    texts = []
    for where, group in groupby(guards, key=attrgetter("where")):
        answers = []
        for answer, equal in groupby(x.answer for x in group):
            count = len(list(equal))
            answers.append(f"{answer} {count} times" if count > 1 else str(answer))
        texts.append(f"{', '.join(answers)} at {where}")
    return texts


def _variable_name(binding: Binding, entry: Node) -> str:
    if binding.variable is not None:
        return binding.variable.name
    return entry.name or "variable"


def _uses(binding: Binding) -> tuple[bool, bool]:
    return binding.was_read, binding.is_written


def _variable_text(x: VariableUse) -> str:
    written = "written in place" if x.in_place else "written"
    uses = ["read"] * x.is_read + [written] * x.is_written
    return f"{x.name}: {x.type} {' and '.join(uses)}".rstrip()


def _bytes(x: TensorType) -> int:
    count = 1
    for size in x.shape:
        count *= 1 if isinstance(size, Dim) else size
    return count * x.dtype.itemsize


def _size_text(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"({count / factor:.1f} {unit})"
    return f"({count} bytes)"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
