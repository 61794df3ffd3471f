"""`@tapejit.function`: a Python function traced once per kind of argument.

A `Function` holds a Python function and a `Cache`. A call becomes a key
(`signature.py`) that selects a `Specialization`, which holds the paths traced for
it (`path.py`), usually one, several if the body asked for values. The first call with a
key, and the first that answers a guard differently, runs the body in a `FunctionTrace`;
every other call runs an Executable. Where a Graph cannot stand for the body, and when
functions are told to run eagerly, the body runs as plain Python, with the same results
and as atomic.

Bound to an instance, a Function has one Cache per instance, which dies with it.

Start reading at `Function.__call__`, then `Specialization.run` in `cache.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    overload,
)
from weakref import ref

import numpy as np

from tapejit.base import tree
from tapejit.base.config import config
from tapejit.base.errors import ArgumentError, ArgumentTypeError
from tapejit.base.origin import Origin, warn_user
from tapejit.base.public import public
from tapejit.base.waiting import acquire
from tapejit.ir.node import ORIGIN
from tapejit.runtime.sentinels import DEVICE_ARRAYS, MISS
from tapejit.tape.commits import in_order
from tapejit.tape.variable import JOURNAL, Variable
from tapejit.tensor.device import place_of
from tapejit.tensor.dispatch import TRACE, TRACED_NUMBERS, alias, as_operand
from tapejit.tensor.eager_mode import hinted_breakpoints
from tapejit.tensor.mutation import GivenArguments
from tapejit.tensor.scope import returned, scope
from tapejit.tensor.symbolic_float import TracedFloat
from tapejit.tensor.tensor import Provenance, Tensor
from tapejit.tracing import report
from tapejit.tracing.cache import LOCKS, Cache, Specialization, tracing
from tapejit.tracing.captured_arrays import TracedArray, captured_arrays
from tapejit.tracing.inspectable import Inspected
from tapejit.tracing.made_in_loops import note_made
from tapejit.tracing.open_sizes import InputSignature, Relaxation, symbolic_types
from tapejit.tracing.path import TracedPath, WrongPath
from tapejit.tracing.pickling import pickled
from tapejit.tracing.signature import (
    FLOATS,
    Binder,
    Call,
    NumberSettings,
    describe_key,
    is_scalar,
    numbers_of,
    short_call,
)
from tapejit.tracing.trace import FunctionTrace, Traced, run_traced

if TYPE_CHECKING:
    from tapejit.tracing.concrete_function import ConcreteFunction

P = ParamSpec("P")
Rest = ParamSpec("Rest")  # the parameters of a method that follow `self`
R = TypeVar("R")


# Methods of a Function that are for the rest of tapejit, not for its user.
_INTERNAL = frozenset(
    ["body", "note_trace", "run_eagerly", "run_inside", "trace_entry", "traced"]
)


@public("tapejit")
class Function(Inspected[P], Generic[P, R]):
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
        compile: str | None = None,
    ) -> None:
        self.__name__: str = type(function).__name__
        self.__qualname__: str = self.__name__
        functools.update_wrapper(self, function)
        self._function = function
        self.compile = compile  # when; None for what the settings say
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
            fitting: Any = self._specs.conform(self._binder, args, kwargs)
            args, kwargs = fitting
        cache = self._cache
        native = cache.native
        if native is not None:
            # What follows, in machine code, for a call written like the last one. It
            # costs 0.04 µs to hand on names where there are none, and as much to ask
            # for a class.
            fast: R = native(*args, **kwargs) if kwargs else native(*args)
            if fast is MISS:
                fast = cache.run_recent(args, kwargs)
            if fast is not MISS:
                cache.calls += 1
                return fast
        if TRACE.get() is not None:
            inlined: R = self.run_inside(args, kwargs)
            return inlined
        settings = config.current()
        if settings.eager:
            plain: R = self.run_eagerly(args, kwargs)
            return plain
        cache.calls += 1
        # The usual call, tensors and plain values, takes a short way: a key of its own
        # leads to the Path, without a Call (which costs several microseconds).
        short = short_call(
            self._binder, args, kwargs, numbers_of(settings), cache.floats
        )
        found = None if short is None else cache.shortcut(short)
        if short is not None and found is not None:
            if short.is_flat:
                native = found.native(self._binder, args, kwargs, short)
                cache.note_native(native, found.entry)
            try:
                result: R = found.path.run_short(short)
                return result
            except WrongPath:
                pass
        call = self._bound(cache, numbers_of(settings), args, kwargs)
        outcome: R = self._call_by_full_key(cache, call, args, kwargs)
        if short is not None:
            cache.shorten(short, call)
        return outcome

    def _bound(
        self,
        cache: Cache,
        numbers: NumberSettings,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Call:
        call = self._binder.call_of(args, kwargs, numbers, cache.general)
        if self._relaxation is not None:
            self._relaxation.relax(cache, call)
        return call

    def _call_by_full_key(
        self,
        cache: Cache,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        looks: bool = False,
    ) -> Any:
        """A call that has to be looked up by its full key, or traced."""
        origin = ORIGIN.get()
        try:
            entry = cache.entries.get(call.key)
            if entry is None:
                return self._first_call(cache, call, args, kwargs, looks)
            if entry is not cache.last:
                cache.touch(entry)
            return entry.run(self, cache, call, looks=looks)
        except BaseException:
            # Ctrl-C may come after a block has set it, and before the block begins.
            ORIGIN.set(origin)
            raise

    def _first_call(
        self,
        cache: Cache,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        looks: bool,
    ) -> Any:
        """A call whose key is new: trace, unless another thread has just done so."""
        path: TracedPath | None = None
        with tracing():
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
                entry = Specialization(call.key)
                try:
                    path = entry.trace(self, cache, call, looks=looks)
                finally:  # a warning that is an error comes after the trace
                    self._keep(cache, entry, call, floats, exact)
        return entry.run(self, cache, call, path, looks=looks)

    def _keep(
        self,
        cache: Cache,
        entry: Specialization,
        call: Call,
        floats: set[Any],
        exact: Any,
    ) -> None:
        """Keep what has been traced, under the key it turned out to be for."""
        if not entry.paths and not entry.is_eager:
            return  # what was traced serves one call
        if floats and entry.paths:
            asked = {(call.structure, at) for at in entry.paths[-1].asked} & floats
            if asked:
                entry.key = exact
                cache.fixed |= asked
            cache.general |= floats - asked
        cache.keep(entry)
        cache.last = entry

    def trace_entry(self, call: Call) -> Specialization:
        """A new Entry, traced for a call that is not performed."""
        entry = Specialization(call.key)
        with tracing():
            entry.add_trace(self, self._cache, call)
        return entry

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
            if DEVICE_ARRAYS and not isinstance(leaves[at], (*FLOATS, np.generic)):
                trace.placement.note(place_of(leaves[at]), f"argument {name}")
            x = trace.argument(name, kind, value, made)
            arguments.append(x)
            if isinstance(leaves[at], Tensor) and type(leaves[at]._made) is Provenance:
                x._made = leaves[at]._made  # errors then read as they do eagerly
            if isinstance(leaves[at], FLOATS):
                leaves[at] = TracedFloat(x, leaves[at], frozenset({at}))
            else:
                leaves[at] = TracedArray(x) if is_scalar(leaves[at]) else x
        args, kwargs = call.arguments(leaves)
        body = self.body()
        del leaves
        given = GivenArguments((args, kwargs))

        def run_body() -> Any:
            result = body(*args, **kwargs)
            given.check_unchanged(self._function)
            return result

        arrays = captured_arrays(self._function, self._instance)
        with scope(), hinted_breakpoints(), arrays:
            return run_traced(trace, arguments, run_body), takes

    def run_inside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the body as part of a trace that is under way, or as plain Python."""
        leaves, structure = tree.flatten((args, kwargs), none_is_leaf=True)
        given = [as_operand(x) if _is_array(x) else x for x in leaves]
        self._binder.check_hashable(given, args, kwargs)
        inner_args, inner_kwargs = tree.unflatten(structure, given)
        inner = GivenArguments((inner_args, inner_kwargs))
        trace = TRACE.get()
        state = None if trace is None else trace.state
        written = {} if state is None else state.written()
        arrays: AbstractContextManager[None] = nullcontext()
        if trace is not None:
            arrays = captured_arrays(self._function, self._instance)
        try:
            with scope(), arrays:
                result = self.body()(*inner_args, **inner_kwargs)
                inner.check_unchanged(self._function)
                found, spec = tree.flatten(result)
                own = {id(x) for x in given}
                return tree.unflatten(spec, [self._result(x, own) for x in found])
        except BaseException:  # an interrupt too changes nothing
            if state is not None:
                state.put_back(written)
            raise

    def _result(self, x: Any, own: set[int]) -> Tensor:
        """What the body returned, as the traced function returns it."""
        try:
            tensor = returned(x, self.__name__)
        except ArgumentTypeError:
            raise ArgumentTypeError(
                f"{self.__name__} returned a {type(x).__name__}",
                help="return tensors, numbers, or structures of them",
            ) from None
        return alias(tensor) if id(x) in own or type(x) is Variable else tensor

    def run_eagerly(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        written: Sequence[Variable] = (),
    ) -> Any:
        """Run the body as plain Python; if it raises, no variable has changed.

        `written` are variables that it writes: nobody else does meanwhile.
        """
        given = [x for x in tree.leaves((args, kwargs)) if type(x) is Variable]
        locks = [variable._lock for variable in in_order([*written, *given])]
        outer = JOURNAL.get()
        journal: dict[int, tuple[Variable, Tensor]] = {}
        token = JOURNAL.set(journal)
        try:
            with ExitStack() as stack:
                for lock in (LOCKS.running_eagerly, *locks):
                    acquire(lock, "to run a body as plain Python")
                    stack.callback(lock.release)
                try:
                    return self.run_inside(args, kwargs)
                except BaseException:  # an interrupt too changes nothing
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
        self, cache: Cache, entry: Specialization, call: Call, place: Origin | None
    ) -> None:
        """Count a trace; too many in a row deserve a warning that says why."""
        if cache.traces == 1 and self._instance is None:
            note_made(self._function, cache)
        cache.traced_at = [at for at in cache.traced_at if at > cache.calls - 10]
        cache.traced_at.append(cache.calls)
        if len(cache.traced_at) <= 5 or cache.has_warned:
            return
        cache.has_warned = True
        reasons = report.why_traced(self, cache, call.key, place)
        advice = report.how_to_trace_less(self, cache, call.key, place)
        warn_user(
            f"{self.__name__} was traced {len(cache.traced_at)} times in its last 10 "
            f"calls. What changed: {'; '.join(reasons)}. Tracing is slow"
            + (f": {advice}" if advice else "")
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
        from tapejit.tracing.concrete_function import concrete_function

        return concrete_function(self, args, kwargs)

    def numba(self, *specs: Any, parallel: bool = False) -> Any:
        """One trace as a function that code compiled by Numba calls.

        `specs` are those of `get_concrete_function`. The result, an `njit` function,
        takes the arguments that are tensors there: arrays in order C with exactly these
        dtypes and shapes (ValueError otherwise), numbers where there are no axes, and
        tuples of them. It runs without the GIL and without Python, also in parallel
        loops of Numba's. Variables keep the values that they have now. With `parallel`
        a call may use several threads, which is for calls outside of such loops.

        >>> import numba, numpy as np, tapejit as tj
        >>> loss = tj.function(lambda w, x: tj.mean(tj.square(x @ w)))
        >>> spec = tj.TensorSpec([2]), tj.TensorSpec([3, 2])
        >>> gradient = tj.function(tj.grad(loss)).numba(*spec)
        >>> @numba.njit
        ... def descend(w, x):
        ...     for _ in range(100):
        ...         w = w - np.float32(0.1) * gradient(w, x)
        ...     return w
        >>> w, x = np.ones(2, np.float32), np.eye(3, 2, dtype=np.float32)
        >>> descend(w, x).round(2)
        array([0., 0.], dtype=float32)
        """
        from tapejit.tracing.numba_call import numba_function

        return numba_function(self, specs, parallel=parallel)

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

    def clear_cache(self) -> None:
        """Forget all traces; the next call traces again.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> _ = square(tj.ones(2))
        >>> square.clear_cache()
        >>> square.signatures()
        []
        """
        with tracing():
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

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def _reaches(self) -> tuple[Any, ...]:
        """What its body can get hold of; not what it has traced."""
        return (self._function, self._instance)

    def __repr__(self) -> str:
        return f"<tj.function {self.__qualname__}, {self.trace_count} traces>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._instance is not None:
            return getattr, (self._instance, self.__name__)
        return pickled(self, (_remade, (self._function, self._options())))

    def _options(self) -> dict[str, Any]:
        """What `tj.function` was told."""
        return {
            "static": self._static,
            "dynamic": self._dynamic,
            "input_signature": None if self._specs is None else self._specs.specs,
            "reduce_retracing": self._specs is None and self._relaxation is not None,
            "compile": self.compile,
        }


def _remade(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A function from a pickle that holds the Python function."""
    return Function(function, **options)


def _is_array(x: Any) -> bool:
    """Whether an argument that is no tensor becomes one in a function."""
    if isinstance(x, (Tensor, Variable, np.floating, np.complex128, type)):
        return False
    if type(x) in TRACED_NUMBERS or is_scalar(x):
        return False
    if type(x) is TracedArray and not x.ndim:
        return False  # a NumPy scalar
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
    compile: Literal["now", "background"] | None = None,
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
    compile: Literal["now", "background"] | None = None,
    jit_compile: bool | None = None,
    autograph: bool | None = None,
) -> Any:
    """Turn a Python function into one that runs as native code.

    The body runs once for each kind of arguments (dtypes and shapes of tensors, values
    of everything else) and is recorded as a Graph: forward, gradients, updates of
    variables. The Graph is compiled to machine code, which later calls run.

    `static` and `dynamic` name parameters: a static one always selects a trace by its
    value, a dynamic number is always an input. `input_signature` gives one
    `tj.TensorSpec`, or a structure of them, per parameter; arguments are converted to
    fit, and one trace serves all sizes that are None there. Parameters that follow and
    have a default need none. With `reduce_retracing` a
    size that changes between calls is left open likewise. With `compile="background"`
    native code is made in another thread, and until it is ready NumPy performs the
    operations; "now" makes it in the first call, and the default is what the setting
    `compile` says. `jit_compile` and `autograph` are accepted for familiarity and
    change nothing: every function runs as a Graph, and Python's `if` and `while` work
    as they are.

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
    if compile not in (None, "now", "background"):
        raise ArgumentError(
            f"compile={compile!r}: a function is compiled 'now' or in the 'background'"
        )
    options = {
        "static": _names(static),
        "dynamic": _names(dynamic),
        "input_signature": input_signature,
        "reduce_retracing": reduce_retracing,
        "compile": compile,
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
