"""One program, run in every way there is; all of them must agree.

A *program* is a Python function of tensors and variables that returns a structure of
tensors. It may open tapes, assign to variables, warn, and raise. `setup` makes its
arguments, the same ones each time, so that every run starts from the same state:

    def program(v, x):
        with tj.GradientTape() as tape:
            y = v * x
        v.assign_add(1.0)
        return tape.gradient(y, v)

    def setup():
        return tj.Variable(3.0), tj.asarray(2.0)

    def test_s34_...() -> None:
        assert_modes(program, setup, expected=2.0, variables=[4.0])

`assert_modes` runs it as plain Python and then

- decorated: the call that traces; a second one, on the same objects with their state
  put back, which runs the Executable and must not trace; two on new arguments from
  `setup` (new variables are traced once more); then one on each setup of `also`;
- captured: decorated with all arguments reached by closure, traced and run again;
- nested: called by another decorated function, traced and run again;
- eagerly: decorated, under `run_functions_eagerly(True)`;
- natively: decorated, as native code; one program in five, all with `--full`;

and compares with the plain run, bit for bit: values, dtypes, structure, what is None,
the final values of variables, warnings, and the class and text of what is raised (then
a decorated call must have left all variables as they were). Values of native code need
not have the same bits: they are judged as `COMPOSED`. What the test itself expects is
compared with the plain run:

    expected=   the result: numbers, arrays (their dtype counts), None, in a structure
    variables=  the final values of the variables, in the order of the arguments
    notes=      what the body noted
    warns=      a regular expression for each warning, in order; by default none, and
                None if any will do (modes are compared all the same)
    raises=     (class, regular expression)
    errors=     the same for each error that the body noted, in order

Python facts leave the body with `note(...)`: texts of `tape.why_none`, names, types,
and the errors that the body asks for, `note_error(lambda: tape.gradient(y, x))`. Notes
and warnings of the body are compared where the body runs: when it is traced and when
it runs eagerly. A second call must not give any.

Less usual options: `runs_eagerly=True` for a body that needs a value while it is traced
(one warning in the call that traces, then it is plain Python); `same_place=False` to
leave the line "where" out of the texts of errors; `state=` to find the variables if
they are not among the arguments as such (a function of the arguments that returns a
list); `traces=` if the arguments are traced anew more often, or None if it does not
matter; `op_class=` a class of `agreement.py` where results need not have the same bits;
`modes=` for a program that makes sense in some modes only. A program may raise
`Interrupted`, which is no Exception.

`assert_taped` differentiates a program by tapes outside the call, to any order. The
sources are the floating-point arguments; `expected` is the gradient of the sum of all
results, one entry per source in a list, `second` that of the sum of these gradients:

    assert_taped(lambda v, x: v * x, setup, expected=[2.0, 3.0], second=[1.0, 1.0])

Each result is also differentiated alone, and None must be None in every mode.

`ways(program, setup)` is for tests that look at something else, memory for example: it
gives the program with a name, as plain Python, decorated, decorated and already traced,
and decorated but run eagerly.

Start reading at `assert_modes`, then `run`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from agreement import COMPOSED, EXACT, assert_agrees

import tapejit as tj
from tapejit.base import tree
from tapejit.base.structure import LEAF
from tapejit.base.types import is_differentiable
from tapejit.tape import variable
from tapejit.tensor import dispatch
from tapejit.tensor.tensor import DeviceTensor

from .native_sample import SAMPLE

Program = Callable[..., Any]
Setup = Callable[[], Any]

UNSAID: Any = object()  # the test says nothing of what it expects

# Besides, a sample of the programs runs "natively".
MODES = ("decorated", "captured", "nested", "eagerly")


class Interrupted(BaseException):
    """For programs that end like those where somebody presses Ctrl-C."""


class Outcome(NamedTuple):
    """What a run of a program did."""

    result: Any
    error: BaseException | None
    variables: list[np.ndarray[Any, Any]]
    warnings: list[str]
    notes: list[Any]


class NotedError(NamedTuple):
    """An error that the body of a program asked for."""

    kind: type[Exception]
    text: str


_notes: list[Any] = []


def note(fact: Any) -> None:
    """Tell the harness a Python fact from inside a program."""
    _notes.append(fact)


def note_error(action: Callable[[], Any]) -> None:
    """Do what must raise, and note the class and text of the error."""
    try:
        action()
    except Exception as error:  # every class is part of what is compared
        note(NotedError(type(error), str(error)))
    else:
        raise AssertionError("this raises nothing")


# ------------------------------------------------------------------------- one run


def run(call: Program, args: tuple[Any, ...], state: list[Any]) -> Outcome:
    """Call, and gather everything that can be seen of it."""
    _notes.clear()
    result: Any = None
    error: BaseException | None = None
    with warnings.catch_warnings(record=True) as warned, _not_warned_yet():
        warnings.simplefilter("always")
        try:
            result = call(*args)
        except (Exception, Interrupted) as failed:
            error = failed
    texts = [str(warning.message) for warning in warned]
    return Outcome(result, error, values_of(state), texts, list(_notes))


@contextmanager
def _not_warned_yet() -> Iterator[None]:
    """What is said once per process is said once per run."""
    before = variable._tracked_warned, dispatch._widening_warned
    variable._tracked_warned = dispatch._widening_warned = False
    try:
        yield
    finally:
        variable._tracked_warned, dispatch._widening_warned = before


def values_of(state: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The values of variables, of which no tape hears."""
    return [np.array(v._tensor._value) for v in state]


def put_back(state: Sequence[Any], values: Sequence[Any]) -> None:
    """Give variables the values they had."""
    for v, value in zip(state, values, strict=True):
        v.assign(tj.asarray(value, device=v.device))


def arguments(setup: Setup) -> tuple[Any, ...]:
    """What `setup` makes, as a tuple."""
    made = setup()
    return made if type(made) is tuple else (made,)


def variables_among(args: tuple[Any, ...]) -> list[Any]:
    """The variables in the arguments, each once."""
    found = [x for x in tree.leaves(args) if isinstance(x, tj.Variable)]
    return list({id(v): v for v in found}.values())


# ------------------------------------------------------------------- all of the ways


def assert_modes(
    program: Program,
    setup: Setup = tuple,
    *,
    expected: Any = UNSAID,
    variables: Any = UNSAID,
    notes: Any = UNSAID,
    warns: Sequence[str] | None = (),
    raises: tuple[type[BaseException], str] | None = None,
    errors: Sequence[tuple[type[Exception], str]] | None = None,
    also: Sequence[Setup] = (),
    runs_eagerly: bool = False,
    same_place: bool = True,
    state: Callable[..., list[Any]] | None = None,
    traces: int | None = 1,
    op_class: str = EXACT,
    modes: Sequence[str] = MODES,
) -> Outcome:
    """Run a program in every way, compare, and return what the plain run did."""
    find = (lambda *args: variables_among(args)) if state is None else state
    runner = Runner(program, find, runs_eagerly, same_place, traces, op_class)
    plain = runner.plain(setup)
    check_expected(plain, expected, variables, notes, warns, raises)
    if errors is not None:
        assert_errors([x for x in plain.notes if isinstance(x, NotedError)], errors)
    for mode in modes:
        getattr(runner, mode)(setup, plain)
    if "decorated" in modes:
        runner.others(also)
        if SAMPLE.takes_next():
            runner.natively(setup, plain, also)
    return plain


class Runner:
    """The ways to run one program, and what they are compared by."""

    def __init__(
        self,
        program: Program,
        find: Callable[..., list[Any]],
        runs_eagerly: bool,
        same_place: bool,
        traces: int | None,
        op_class: str,
    ) -> None:
        self.program = program
        self.find = find
        self.runs_eagerly = runs_eagerly
        self.same_place = same_place
        self.traces = traces
        self.op_class = op_class
        self.prefix = ""
        self.function = tj.function(program)

    def plain(self, setup: Setup) -> Outcome:
        args = arguments(setup)
        return run(self.program, args, self.find(*args))

    def decorated(self, setup: Setup, plain: Outcome) -> None:
        self._twice("decorated", self.function, arguments(setup), plain)
        for call in ("new arguments", "new arguments again"):
            args = self._once_more(f"decorated, {call}", setup, plain)
        if self.traces is not None and plain.error is None:
            # Where code can tell variables apart, another in the place of the first is
            # traced once more, to learn whether it does.
            has_new = bool(variables_among(args)) and not self.runs_eagerly
            count = self.function.trace_count
            assert self.traces <= count <= self.traces + has_new, f"{count} traces"

    def others(self, setups: Sequence[Setup]) -> None:
        for at, setup in enumerate(setups):
            self.another(setup, f"call on setup {at} of `also`")

    def another(self, setup: Setup, name: str) -> None:
        """One more call of the decorated function, on other values."""
        self._once_more(name, setup, self.plain(setup))

    def _once_more(self, name: str, setup: Setup, plain: Outcome) -> Any:
        """Compare a call of the decorated function on new arguments, and give them."""
        args = arguments(setup)
        state = self.find(*args)
        before = values_of(state)
        traces = self.function.trace_count
        got = run(self.function, args, state)
        again = self.function.trace_count == traces
        self.compare(name, got, plain, before, again=again)
        return args

    def captured(self, setup: Setup, plain: Outcome) -> None:
        args = arguments(setup)
        function = tj.function(lambda: self.program(*args))
        self._twice("captured", function, args, plain, given=())

    def nested(self, setup: Setup, plain: Outcome) -> None:
        inner = tj.function(self.program)
        outer = tj.function(lambda *given: inner(*given))
        self._twice("nested", outer, arguments(setup), plain)

    def _twice(
        self,
        name: str,
        function: Any,
        args: tuple[Any, ...],
        plain: Outcome,
        *,
        given: tuple[Any, ...] | None = None,
    ) -> None:
        """Two calls on the same objects, whose state is put back in between."""
        given = args if given is None else given
        state = self.find(*args)
        before = values_of(state)
        got = run(function, given, state)
        self.compare(f"{name}, the call that traces", got, plain, before)
        put_back(state, before)
        got = run(function, given, state)
        self.compare(f"{name}, the second call", got, plain, before, again=True)
        if self.traces is not None and plain.error is None:
            assert function.trace_count == 1, f"{name}: {function.trace_count} traces"

    def eagerly(self, setup: Setup, plain: Outcome) -> None:
        was_eager = tj.functions_run_eagerly()
        tj.run_functions_eagerly(True)
        try:
            function = tj.function(self.program)
            for call in ("first", "second"):
                args = arguments(setup)
                state = self.find(*args)
                before = values_of(state)
                got = run(function, args, state)
                self.compare(f"run eagerly, {call} call", got, plain, before)
            assert function.trace_count == 0
        finally:
            tj.run_functions_eagerly(was_eager)

    def natively(
        self, setup: Setup, plain: Outcome, also: Sequence[Setup] = ()
    ) -> None:
        with tj.config.override(native=True):
            options = (self.runs_eagerly, self.same_place, self.traces, COMPOSED)
            native = Runner(self.program, self.find, *options)
            native.prefix = "native code, "
            native.decorated(setup, plain)
            native.others(also)

    def compare(
        self,
        mode: str,
        got: Outcome,
        plain: Outcome,
        before: list[Any],
        *,
        again: bool = False,
    ) -> None:
        """Fail unless a run did what the plain one did."""
        mode = self.prefix + mode
        self.compare_errors(mode, got, plain)
        is_silent = not got.notes and not got.warnings
        if plain.error is None or not (again and is_silent):
            self.compare_talk(mode, got, plain, again and plain.error is None)
        if plain.error is not None:
            same_values(f"{mode}: a variable after the error", got.variables, before)
            return
        same_structure(mode, got.result, as_returned(plain.result), self.op_class)
        what = f"{mode}: a variable"
        same_values(what, got.variables, plain.variables, self.op_class)

    def compare_errors(self, mode: str, got: Outcome, plain: Outcome) -> None:
        if got.error is not None and plain.error is None:
            raise AssertionError(f"{mode}: it raises only here") from got.error
        assert type(got.error) is type(plain.error), f"{mode}: {got.error!r}"
        texts = [self.text(x.error) for x in (got, plain)]
        assert texts[0] == texts[1], f"{mode}: another text\n{texts[0]}\n{texts[1]}"

    def text(self, error: BaseException | None) -> str:
        lines = str(error).splitlines()
        if not self.same_place:
            lines = [line for line in lines if not line.startswith("  where")]
        return "\n".join(lines)

    def compare_talk(
        self, mode: str, got: Outcome, plain: Outcome, again: bool
    ) -> None:
        """Warnings and notes, which only a body that runs can give."""
        said = list(got.warnings)
        if self.runs_eagerly:
            found = [text for text in said if "needs a value while it is" in text]
            assert len(found) <= 1, f"{mode}: {said}"
            if "decorated" in mode:
                assert len(found) == ("traces" in mode), f"{mode}: {said}"
            elif again and not got.notes:
                return  # captured tensors have values
            said = [text for text in said if text not in found]
        if again and not self.runs_eagerly:
            assert not said, f"{mode}: it warns again"
            assert not got.notes, f"{mode}: the body ran again"
            return
        assert said == plain.warnings, f"{mode}: other warnings"
        assert got.notes == plain.notes, f"{mode}: other notes"


# ------------------------------------------------------------------- tapes around it


def assert_taped(
    program: Program,
    setup: Setup,
    *,
    expected: Any = UNSAID,
    second: Any = UNSAID,
    order: int = 2,
    sources: Callable[..., list[Any]] | None = None,
    warns: Sequence[str] | None = (),
    op_class: str = EXACT,
) -> list[Any]:
    """Differentiate a program by tapes outside the call, in every way.

    Returns the plain derivatives: per order a list with one entry per source.
    """
    find = differentiable_among if sources is None else sources
    plain = _derivatives(program, setup, find, order, warns)
    if expected is not UNSAID:
        assert_expected("the gradient", plain[0], expected)
    if second is not UNSAID:
        assert_expected("the second derivative", plain[1], second)
    function = tj.function(program)
    usual = 1 + bool(variables_among(arguments(setup)))
    for call in ("traces under tapes", "runs again under tapes"):
        got = _derivatives(function, setup, find, order, warns)
        same_structure(call, got, plain, op_class)
    assert function.trace_count <= usual, "a tape around a call does not retrace"
    function = tj.function(program)
    for _ in range(2):
        run(function, arguments(setup), [])
    got = _derivatives(function, setup, find, order, warns)
    same_structure("traced without tapes", got, plain, op_class)
    assert function.trace_count <= usual, "a tape around a call does not retrace"
    got = _derivatives(program, setup, find, order, warns, is_captured=True)
    same_structure("captured", got, plain, op_class)
    if SAMPLE.takes_next():
        with tj.config.override(native=True):
            function = tj.function(program)
            for call in ("traced under tapes", "run again under tapes"):
                got = _derivatives(function, setup, find, order, warns)
                same_structure(f"native code, {call}", got, plain, COMPOSED)
    return plain


def ways(program: Program, setup: Setup) -> Iterator[tuple[str, Program]]:
    """The program as callables, each with the name of its mode."""
    yield "plain", program
    yield "decorated", tj.function(program)
    traced = tj.function(program)
    for _ in range(2):
        traced(*arguments(setup))
    yield "traced before", traced
    with tj.config.override(eager=True):
        yield "run eagerly", tj.function(program)


def differentiable_among(*args: Any) -> list[Any]:
    """The tensors and variables of a floating-point dtype, each once."""
    found = [x for x in tree.leaves(args) if isinstance(x, (tj.Tensor, tj.Variable))]
    kept = [x for x in found if is_differentiable(x.dtype)]
    return list({id(x): x for x in kept}.values())


def _derivatives(
    program: Program,
    setup: Setup,
    find: Callable[..., list[Any]],
    order: int,
    warns: Sequence[str] | None,
    is_captured: bool = False,
) -> list[Any]:
    """Gradients of the sum of the results per order, then those of each result.

    Every one comes from a call of its own, on arguments of its own.
    """

    def nth(k: int) -> Any:
        args = arguments(setup)
        call: Any = lambda: program(*args)
        if is_captured:
            call = tj.function(call)
        wanted = find(*args)
        got = run(lambda: _nested(call, wanted, k), (), [])
        if got.error is not None:
            raise got.error
        assert_warnings(got.warnings, warns)
        return got.result

    totals = [nth(k)[0] for k in range(1, order + 1)]
    return [*totals, nth(0)[1]]


def _nested(call: Program, wanted: list[Any], order: int) -> Any:
    """The derivative of an order by as many tapes, or the first by each result."""
    if order == 0:
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(wanted)
            results = _tensors(call())
        return None, [tape.gradient(x, wanted) for x in results]
    with tj.GradientTape() as tape:
        tape.watch(wanted)
        if order == 1:
            found = call()
        else:
            found, _ = _nested(call, wanted, order - 1)
        results = _tensors(found)
    return tape.gradient(results, wanted), None


def _tensors(result: Any) -> list[Any]:
    """The tensors of a result; a variable is the value it holds."""
    found = [x for x in tree.leaves(result) if isinstance(x, (tj.Tensor, tj.Variable))]
    return [x if isinstance(x, tj.Tensor) else x.value() for x in found]


# ---------------------------------------------------------------------- comparisons


def as_returned(result: Any) -> Any:
    """What a decorated function makes of a result: numbers and variables as tensors."""
    found, spec = tree.flatten(result)
    return tree.unflatten(spec, [tj.asarray(x) for x in found])


def same_structure(mode: str, got: Any, plain: Any, op_class: str = EXACT) -> None:
    """Structure, what is None, dtypes, and bits."""
    found, spec = tree.flatten(got, none_is_leaf=True)
    wanted, wanted_spec = tree.flatten(plain, none_is_leaf=True)
    assert spec == wanted_spec, f"{mode}: {spec} is not {wanted_spec}"
    paths = spec.paths()
    for path, x, y in zip(paths, found, wanted, strict=True):
        where = f"{mode}: the result{path and ' at ' + path}"
        if x is None or y is None:
            assert x is y, f"{where}: {x} is not {y}"
            continue
        assert type(x) in (tj.Tensor, DeviceTensor), f"{where} is a {type(x).__name__}"
        assert x.device == getattr(y, "device", "cpu"), f"{where} is on {x.device}"
        same_values(where, [np.asarray(x)], [np.asarray(y)], op_class)


def same_values(
    what: str, got: Sequence[Any], plain: Sequence[Any], op_class: str = EXACT
) -> None:
    """The same arrays: dtypes, shapes, and all bits unless a class allows more."""
    for x, y in zip(got, plain, strict=True):
        assert x.dtype == y.dtype, f"{what}: {x.dtype} is not {y.dtype}"
        assert x.shape == y.shape, f"{what}: {x.shape} is not {y.shape}"
        if op_class != EXACT:
            assert_agrees(op_class, x, y, where=what)
        elif x.tobytes() != y.tobytes():
            raise AssertionError(f"{what}: {x} is not {y}, as bits")


def check_expected(
    plain: Outcome,
    expected: Any,
    variables: Any,
    notes: Any,
    warns: Sequence[str] | None,
    raises: tuple[type[BaseException], str] | None,
) -> None:
    """Fail unless the plain run did what the test expects."""
    if raises is None:
        if plain.error is not None:
            raise plain.error
    else:
        cls, pattern = raises
        assert isinstance(plain.error, cls), f"it raised {plain.error!r}"
        assert re.search(pattern, str(plain.error)), str(plain.error)
    assert_warnings(plain.warnings, warns)
    if expected is not UNSAID:
        assert_expected("the result", plain.result, expected)
    if variables is not UNSAID:
        assert_expected("the variables", plain.variables, variables)
    if notes is not UNSAID:
        assert plain.notes == notes


def assert_warnings(said: Sequence[str], warns: Sequence[str] | None) -> None:
    """Fail unless the warnings are those expected; None: nothing is expected."""
    if warns is None:
        return
    assert len(said) == len(warns), f"warnings: {said}"
    for text, pattern in zip(said, warns, strict=True):
        assert re.search(pattern, text), text


def assert_errors(
    noted: Sequence[NotedError], errors: Sequence[tuple[type[Exception], str]]
) -> None:
    """Fail unless the errors that a body noted are those expected."""
    assert len(noted) == len(errors), f"errors: {noted}"
    for error, (cls, pattern) in zip(noted, errors, strict=True):
        assert issubclass(error.kind, cls), f"it raised {error}"
        assert re.search(pattern, error.text), error.text


def assert_expected(what: str, got: Any, expected: Any) -> None:
    """Compare with what a test wrote down; an array's dtype counts, a number's not.

    Where the result has a tensor, a list stands for that tensor.
    """
    for where, x, y in _pairs(what, got, expected):
        if x is None or y is None:
            assert x is None, f"{where} is {x}, not None"
            assert y is None, f"{where} is None, not {y}"
            continue
        array = np.asarray(x)
        if isinstance(y, (np.ndarray, np.generic)):
            assert array.dtype == y.dtype, f"{where}: {array.dtype} is not {y.dtype}"
        assert array.shape == np.shape(y), f"{where} has shape {array.shape}"
        np.testing.assert_array_equal(array, y, err_msg=where)


def _pairs(where: str, got: Any, expected: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each leaf of a result with what is expected of it."""
    if tree.structure(got, none_is_leaf=True) == LEAF:
        yield where, got, expected
        return
    assert type(got) is type(expected), f"{where}: {got} is not {expected}"
    if isinstance(got, dict):
        assert got.keys() == expected.keys(), f"{where}: {list(got)}"
        parts = [(f"[{key!r}]", got[key], expected[key]) for key in got]
    elif isinstance(got, (list, tuple)):
        assert len(got) == len(expected), f"{where}: {got} is not {expected}"
        both = zip(got, expected, strict=True)
        parts = [(f"[{at}]", *pair) for at, pair in enumerate(both)]
    else:
        fields = vars(got)
        parts = [(f".{name}", fields[name], getattr(expected, name)) for name in fields]
    for name, x, y in parts:
        yield from _pairs(where + name, x, y)
