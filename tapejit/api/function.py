"""`@tapejit.function`: a Python function traced once per kind of argument.

A `Function` holds a Python function and a `Cache`. A call becomes a key
(`signature.py`) that selects an `Entry`; an Entry holds the Paths traced for it
(`path.py`), usually one, several if the body asked for values. The first call with a
key, and the first that answers a guard differently, runs the body in a `FunctionTrace`;
every other call runs an Executable. Where a Graph cannot stand for the body, and when
functions are told to run eagerly, the body runs as plain Python, with the same results
and as atomic.

Bound to an instance, a Function has one Cache per instance, which dies with it.

Start reading at `Function.__call__`, then `Entry.run`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from time import perf_counter
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    TypeVar,
    overload,
)
from weakref import ref

import numpy as np

from tapejit import tree
from tapejit.api import reporting
from tapejit.api.dispatch import TRACE, TRACED_NUMBERS, alias, as_operand, warn_user
from tapejit.api.eager_mode import hinted_breakpoints
from tapejit.api.function_trace import FunctionTrace, Traced, run_traced
from tapejit.api.path import Path, WrongPath
from tapejit.api.relaxation import InputSignature, Relaxation, symbolic_types
from tapejit.api.signature import (
    DTYPES,
    FLOAT,
    Binder,
    Call,
    describe_key,
)
from tapejit.api.tape import SCOPE
from tapejit.api.tensor import Made, Tensor
from tapejit.api.traced_number import TracedFloat
from tapejit.api.variable import JOURNAL, Variable
from tapejit.config import config
from tapejit.errors import ArgumentTypeError
from tapejit.origin import Origin, describe, short_location

if TYPE_CHECKING:
    from tapejit.api.concrete_function import ConcreteFunction
    from tapejit.api.inspection import Explanation
    from tapejit.ir.graph import Graph

P = ParamSpec("P")
Rest = ParamSpec("Rest")  # the parameters of a method that follow `self`
R = TypeVar("R")

MAX_ENTRIES: Final = 128  # signatures kept per function
MAX_SHORT: Final = 1024  # shorter keys: with loose sizes an Entry has many
MAX_PATHS: Final = 16  # paths that one place in the body may open

_tracing = RLock()  # one trace at a time: tracing runs Python, which does not scale
_running_eagerly = RLock()  # bodies run as plain Python write variables one by one


def _renew_locks() -> None:
    """In a forked child: no thread is left that could release a lock held before."""
    global _tracing, _running_eagerly
    _tracing = RLock()
    _running_eagerly = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class Cache:
    """What a function has traced.

    entries   key -> Entry, the one used last at the end
    paths     for calls with tensors alone: a shorter key -> Entry and Path taken last
    general   floats that are inputs, as (structure, leaf)
    fixed     floats whose value the body asks for, which therefore stay in the key
    loose     sizes that are left out of keys, as structure -> (leaf, axis)
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.entries: dict[Any, Entry] = {}
        self.paths: dict[Any, tuple[Entry, Path]] = {}
        self.general: set[Any] = set()
        self.fixed: set[Any] = set()
        self.loose: dict[Any, frozenset[tuple[int, int]]] = {}
        self.last: Entry | None = None
        self.traces = 0
        self.calls = 0
        self.traced_at: list[int] = []
        self.has_warned = False

    def keep(self, entry: Entry) -> None:
        """Add an Entry, dropping the one that has not been used for longest."""
        self.entries[entry.key] = entry
        while len(self.entries) > MAX_ENTRIES:
            del self.entries[next(iter(self.entries))]
            self.paths.clear()

    def touch(self, entry: Entry) -> None:
        """Make an Entry the one used last."""
        with _tracing:
            if self.entries.pop(entry.key, None) is not None:
                self.entries[entry.key] = entry
            self.last = entry

    def shorten(self, key: Any, call: Call) -> None:
        """Lead a shorter key to a Path for the call that has just ended.

        The tensors given must be all inputs there are: no default is one.
        """
        entry = self.entries.get(call.key)
        path = None if entry is None else entry.last
        count = len(key) // 2
        if entry is None or path is None or path.has_variable_arguments:
            return
        if len(path.takes) == count:
            if len(self.paths) >= MAX_SHORT:
                self.paths.clear()
            self.paths[key] = (entry, path)

    def new_floats(self, call: Call) -> set[Any]:
        """The floats in which a call differs from an earlier one, if in nothing else.

        Such a float changes from call to call: it becomes an input.
        """
        for key in reversed(self.entries):
            if len(key) != len(call.key):
                continue
            changed = [
                (at, now, then)
                for at, (now, then) in enumerate(zip(call.key, key, strict=True))
                if now != then
            ]
            found = {(call.structure, at - 1) for at, _, _ in changed}
            if found & self.fixed or found <= self.general:
                continue
            if all(_is_float(now) and _is_float(then) for _, now, then in changed):
                return found
        return set()


def _is_float(part: Any) -> bool:
    return isinstance(part, tuple) and part[0] in (float, FLOAT)


class Entry:
    """The Paths for one key; `last` is the one taken last.

    `opened` counts the paths that each place of the body has led to; `is_eager` says
    that the body runs as plain Python, `reason` why.
    """

    __slots__ = ("is_eager", "key", "last", "opened", "paths", "reason")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.paths: list[Path] = []
        self.last: Path | None = None
        self.opened: dict[str, int] = {}
        self.is_eager = False
        self.reason: str | None = None

    def run(self, function: Function[..., Any], cache: Cache, call: Call) -> Any:
        """Take the path that fits, or make one."""
        known: tuple[bool | int, ...] = ()
        place: Origin | None = None
        tried = 0
        while True:
            if self.is_eager:
                return function.run_eagerly(*call.arguments(call.leaves))
            path = self._path(call.leaves, known)
            if path is None:
                tried = len(self.paths)
                with _tracing:
                    if len(self.paths) != tried and self._path(call.leaves, known):
                        continue  # another thread has traced it meanwhile
                    return self._trace(function, cache, call, known, place)
            try:
                result = function.perform(path, call)
            except WrongPath as wrong:
                known = (*path.answers[: wrong.at], wrong.answer)
                place = path.places[wrong.at]
                continue
            self.last = path
            return result

    def _path(self, leaves: Sequence[Any], known: tuple[Any, ...]) -> Path | None:
        """A path that fits these leaves and begins with these answers."""
        path = self.last
        if path is not None and not known and not path.has_variable_arguments:
            return path
        fitting = [
            path
            for path in reversed(self.paths)
            if path.answers[: len(known)] == known and path.fits(leaves)
        ]
        return min(fitting, key=Path.generality, default=None)

    def _trace(
        self,
        function: Function[..., Any],
        cache: Cache,
        call: Call,
        known: tuple[bool | int, ...],
        place: Origin | None,
    ) -> Any:
        """Trace the body for this call, and run what was found."""
        if place is not None and self._is_too_branched(function, place):
            return function.run_eagerly(*call.arguments(call.leaves))
        path = self.add_trace(function, cache, call, known, place)
        try:
            return function.perform(path, call)
        except WrongPath:
            # Another thread has changed a variable since: what was traced holds, but
            # not for this call.
            return self.run(function, cache, call)

    def add_trace(
        self,
        function: Function[..., Any],
        cache: Cache,
        call: Call,
        known: tuple[bool | int, ...] = (),
        place: Origin | None = None,
    ) -> Path:
        """Trace the body for this call, without running what was found."""
        started = perf_counter()
        traced, takes = function.traced(call, known)
        cache.traces += 1
        if config.current().debug:
            seconds = perf_counter() - started
            reporting.report_trace(function, cache, call.key, place, traced, seconds)
        path = Path(traced, takes, _variable_positions(call.leaves))
        if traced.needs is not None:
            self.is_eager = True
            self.paths.clear()
            self.last = None
            what, origin = traced.needs
            self.reason = f"needs a value while it is traced ({what}, at "
            self.reason += f"{describe(origin)})"
            _warn_needs_value(function, self.reason)
        elif not traced.serves_once:
            self._add(path)
        function.note_trace(cache, self, call, place)
        return path

    def _add(self, path: Path) -> None:
        for other in self.paths:
            other.compare(path)
            path.compare(other)
        self.paths.append(path)
        self.last = path

    def _is_too_branched(self, function: Function[..., Any], place: Origin) -> bool:
        where = short_location(place)
        self.opened[where] = self.opened.get(where, 1) + 1
        if self.opened[where] <= MAX_PATHS:
            return False
        self.is_eager = True
        self.paths.clear()
        self.last = None
        self.reason = f"takes more than {MAX_PATHS} different ways at {describe(place)}"
        warn_user(
            f"{function.__name__} {self.reason}, so it now runs eagerly; write the "
            "choice with tj.where, tj.cond or tj.while_loop, or move it out of the "
            "function"
        )
        return True


def inputs_of(path: Path, call: Call) -> list[Any]:
    """The inputs of a path; floats that its key names by value may be among them."""
    if len(path.takes) == len(call.takes):
        return call.arrays.copy()
    known = dict(zip(call.takes, call.arrays, strict=True))
    return [
        known[at] if at in known else np.float64(call.leaves[at]) for at in path.takes
    ]


def _variable_positions(leaves: Sequence[Any]) -> dict[int, int]:
    """id of each variable among the arguments -> its first position."""
    found: dict[int, int] = {}
    for at, x in enumerate(leaves):
        if type(x) is Variable:
            found.setdefault(id(x), at)
    return found


def _warn_needs_value(function: Function[..., Any], reason: str) -> None:
    warn_user(
        f"{function.__name__} {reason}, so it runs eagerly from now on; return the "
        "value, show it with tj.print, check it with tj.debug, or do this outside the "
        "function"
    )


class Function(Generic[P, R]):
    """A Python function that runs as a Graph; made by `tj.function`.

    >>> import tapejit as tj
    >>> @tj.function
    ... def double(x):
    ...     return x + x
    >>> double(tj.asarray([1.0, 2.0]))
    <tj.Tensor f32[2] [2. 4.]>
    >>> double.trace_count
    1
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        static: frozenset[str] = frozenset(),
        dynamic: frozenset[str] = frozenset(),
        input_signature: Any = None,
        reduce_retracing: bool = False,
    ) -> None:
        self.__name__: str = type(function).__name__
        self.__qualname__: str = self.__name__
        functools.update_wrapper(self, function)
        self._function = function
        self._static = static
        self._dynamic = dynamic
        self._cache = Cache()
        self._instance: Any = None
        self._binder = Binder(function, static, dynamic)
        self._method_binder: Binder | None = None
        self._specs: InputSignature | None = None
        if input_signature is not None:
            self._specs = InputSignature(input_signature, self.__name__)
        relaxes = self._specs is not None or reduce_retracing
        self._relaxation = Relaxation(self._specs) if relaxes else None
        self._caches: dict[int, tuple[ref[Any], Cache]] = {}

    # Calling

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._specs is not None:
            args = self._specs.conform(self._binder, args, kwargs)  # type: ignore[assignment]  # what fits the specs fits P
            kwargs = {}  # type: ignore[assignment]
        trace = TRACE.get()
        if trace is not None:
            if trace.state is None:
                return self.run_inside(args, kwargs)  # type: ignore[no-any-return]
            with trace.state.undone_if_it_fails():
                return self.run_inside(args, kwargs)  # type: ignore[no-any-return]
        settings = config.current()
        if settings.eager:
            return self.run_eagerly(args, kwargs)  # type: ignore[no-any-return]
        cache = self._cache
        cache.calls += 1
        # The usual call, tensors and arrays by position, takes a short way: a key of
        # its own leads to the Entry, without a Call (which costs a microsecond).
        key: list[Any] = [settings.default_float]
        arrays: list[Any] = []
        foreign: list[Any] = []
        x: Any
        for x in () if kwargs else args:
            if type(x) is Tensor:
                value = x._value
                key += (value.dtype.num, value.shape)
                arrays.append(value)
            elif type(x) is np.ndarray:
                dtype, shape = x.dtype, x.shape
                number = dtype.num
                if DTYPES.get(number) is not dtype:
                    break
                key += (number, shape)
                arrays.append(x if shape else x[()])
                foreign.append(x)
            else:
                break
        else:
            short = tuple(key)
            found = cache.paths.get(short)
            if found is not None:
                entry, path = found
                if entry is not cache.last:
                    cache.touch(entry)
                try:
                    return path.run(arrays, args, foreign)  # type: ignore[no-any-return]
                except WrongPath:
                    cache.paths.pop(short, None)
            elif arrays:
                call = self._bound(cache, settings.default_float, args, {})
                result = self._call_at_length(cache, call, args, {})
                cache.shorten(short, call)
                return result  # type: ignore[no-any-return]
        call = self._bound(cache, settings.default_float, args, kwargs)
        return self._call_at_length(cache, call, args, kwargs)  # type: ignore[no-any-return]

    def _bound(
        self,
        cache: Cache,
        default_float: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Call:
        call = self._binder.call_of(args, kwargs, default_float, cache.general)
        if self._relaxation is not None:
            self._relaxation.relax(cache, call)
        return call

    def _call_at_length(
        self, cache: Cache, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call that has to be looked up by its full key, or traced."""
        entry = cache.entries.get(call.key)
        if entry is None:
            return self._first_call(cache, call, args, kwargs)
        if entry is not cache.last:
            cache.touch(entry)
        return entry.run(self, cache, call)

    def _first_call(
        self, cache: Cache, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call whose key is new: trace, unless another thread has just done so."""
        with _tracing:
            entry = cache.entries.get(call.key)
            if entry is None and self._relaxation is not None:
                self._relaxation.learn(cache, call)
                entry = cache.entries.get(call.key)
            if entry is None:
                floats = cache.new_floats(call)
                exact = call.key
                if floats:
                    call = self._binder.call_of(
                        args, kwargs, exact[0], cache.general | floats
                    )
                    if self._relaxation is not None:
                        self._relaxation.relax(cache, call)
                entry = Entry(call.key)
                try:
                    return entry.run(self, cache, call)
                finally:
                    self._keep(cache, entry, call, floats, exact)
        return entry.run(self, cache, call)

    def _keep(
        self, cache: Cache, entry: Entry, call: Call, floats: set[Any], exact: Any
    ) -> None:
        """Keep an Entry that has been traced, under the key it turned out to be for."""
        if not entry.paths and not entry.is_eager:
            return  # the body raised
        if floats and entry.paths:
            asked = {(call.structure, at) for at in entry.paths[-1].asked} & floats
            if asked:
                entry.key = exact
                cache.fixed |= asked
            cache.general |= floats - asked
        cache.keep(entry)
        cache.last = entry

    def trace_entry(self, call: Call) -> Entry:
        """A new Entry, traced for a call that is not performed."""
        entry = Entry(call.key)
        with _tracing:
            entry.add_trace(self, self._cache, call)
        return entry

    def perform(self, path: Path, call: Call) -> Any:
        """Take a path for a call."""
        return path.run(inputs_of(path, call), call.leaves, call.foreign)

    def body(self) -> Callable[..., Any]:
        """The Python function, bound to its instance."""
        if self._instance is None:
            return self._function
        return functools.partial(self._function, self._instance)

    def traced(
        self, call: Call, known: tuple[bool | int, ...]
    ) -> tuple[Traced, tuple[int, ...]]:
        """Run the body symbolically for a call."""
        trace = FunctionTrace(self.__name__, known)
        takes = tuple(call.takes)
        leaves = list(call.leaves)
        arguments = []
        types, trace.facts.actual = symbolic_types(call)
        for at, kind, array in zip(takes, types, call.arrays, strict=True):
            name = self._binder.leaf_name(call.structure, at)
            made = getattr(leaves[at], "_made", None)
            value = None if at in call.unknown else array
            x = trace.argument(name, kind, value, made)
            arguments.append(x)
            if isinstance(leaves[at], Tensor) and type(leaves[at]._made) is Made:
                x._made = leaves[at]._made  # errors then read as they do eagerly
            is_float = isinstance(leaves[at], float)
            leaves[at] = TracedFloat(x, leaves[at], frozenset({at})) if is_float else x
        args, kwargs = call.arguments(leaves)
        body = self.body()
        del leaves
        with self._scope(), hinted_breakpoints():
            return run_traced(trace, arguments, lambda: body(*args, **kwargs)), takes

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Tapes opened outside are not used inside, nor the other way round."""
        token = SCOPE.set(object())
        try:
            yield
        finally:
            SCOPE.reset(token)

    def run_inside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the body as part of a trace that is under way, or as plain Python."""
        leaves, structure = tree.flatten((args, kwargs), none_is_leaf=True)
        given = [as_operand(x) if _is_array(x) else x for x in leaves]
        inner_args, inner_kwargs = tree.unflatten(structure, given)
        trace = TRACE.get()
        state = None if trace is None else trace.state
        written = {} if state is None else state.written()
        try:
            with self._scope():
                result = self.body()(*inner_args, **inner_kwargs)
                found, spec = tree.flatten(result)
                own = {id(x) for x in given}
                return tree.unflatten(spec, [self._result(x, own) for x in found])
        except BaseException:
            if state is not None:
                state.put_back(written)
            raise

    def _result(self, x: Any, own: set[int]) -> Tensor:
        """What the body returned, as the traced function returns it."""
        try:
            tensor = as_operand(x, self.__name__)
        except ArgumentTypeError:
            raise ArgumentTypeError(
                f"{self.__name__} returned a {type(x).__name__}",
                help="return tensors, numbers, or structures of them",
            ) from None
        return alias(tensor) if id(x) in own or type(x) is Variable else tensor

    def run_eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the body as plain Python; if it raises, no variable has changed."""
        outer = JOURNAL.get()
        journal: dict[int, tuple[Variable, Tensor]] = {}
        token = JOURNAL.set(journal)
        try:
            with _running_eagerly:
                try:
                    return self.run_inside(args, kwargs)
                except BaseException:
                    for variable, before in journal.values():
                        variable._tensor = before
                    journal.clear()
                    raise
        finally:
            JOURNAL.reset(token)
            if outer is not None:  # the outer function may have to put back more
                for key, change in journal.items():
                    outer.setdefault(key, change)

    def note_trace(
        self, cache: Cache, entry: Entry, call: Call, place: Origin | None
    ) -> None:
        """Count a trace; too many in a row deserve a warning that says why."""
        cache.traced_at = [at for at in cache.traced_at if at > cache.calls - 10]
        cache.traced_at.append(cache.calls)
        if len(cache.traced_at) <= 5 or cache.has_warned:
            return
        cache.has_warned = True
        reasons = reporting.why_traced(self, cache, call.key, place)
        warn_user(
            f"{self.__name__} was traced {len(cache.traced_at)} times in its last 10 "
            f"calls. What changed: {'; '.join(reasons)}. Tracing is slow: pass tensors "
            "of equal shapes, or say input_signature= or reduce_retracing=True"
        )

    # What it is

    @property
    def python_function(self) -> Callable[P, R]:
        """The function as it was written.

        >>> import tapejit as tj
        >>> tj.function(abs).python_function is abs
        True
        """
        return self._function

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """One trace as a function of its own, for these arguments or specs of them.

        >>> import tapejit as tj
        >>> double = tj.function(lambda x: x + x)
        >>> concrete = double.get_concrete_function(tj.TensorSpec([None, 3]))
        >>> concrete
        <tj.ConcreteFunction <lambda>(x: f32[None,3]) -> f32[n,3]>
        >>> concrete(tj.ones((5, 3))).shape
        (5, 3)
        """
        from tapejit.api.concrete_function import concrete_function

        return concrete_function(self, args, kwargs)

    @property
    def trace_count(self) -> int:
        """How often the body was traced.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> _ = square(tj.ones(2)), square(tj.ones(2)), square(tj.ones(3))
        >>> square.trace_count
        2
        """
        return self._cache.traces

    def signatures(self) -> list[str]:
        """The kinds of call it has traced, the one used last at the end.

        >>> import tapejit as tj
        >>> @tj.function
        ... def scaled(x, times):
        ...     return x * times
        >>> _ = scaled(tj.ones((2, 3)), 2)
        >>> scaled.signatures()
        ['(x: f32[2,3], times: int 2)']
        """
        return [describe_key(self._binder, key) for key in list(self._cache.entries)]

    def graph(self, *args: P.args, **kwargs: P.kwargs) -> Graph:
        """The Graph that a call with these arguments runs; nothing is run.

        A call of a new kind is traced. Without arguments: the only Graph there is.

        >>> import tapejit as tj
        >>> @tj.function
        ... def scaled(x, times):
        ...     return x * times
        >>> scaled.graph(tj.ones(3), 2) is scaled.graph()
        True
        """
        from tapejit.api import inspection

        return inspection.graph(self, args, kwargs)

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """A report on what a call with these arguments runs; nothing is run.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> square.explain(tj.ones(3)).ops
        {'mul': 1}
        """
        from tapejit.api.inspection import Explanation, asked

        return Explanation(self, *asked(self, args, kwargs))

    def verify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run the body eagerly and traced, from the same state, and compare.

        Results and the values of variables have to agree, else `tj.Disagreement` is
        raised. Variables and generators are afterwards as they were before.

        >>> import tapejit as tj
        >>> tj.function(tj.tanh).verify(tj.ones(3))
        """
        from tapejit.api.verification import verify

        verify(self, args, kwargs)

    def clear_cache(self) -> None:
        """Forget all traces; the next call traces again.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> _ = square(tj.ones(2))
        >>> square.clear_cache()
        >>> square.signatures()
        []
        """
        with _tracing:
            self._cache.clear()
            self._caches.clear()

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Function[P, R]: ...
    @overload
    def __get__(
        self: Function[Concatenate[Any, Rest], R],
        instance: object,
        owner: type | None = None,
    ) -> Function[Rest, R]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if not type(instance).__weakrefoffset__:
            return MethodType(self, instance)  # by ==, as any other argument
        if self._method_binder is None:
            self._method_binder = Binder(self._function, self._static, self._dynamic, 1)
        bound = Function.__new__(Function)
        bound.__dict__.update(self.__dict__)
        bound._binder = self._method_binder
        bound._cache = self._cache_of(instance)
        bound._instance = instance
        bound.__dict__["__signature__"] = self._method_binder.signature
        return bound

    def _cache_of(self, instance: Any) -> Cache:
        """The cache of one instance, which goes when the instance goes."""
        found = self._caches.get(id(instance))
        if found is not None and found[0]() is instance:
            return found[1]
        key, caches = id(instance), self._caches
        made = (ref(instance, lambda _: caches.pop(key, None)), Cache())
        return caches.setdefault(key, made)[1]

    def __repr__(self) -> str:
        return f"<tj.function {self.__qualname__}, {self.trace_count} traces>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._instance is not None:
            return getattr, (self._instance, self.__name__)
        if "<locals>" in self.__qualname__ or "<lambda>" in self.__qualname__:
            raise ArgumentTypeError(
                f"{self.__qualname__} is local and cannot be pickled by name",
                help="define it at the top of a module, or use cloudpickle",
            )
        return self.__qualname__


def _is_array(x: Any) -> bool:
    """Whether an argument that is no tensor becomes one in a function."""
    if isinstance(x, (Tensor, Variable, np.floating, type)):
        return False
    if type(x) in TRACED_NUMBERS:
        return False
    return isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "__array__")


@overload
def function(function: Callable[P, R], /) -> Function[P, R]: ...
@overload
def function(
    function: None = None,
    /,
    *,
    static: Sequence[str] | str = (),
    dynamic: Sequence[str] | str = (),
    input_signature: Any = None,
    reduce_retracing: bool = False,
    jit_compile: bool | None = None,
    autograph: bool | None = None,
) -> Callable[[Callable[P, R]], Function[P, R]]: ...


def function(
    function: Any = None,
    /,
    *,
    static: Sequence[str] | str = (),
    dynamic: Sequence[str] | str = (),
    input_signature: Any = None,
    reduce_retracing: bool = False,
    jit_compile: bool | None = None,
    autograph: bool | None = None,
) -> Any:
    """Turn a Python function into one that runs as a Graph.

    The body runs once for each kind of arguments (dtypes and shapes of tensors, values
    of everything else) and is recorded as a Graph: forward, gradients, updates of
    variables. Later calls run the Graph.

    `static` and `dynamic` name parameters: a static one always selects a trace by its
    value, a dynamic number is always an input. `input_signature` gives one
    `tj.TensorSpec`, or a structure of them, per parameter; arguments are converted to
    fit, and one trace serves all sizes that are None there. With `reduce_retracing` a
    size that changes between calls is left open likewise. `jit_compile` and `autograph`
    are
    accepted for familiarity and change nothing: every function is compiled, and
    Python's `if` and `while` work as they are.

    >>> import tapejit as tj
    >>> w = tj.Variable([1.0, 2.0])
    >>> @tj.function
    ... def step(x, rate):
    ...     with tj.GradientTape() as tape:
    ...         loss = tj.sum((w * x) ** 2)
    ...     w.assign_sub(rate * tape.gradient(loss, w))
    ...     return loss
    >>> print(step(tj.asarray([1.0, 1.0]), 0.25), w.numpy())
    5.0 [0.5 1. ]
    """
    options = {
        "static": _names(static),
        "dynamic": _names(dynamic),
        "input_signature": input_signature,
        "reduce_retracing": reduce_retracing,
    }
    if function is None:
        return lambda given: _decorated(given, options)
    return _decorated(function, options)


def _names(given: Sequence[str] | str) -> frozenset[str]:
    return frozenset([given] if isinstance(given, str) else given)


def _decorated(function: Any, options: dict[str, Any]) -> Any:
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_decorated(function.__func__, options))
    if isinstance(function, Function):
        return function
    what = None
    # What runs when an object is called; a function's own __call__ says nothing.
    code = (function, type(function).__call__) if callable(function) else (function,)
    if isinstance(function, type):
        what = "a class"
    elif any(map(inspect.iscoroutinefunction, code)) or any(
        map(inspect.isasyncgenfunction, code)
    ):
        what = "a coroutine"
    elif any(map(inspect.isgeneratorfunction, code)):
        what = "a generator"
    elif not callable(function):
        what = f"a {type(function).__name__}"
    if what is not None:
        raise ArgumentTypeError(
            f"tj.function takes a function, got {what}",
            help="decorate functions and methods that return tensors",
        )
    return Function(function, **options)


__all__ = ["Function", "function"]
