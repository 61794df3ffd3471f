"""GradientTape: record what happens, then ask for derivatives.

A GradientTape holds a Recording (see `recording.py`) and the rules of its life: when
it records, what it watches, when it is used up. `gradient` turns targets and sources
into Nodes, finds or builds the Plan for them (the adjoint as a closed Graph), and
runs it on the kept values. Arguments are checked and the Graph is built before
anything is consumed, so a call that fails leaves the tape as it was.

Start reading at `GradientTape.gradient`, then `adjoint.py` for the Plan.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, ClassVar

from tapejit.array.creation import asarray, zeros
from tapejit.base import tree
from tapejit.base.config import config
from tapejit.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    TapeError,
    TapeNotRecording,
)
from tapejit.base.origin import Origin, describe, user_origin, warn_user
from tapejit.base.public import public
from tapejit.base.types import is_complex, is_differentiable
from tapejit.ir.graph import Graph
from tapejit.runtime.sentinels import DEVICE_ARRAYS
from tapejit.tape import derivative
from tapejit.tape.recording import Recording
from tapejit.tape.variable import Variable
from tapejit.tensor.device import on_device_of
from tapejit.tensor.dispatch import TAPES, as_operand, cast
from tapejit.tensor.scope import SCOPE
from tapejit.tensor.tensor import Tensor


@public("tapejit")
class UnconnectedGradients(enum.Enum):
    """What `gradient` gives for a source that no path leads to.

    >>> import tapejit as tj
    >>> tj.UnconnectedGradients("zero")
    <UnconnectedGradients.ZERO: 'zero'>
    """

    NONE = "none"
    ZERO = "zero"


class RecordingBlock:
    """A block whose operations are recorded: a tape's, or an accumulator's.

    `_called` is what it is in messages. What records is `_recording`, in the thread
    that it names.
    """

    _called: ClassVar[str]
    _recording: Any
    _is_used_up = False

    def __init__(self) -> None:
        self._scope: Any = None
        self._origin: Origin | None = None

    def __exit__(self, *exception: object) -> None:
        self._stop()

    @property
    def _is_recording(self) -> bool:
        return self._recording is not None and self._recording.thread is not None

    def _start(self) -> None:
        self._recording.thread = get_ident()
        TAPES.set((*TAPES.get(), self._recording))

    def _stop(self) -> None:
        """Stop recording, also in contexts that were copied while it recorded.

        What was stopped from another context is still listed in this one: the stopped
        ones go too.
        """
        self._recording.thread = None
        tapes = TAPES.get()
        if len(tapes) == 1 and tapes[0] is self._recording:
            TAPES.set(())  # the usual case
        else:
            TAPES.set(tuple([tape for tape in tapes if tape.thread is not None]))

    @contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Operations inside are constants to this tape or accumulator.

        >>> import tapejit as tj
        >>> x = tj.Variable(3.0)
        >>> with tj.GradientTape() as tape:
        ...     with tape.stop_recording():
        ...         c = x * x
        ...     y = c * x
        >>> print(tape.gradient(y, x))
        9.0
        """
        if not self._is_recording:
            raise TapeNotRecording(
                f"stop_recording() on {self._called} that is not recording"
            )
        self._stop()
        try:
            yield
        finally:
            if not self._is_used_up:
                self._start()

    def _check_scope(self, what: str) -> None:
        """It belongs to the body of the function it was opened in."""
        if SCOPE.get() == self._scope:
            return
        opened = "outside any function" if self._scope is None else "in a function"
        raise TapeError(
            f"{what} on {self._called} that was opened {opened}, at "
            f"{describe(self._origin)}, and does not belong to the function that is "
            "running",
            help=f"open {self._called} in the body that uses it, or return the tensors "
            "and ask outside",
        )


@public("tapejit")
class GradientTape(RecordingBlock):
    """Records operations for automatic differentiation.

    Trainable variables are watched when they are read, anything else after `watch`.

    >>> import tapejit as tj
    >>> x = tj.Variable(3.0)
    >>> y = tj.Variable(4.0)
    >>> with tj.GradientTape() as tape:
    ...     z = x * x + y * y
    >>> tape.gradient(z, [x, y])
    [<tj.Tensor f32[] 6.0>, <tj.Tensor f32[] 8.0>]
    """

    _called = "a tape"

    def __init__(
        self, persistent: bool = False, watch_accessed_variables: bool = True
    ) -> None:
        super().__init__()
        self._persistent = bool(persistent)
        self._watch_accessed = bool(watch_accessed_variables)
        self._recording: Recording | None = None
        self._warned_inside = False

    # Life

    def __enter__(self) -> GradientTape:
        recording = self._recording
        if recording is not None and recording.thread is not None:
            raise ArgumentError(
                "this tape is recording already",
                help="a tape can be entered again after its block has ended",
            )
        self._scope = SCOPE.get()
        self._origin = user_origin(2)
        if recording is None or self._is_used_up:
            self._recording = Recording(self._watch_accessed)
            self._is_used_up = False
        self._start()
        return self

    def _entered(self, what: str) -> Recording:
        if self._recording is None:
            raise TapeError(
                f"{what} on a tape that has never recorded",
                help="compute the target inside `with tj.GradientTape() as tape:`",
            )
        self._check_scope(what)
        return self._recording

    def _active(self, what: str) -> Recording:
        recording = self._entered(what)
        if not self._is_recording:
            raise TapeError(
                f"{what} on a tape that is not recording",
                help=f"call tape.{what} inside the tape's block",
            )
        return recording

    def reset(self) -> None:
        """Forget everything recorded and watched, and go on recording.

        >>> import tapejit as tj
        >>> x = tj.Variable(3.0)
        >>> with tj.GradientTape() as tape:
        ...     loss = x * x
        ...     tape.reset()
        ...     loss = loss + x * x
        >>> print(tape.gradient(loss, x))
        6.0
        """
        if not self._is_recording:
            raise TapeNotRecording("reset() on a tape that is not recording")
        self._check_scope("reset")
        assert self._recording is not None
        self._recording.clear()

    # Watching

    def watch(self, tensor: Any) -> None:
        """Record what is computed from these tensors or variables from here on.

        >>> import tapejit as tj
        >>> x = tj.asarray(3.0)
        >>> with tj.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = x * x
        >>> print(tape.gradient(y, x))
        6.0
        """
        recording = self._active("watch")
        if type(tensor) is Tensor and tensor._value.dtype.kind in "fc":
            recording.watch(tensor)  # the usual case
            return
        found, spec = tree.flatten(tensor, none_is_leaf=True)
        for at, x in enumerate(found):
            if not isinstance(x, (Tensor, Variable)):
                where = at_path(spec.paths()[at])
                raise ArgumentTypeError(
                    f"watch takes tensors and variables, got {_kind(x)}{where}",
                    help="make a tensor of it first: x = tj.asarray(x)",
                )
        for x in found:
            if not is_differentiable(x.dtype):
                warn_user(
                    f"watching a tensor of dtype {x.dtype.name}: gradients exist for "
                    "floating point only, this one's will be None"
                )
            elif isinstance(x, Variable):
                recording.watched[id(x)] = x
            else:
                recording.watch(x)

    def watched_variables(self) -> tuple[Variable, ...]:
        """The variables that were read or watched, in the order of their creation.

        >>> import tapejit as tj
        >>> w = tj.Variable(1.0, name="w")
        >>> with tj.GradientTape() as tape:
        ...     y = w * 2
        >>> [v.name for v in tape.watched_variables()]
        ['w']
        """
        if self._recording is None:
            return ()
        found = dict(self._recording.watched)
        found.update((key, v) for key, (v, _) in self._recording.reads.items())
        return tuple(sorted(found.values(), key=lambda variable: variable._serial))

    @property
    def nbytes(self) -> int:
        """The bytes of the values this tape keeps, each buffer counted once.

        >>> import tapejit as tj
        >>> x = tj.Variable([1.0, 2.0])
        >>> with tj.GradientTape() as tape:
        ...     y = tj.exp(x)
        >>> tape.nbytes
        8
        """
        if self._recording is None:
            return 0
        kept: dict[int, Any] = {}
        for x in self._recording.values.values():
            held = x._value.kept if x.dtype.kind == "O" else (x,)
            kept.update((id(y._value), y) for y in held)
        return sum(x.nbytes for x in kept.values())

    # Derivatives

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = UnconnectedGradients.NONE,
    ) -> Any:
        """The derivative of the (sum of the) target with respect to each source.

        The result has the structure of `sources`; None where no path leads from a
        source to the target. `output_gradients` weighs the elements of the targets.

        >>> import tapejit as tj
        >>> w = {"a": tj.Variable(2.0), "b": tj.Variable(5.0)}
        >>> with tj.GradientTape() as tape:
        ...     y = w["a"] ** 3
        >>> tape.gradient(y, w)
        {'a': <tj.Tensor f32[] 12.0>, 'b': None}
        """
        recording = self._usable("gradient")
        fill = filler(unconnected_gradients)
        targets, target_spec = _checked(target, "target")
        wanted, source_spec = _checked(sources, "source")
        seeds = _seeds(output_gradients, targets, target_spec)
        request = derivative.Request.of(recording, targets, wanted)
        plan = derivative.plan_for(request, seeded=seeds is not None)
        if plan.calls_back:
            found = self._run_calling(
                lambda: [derivative.plan_for(request, seeded=seeds is not None)],
                lambda plans, kept: derivative.run(plans[0], kept[0], seeds or []),
            )
            return tree.unflatten(source_spec, fill(found, wanted))
        self._before_running()
        inputs = [recording.values[node] for node in plan.kept]
        if not self._persistent:
            self._use_up()
        found = derivative.run(plan, inputs, seeds or [])
        return tree.unflatten(source_spec, fill(found, wanted))

    def jacobian(
        self,
        target: Any,
        sources: Any,
        unconnected_gradients: Any = UnconnectedGradients.NONE,
        chunk_size: int | None = None,
    ) -> Any:
        """The derivative of every element of the target: target.shape + source.shape.

        Computed as one batched pass, or several of `chunk_size` rows to bound memory.
        A structure of targets gives a structure of results.

        >>> import tapejit as tj
        >>> x = tj.Variable([1.0, 2.0])
        >>> with tj.GradientTape() as tape:
        ...     y = x * x
        >>> print(tape.jacobian(y, x))
        [[2. 0.]
         [0. 4.]]
        """
        recording = self._usable("jacobian")
        fill = filler(unconnected_gradients)
        targets, target_spec = _checked(target, "target")
        wanted, source_spec = _checked(sources, "source")
        if chunk_size is not None and chunk_size < 1:
            raise ArgumentError(f"chunk_size is at least 1, got {chunk_size}")
        requests = [derivative.Request.of(recording, [x], wanted) for x in targets]

        def build() -> list[derivative.RowsPlan]:
            return [derivative.plan_rows(request, chunk_size) for request in requests]

        def run(plans: Any, kept: Any) -> list[Any]:
            parts = zip(plans, kept, targets, strict=True)
            return [derivative.run_rows(*part) for part in parts]

        results = []
        for x, found in zip(targets, self._run_rows(build, run), strict=True):
            shaped = fill(found, wanted, prefix=x.shape)
            results.append(tree.unflatten(source_spec, shaped))
        return tree.unflatten(target_spec, results)

    def batch_jacobian(
        self,
        target: Any,
        source: Any,
        unconnected_gradients: Any = UnconnectedGradients.NONE,
        chunk_size: int | None = None,
    ) -> Any:
        """The Jacobian of each row of the target by the same row of the source.

        The result has shape [batch, *target.shape[1:], *source.shape[1:]]. Rows must
        not depend on each other; with `tj.config.check` on, that is verified.

        >>> import tapejit as tj
        >>> x = tj.Variable([[1.0, 2.0], [3.0, 4.0]])
        >>> with tj.GradientTape() as tape:
        ...     y = x * x
        >>> tape.batch_jacobian(y, x).shape
        (2, 2, 2)
        """
        recording = self._usable("batch_jacobian")
        fill = filler(unconnected_gradients)
        (x,), _ = _checked(target, "target", single=True)
        wanted, _ = _checked(source, "source", single=True)
        if x.ndim < 2 or wanted[0].ndim < 2 or x.shape[0] != wanted[0].shape[0]:
            raise ShapeError(
                f"batch_jacobian takes a target and a source of rank 2 or more with "
                f"equal first sizes, got shapes {x.shape} and {wanted[0].shape}"
            )
        request = derivative.Request.of(recording, [x], wanted)

        def build() -> list[derivative.RowsPlan]:
            return [derivative.plan_rows(request, chunk_size, per_row=True)]

        def run(plans: Any, kept: Any) -> Any:
            return derivative.run_batch_rows(plans[0], kept[0], x, wanted[0])

        if config.current().check:
            (plan,) = build()
            derivative.check_rows(
                plan, [recording.values[node] for node in plan.kept], x
            )
        found = self._run_rows(build, run)
        shape = (x.shape[0], *x.shape[1:])
        return fill([found], [_Row(wanted[0])], prefix=shape)[0]

    def graph(self, target: Any, sources: Any = None) -> Graph:
        """What was recorded for a target as a Graph; with sources, its gradient's.

        Printing it shows the operations with the lines they come from. The tape is
        not used up.

        >>> import tapejit as tj
        >>> x = tj.Variable(3.0, name="x")
        >>> with tj.GradientTape() as tape:
        ...     y = x * x
        >>> print(tape.graph(y).nodes[-1].op.name)
        mul
        """
        recording = self._entered("graph")
        targets, _ = _checked(target, "target")
        if sources is None:
            return recording.graph(targets)
        self._usable("graph")
        wanted, _ = _checked(sources, "source")
        request = derivative.Request.of(recording, targets, wanted)
        return derivative.plan_for(request, seeded=False).graph

    def why_none(self, target: Any, source: Any) -> str:
        """Say where the path from a source to a target ends.

        >>> import tapejit as tj
        >>> x = tj.Variable(3.0, name="x")
        >>> with tj.GradientTape() as tape:
        ...     y = tj.stop_gradient(x) * 2
        >>> print(tape.why_none(y, x).split(":")[0])
        the path ends at stop_gradient
        """
        recording = self._entered("why_none")
        from tapejit.tape import why_none as explanation

        return explanation.why_none(recording, target, source)

    def _usable(self, what: str) -> Recording:
        recording = self._entered(what)
        if self._is_used_up:
            raise TapeError(
                f"{what} on a tape that was used up by an earlier call",
                help="make it with tj.GradientTape(persistent=True) to ask again",
            )
        return recording

    def _run_rows(self, build: Any, run: Any) -> Any:
        """Build the Plans of Jacobians and run them, which uses up this tape."""
        plans = build()
        if any(plan.calls_back for plan in plans):
            return self._run_calling(build, run)
        assert self._recording is not None
        values = self._recording.values
        kept = [[values[node] for node in plan.kept] for plan in plans]
        self._before_running()
        if not self._persistent:
            self._use_up()
        return run(plans, kept)

    def _run_calling(self, build: Any, run: Any) -> Any:
        """Run Plans that call a `grad_fn`; if it raises, this tape is as it was."""
        assert self._recording is not None
        was_recording = self._is_recording
        self._before_running()
        try:
            found = derivative.run_calling(self._recording, build, run)
        except BaseException:  # an interrupt too leaves the tape as it was
            if was_recording and not self._is_recording:
                self._start()
            raise
        if not self._persistent:
            self._use_up()
        return found

    def _before_running(self) -> None:
        """What a tape does when asked inside its own block."""
        if not self._is_recording:
            return
        assert self._recording is not None
        if not self._persistent:
            self._stop()
        elif self._recording.thread == get_ident() and not self._warned_inside:
            self._warned_inside = True
            warn_user(
                "a persistent tape is asked for a derivative inside its own block, "
                "so it records that computation too, which costs time and memory; "
                "ask after the block, or inside tape.stop_recording(), unless a "
                "second derivative is wanted"
            )

    def _use_up(self) -> None:
        """Let go of what was recorded; which variables were read stays known."""
        assert self._recording is not None
        self._is_used_up = True
        self._recording.release()

    def __reduce__(self) -> Any:
        raise ArgumentTypeError("a GradientTape cannot be pickled or copied")


class _Row:
    """What one row of a source is, for zeros that are like it."""

    def __init__(self, source: Any) -> None:
        self.shape = source.shape[1:]
        self.dtype = source.dtype
        self.device = source.device


def filler(given: Any) -> Any:
    """A function that puts zeros, or None, where a gradient is missing."""
    try:
        choice = UnconnectedGradients(given)
    except ValueError:
        raise ArgumentError(
            f"unconnected_gradients is 'none' or 'zero', got {given!r}"
        ) from None

    def fill(
        found: Sequence[Tensor | None],
        sources: Sequence[Any],
        prefix: tuple[int, ...] = (),
    ) -> list[Tensor | None]:
        if DEVICE_ARRAYS:
            pairs = zip(found, sources, strict=True)
            found = [None if g is None else on_device_of(g, x) for g, x in pairs]
        if choice is UnconnectedGradients.NONE:
            return list(found)
        return [
            zeros((*prefix, *x.shape), dtype=x.dtype, device=x.device)
            if g is None
            else g
            for g, x in zip(found, sources, strict=True)
        ]

    return fill


def _checked(
    given: Any, role: str, *, single: bool = False
) -> tuple[list[Any], tree.Structure]:
    """The tensors and variables of a structure; anything else is refused by place."""
    found, spec = tree.flatten(given, none_is_leaf=True)
    if single and (len(found) != 1 or spec.children):
        raise ArgumentTypeError(f"the {role} is one tensor, got {_kind(given)}")
    for at, x in enumerate(found):
        if not isinstance(x, (Tensor, Variable)):
            raise ArgumentTypeError(
                f"the {role}{at_path(spec.paths()[at])} is a {_kind(x)}, not a tensor",
                help="targets and sources are tensors and variables that the tape "
                "has seen; values that went through NumPy are not recorded",
            )
    return found, spec


def _kind(x: Any) -> str:
    return "None" if x is None else type(x).__name__


def at_path(path: str) -> str:
    return f" at {path}" if path else ""


def _seeds(
    given: Any, targets: Sequence[Any], spec: tree.Structure
) -> list[Tensor] | None:
    """Output gradients as tensors of the targets' types, None for ones."""
    if given is None:
        return None
    if len(targets) == 1 and not isinstance(given, (Tensor, Variable)):
        given = _one_seed(given, targets[0], spec)
    values, _ = tree.flatten(
        given, none_is_leaf=True, is_leaf=lambda x: isinstance(x, (Tensor, Variable))
    )
    try:
        values = tree.flatten_like(
            given,
            spec,
            labels=("the targets have", "output_gradients"),
            none_is_leaf=True,
        )
    except tree.StructureError as error:
        raise ArgumentError(
            f"output_gradients do not match the targets: {error}"
        ) from None
    return [_seed(x, target) for x, target in zip(values, targets, strict=True)]


def _one_seed(given: Any, target: Any, spec: tree.Structure) -> Any:
    """A list for one vector target is that vector."""
    if spec.num_leaves == 1 and not spec.children:
        if isinstance(given, (list, tuple)) and len(given) == 1:
            (only,) = given
            if getattr(only, "shape", None) == target.shape:
                return only
        return given if given is None else asarray(given)
    return given


def _seed(given: Any, target: Any) -> Tensor:
    if given is None:
        raise ArgumentError(
            "an output gradient is missing",
            help="give one tensor per target, or no output_gradients at all",
        )
    seed = as_operand(given, "output_gradients")
    if seed.shape != target.shape:
        raise ArgumentError(
            f"an output gradient has shape {seed.shape}, its target {target.shape}"
        )
    if seed.dtype == target.dtype:
        return seed
    if is_complex(seed.dtype) and not is_complex(target.dtype):
        raise DTypeError(
            f"an output gradient is {seed.dtype}, its target {target.dtype}"
        )
    return cast(seed, target.dtype)


__all__ = ["GradientTape", "UnconnectedGradients"]
