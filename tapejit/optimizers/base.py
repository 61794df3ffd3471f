"""What all optimizers do around their rules.

An `Optimizer` holds Variables only: `iterations`, the learning rate, and per variable
the slots of its rule, found through a table by identity (`slots.py`). So a step is the
same eagerly and in a traced function, and a learning rate set outside is seen inside.
Everything else (betas, limits of clipping, the schedule) is fixed when a function is
traced.

A rule sees real numbers of at least 32 bits. Half-precision variables are widened to
float32 for the step, keep float32 slots, and are rounded once when assigned: squares
of float16 gradients would vanish. A complex variable is updated as its real and
imaginary parts, which stand along a last axis of size 2, in its slots too. Numbers of
the whole step, such as the learning rate, are computed in float64 and rounded to the
dtype of each variable.

Start reading at `Optimizer.apply_gradients`, then `Optimizer.update`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import numpy as np

from tapejit import ops
from tapejit.array import clipping, elementwise
from tapejit.array.creation import asarray
from tapejit.array.manipulation import stack
from tapejit.base import tree
from tapejit.base.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tapejit.base.origin import line_number, user_origin, warn_user
from tapejit.base.public import public
from tapejit.base.types import (
    DType,
    is_complex,
    is_differentiable,
    real_dtype,
    wide_dtype,
)
from tapejit.optimizers.slots import ByVariable
from tapejit.runtime.sentinels import DEVICE_ARRAYS
from tapejit.tape.tape import GradientTape
from tapejit.tape.variable import Variable
from tapejit.tensor.device import move
from tapejit.tensor.dispatch import apply, as_operand, cast
from tapejit.tensor.foreign_keywords import OPTIMIZER_KEYWORDS, with_hints
from tapejit.tensor.foreign_names import attribute_error
from tapejit.tensor.tensor import Tensor

OnMissing = Literal["warn", "raise", "ignore"]
Pairs = list[tuple[Tensor, Variable]]

FLOAT64: Final = np.dtype(np.float64)
MAX_NAMED: Final = 10  # variables that a message names


Slots = dict[str, Tensor]  # the state of one variable, by name


class Options(TypedDict, total=False):
    """What every optimizer takes besides the numbers of its rule."""

    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    name: str | None


# What the optimizers of other libraries have.
SPELLINGS: Final[dict[str, str]] = {
    "lr": "optimizer.learning_rate",
    "param_groups": "optimizer.learning_rate",
    "step": "optimizer.apply_gradients(zip(gradients, variables))",
    "update_step": "optimizer.apply_gradients(zip(gradients, variables))",
    "zero_grad": "tape.gradient(loss, variables)  # there are none to clear",
}


@public("tapejit.optimizers")
class Optimizer:
    """The base of all optimizers; a rule is a class that defines `update`.

    `learning_rate` is a number, or a function of the number of steps taken, such as
    those in `tj.optimizers.schedules`. `weight_decay` takes that fraction of a
    variable, times the learning rate, off it before each update. Gradients are clipped
    by at most one of `clipnorm` (the norm of each), `global_clipnorm` (the norm of all
    together) and `clipvalue` (every element).

    A rule names its slots and computes new values from old ones:

    >>> import tapejit as tj
    >>> class Heavy(tj.optimizers.Optimizer):
    ...     slot_names = ("speed",)
    ...
    ...     def update(self, gradient, value, slots, rate):
    ...         speed = 0.9 * slots["speed"] + gradient
    ...         return value - rate * speed, {"speed": speed}
    >>> w = tj.Variable([1.0, 2.0])
    >>> optimizer = Heavy(learning_rate=0.5)
    >>> optimizer.apply_gradients([(tj.asarray([1.0, 1.0]), w)])
    >>> w.numpy()
    array([0.5, 1.5], dtype=float32)
    """

    slot_names: tuple[str, ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Have the names of other libraries explained, such as `lr`."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            hinted = with_hints(cls.__init__, OPTIMIZER_KEYWORDS)
            cls.__init__ = hinted  # type: ignore[method-assign]

    def __init__(
        self,
        learning_rate: Any = 0.001,
        *,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        name: str | None = None,
    ) -> None:
        self.name = type(self).__name__ if name is None else str(name)
        limits = {
            "clipnorm": clipnorm,
            "clipvalue": clipvalue,
            "global_clipnorm": global_clipnorm,
        }
        given = [each for each, limit in limits.items() if limit is not None]
        if len(given) > 1:
            raise ArgumentError(
                f"gradients are clipped in one way, got {' and '.join(given)}",
                op=self.name,
            )
        for each in given:
            self._number(each, limits[each], above=0.0)
        if weight_decay is not None:
            self._number("weight_decay", weight_decay)
        self.weight_decay = weight_decay
        self.clipnorm = clipnorm
        self.clipvalue = clipvalue
        self.global_clipnorm = global_clipnorm
        self._schedule: Callable[[Any], Any] | None = None
        self._rate: Variable | None = None
        if callable(learning_rate):
            self._schedule = learning_rate
        else:
            rate = self._as_rate(learning_rate)
            self._rate = Variable(rate, trainable=False, name="learning_rate")
        self._iterations = Variable(np.int64(0), trainable=False, name="iterations")
        self._slots: ByVariable[dict[str, Variable]] = ByVariable()
        self._undecayed: ByVariable[bool] = ByVariable()
        self._undecayed_names: tuple[str, ...] = ()
        self._is_built = False
        self._warned: set[tuple[str, int]] = set()

    if not TYPE_CHECKING:  # attributes that do not exist are errors

        def __getattr__(self, name: str) -> Any:
            raise attribute_error(type(self).__name__, name, SPELLINGS)

    def _number(
        self,
        name: str,
        value: Any,
        *,
        above: float = -math.inf,
        least: float = -math.inf,
        below: float = math.inf,
    ) -> Any:
        """A number that is one and makes sense; others are refused."""
        if not isinstance(value, (int, float, np.number)):
            raise ArgumentTypeError(f"{name} is a number, got {value!r}", op=self.name)
        if not (above < value < below and value >= least):
            bounds = [f"greater than {above:g}"] if above > -math.inf else []
            bounds += [f"at least {least:g}"] if least > -math.inf else []
            bounds += [f"less than {below:g}"] if below < math.inf else []
            wanted = " and ".join(bounds) or "finite"
            raise ArgumentError(f"{name} is {wanted}, got {value}", op=self.name)
        return value

    # The rule

    def initial(self, slot: str) -> float:
        """What the elements of a slot are before the first step."""
        return 0.0

    def coefficients(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """The numbers of one step that `update` takes: the learning rate alone.

        `rate` and `step`, which is 1 in the first step, are float64 scalars; what is
        returned reaches `update` in the dtype of each variable.
        """
        return (rate,)

    def update(
        self, gradient: Tensor, value: Tensor, slots: Slots, /, *coefficients: Tensor
    ) -> tuple[Tensor, Slots]:
        """The new value of a variable and of its slots; nothing is assigned here."""
        raise NotImplementedError(f"{type(self).__name__} defines no update")

    # Steps

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        *others: Any,
        on_missing: OnMissing = "warn",
    ) -> None:
        """Update variables, given as pairs with their gradients.

        Where a gradient is None, the variable stays as it is. The first time that
        happens at a place in the program a warning names the variables;
        `on_missing="raise"` makes it an error, `"ignore"` silence. If all are None it
        is an error in any case.

        >>> import tapejit as tj
        >>> w = tj.Variable([1.0, 2.0])
        >>> optimizer = tj.optimizers.SGD(learning_rate=0.5)
        >>> with tj.GradientTape() as tape:
        ...     loss = tj.sum(w * w)
        >>> gradients = tape.gradient(loss, [w])
        >>> optimizer.apply_gradients(zip(gradients, [w]))
        >>> w.numpy()
        array([0., 0.], dtype=float32)
        """
        pairs = self._checked(grads_and_vars, others, on_missing)
        variables = [variable for _, variable in pairs]
        self.build(variables)
        gradients = self._clipped(
            [_lifted(gradient, variable.dtype) for gradient, variable in pairs]
        )
        if DEVICE_ARRAYS:
            self._join(variables)
        rate = self._current_rate()
        step = cast(self._iterations.value() + 1, FLOAT64)
        numbers = (rate, *self.coefficients(rate, step))
        rounded: dict[tuple[DType, str], list[Tensor]] = {}
        for gradient, variable in zip(gradients, variables, strict=True):
            key = kind, there = gradient.dtype, gradient.device
            if key not in rounded:
                rounded[key] = [move(cast(x, kind), there) for x in numbers]
            self._update_variable(gradient, variable, rounded[key])
        self._iterations.assign_add(1)

    def _join(self, variables: Sequence[Variable]) -> None:
        """Keep the numbers of a step with the first variable, slots with their own."""
        for own in (self._iterations, self._rate):
            if own is not None:
                own._join(variables[0].device)
        for variable in variables:
            for slot in self._slots_of(variable).values():
                slot._join(variable.device)

    def _written_with(self, variables: Sequence[Variable]) -> list[Variable]:
        """What a step writes that updates these variables."""
        slots = [slot for x in variables for slot in self._slots_of(x).values()]
        return [*variables, *slots, self._iterations]

    def _update_variable(
        self, gradient: Tensor, variable: Variable, numbers: Sequence[Tensor]
    ) -> None:
        slots = self._slots_of(variable)
        rate, *coefficients = numbers
        value = _lifted(variable.value(), variable.dtype)
        if self._decays(variable):
            value = value - value * (self.weight_decay * rate)
        old = {name: slot.value() for name, slot in slots.items()}
        value, new = self.update(gradient, value, old, *coefficients)
        value = _lowered(value, variable.dtype)
        if variable.constraint is not None:
            value = variable.constraint(value)
        variable.assign(value)
        for name, slot in slots.items():
            slot.assign(new[name])

    def minimize(
        self,
        loss: Any,
        var_list: Any,
        tape: GradientTape | None = None,
        *,
        on_missing: OnMissing = "warn",
    ) -> Tensor:
        """Compute gradients of a loss and apply them; returns the loss.

        `loss` is a function without arguments, or a tensor together with the tape that
        has recorded it. `var_list` is a structure of variables, or a function that
        returns one, which is called after the loss.

        >>> import tapejit as tj
        >>> w = tj.Variable(3.0)
        >>> optimizer = tj.optimizers.SGD(learning_rate=0.25)
        >>> optimizer.minimize(lambda: w * w, [w])
        <tj.Tensor f32[] 9.0>
        >>> w.numpy()
        array(1.5, dtype=float32)
        """
        if isinstance(loss, (Tensor, Variable)):
            if tape is None:
                raise ArgumentError(
                    "a loss that is a tensor comes with the tape that recorded it",
                    op="minimize",
                    help="write minimize(loss, variables, tape=tape), or give a "
                    "function that computes the loss",
                )
        elif callable(loss):
            tape = GradientTape() if tape is None else tape
            with tape:
                if not callable(var_list):
                    tape.watch(var_list)
                loss = loss()
        else:
            raise ArgumentTypeError(
                f"the loss is a function or a tensor, got {type(loss).__name__}",
                op="minimize",
            )
        variables = tree.leaves(var_list() if callable(var_list) else var_list)
        gradients = self._gradients(tape, loss, variables)
        pairs = zip(gradients, variables, strict=True)
        self.apply_gradients(pairs, on_missing=on_missing)
        return as_operand(loss, "minimize")

    def _gradients(
        self, tape: GradientTape, loss: Any, variables: list[Variable]
    ) -> list[Any]:
        found: list[Any] = tape.gradient(loss, variables)
        return found

    # Checks

    def _checked(
        self, given: Iterable[Any], others: Sequence[Any], on_missing: OnMissing
    ) -> Pairs:
        """The pairs that have a gradient; nothing has changed if one is refused."""
        if others:
            raise ArgumentTypeError(
                f"takes pairs alone, got {1 + len(others)} arguments",
                op=f"{type(self).__name__}.apply_gradients",
                help="write apply_gradients(zip(gradients, variables))",
            )
        if on_missing not in ("warn", "raise", "ignore"):
            raise ArgumentError(
                f"on_missing is 'warn', 'raise' or 'ignore', got {on_missing!r}",
                op="apply_gradients",
            )
        pairs: Pairs = []
        missing: list[Variable] = []
        seen: set[int] = set()
        for pair in given:
            gradient, variable = _as_pair(pair)
            if id(variable) in seen:
                raise ArgumentError(
                    f"{_described(variable)} is there twice",
                    op="apply_gradients",
                    help="add its gradients up first",
                )
            seen.add(id(variable))
            if gradient is None:
                missing.append(variable)
            else:
                pairs.append((_fitting(gradient, variable), variable))
        if not pairs:
            raise ArgumentError(
                f"there is no gradient for any variable: {_listed(missing)}"
                if missing
                else "there are no variables to update",
                op="apply_gradients",
                help="tape.why_none(loss, variable) says where the path ends"
                if missing
                else "give pairs: apply_gradients(zip(gradients, variables))",
            )
        if missing and on_missing != "ignore":
            self._report(missing, on_missing)
        return pairs

    def _report(self, missing: Sequence[Variable], on_missing: OnMissing) -> None:
        if on_missing == "raise":
            raise ArgumentError(
                f"there is no gradient for {_listed(missing)}",
                op="apply_gradients",
                help="tape.why_none(loss, variable) says where the path ends",
            )
        origin = user_origin(3)
        if origin is not None:
            place = (origin[0].co_filename, line_number(origin))
            if place in self._warned:
                return
            self._warned.add(place)
        warn_user(
            f"there is no gradient for {_listed(missing)}, which stay as they are; "
            "tape.why_none(loss, variable) says where the path ends, and "
            'on_missing="ignore" silences this'
        )

    def _clipped(self, gradients: list[Tensor]) -> list[Tensor]:
        if self.clipnorm is not None:
            return [clipping.clip_by_norm(x, self.clipnorm) for x in gradients]
        if self.clipvalue is not None:
            limit = self.clipvalue
            return [clipping.clip_by_value(x, -limit, limit) for x in gradients]
        if self.global_clipnorm is not None:
            clipped, _ = clipping.clip_by_global_norm(gradients, self.global_clipnorm)
            return [x for x in clipped if x is not None]
        return gradients

    # Weight decay

    def exclude_from_weight_decay(
        self, var_list: Iterable[Variable] = (), var_names: Iterable[str] = ()
    ) -> None:
        """Let some variables keep their weight, before the first step.

        They are given themselves, or as texts of which one is part of their name.

        >>> import tapejit as tj
        >>> optimizer = tj.optimizers.AdamW(weight_decay=0.01)
        >>> optimizer.exclude_from_weight_decay(var_names=["bias", "scale"])
        """
        if self._is_built:
            raise ArgumentError(
                "variables are excluded from weight decay before the first step",
                op="exclude_from_weight_decay",
            )
        if isinstance(var_names, str):
            raise ArgumentTypeError(
                f"var_names is a list of texts, got {var_names!r}",
                op="exclude_from_weight_decay",
            )
        for variable in var_list or ():
            self._undecayed[_as_variable(variable)] = True
        self._undecayed_names += tuple(var_names or ())

    def _decays(self, variable: Variable) -> bool:
        if not self.weight_decay or variable in self._undecayed:
            return False
        return not any(text in variable.name for text in self._undecayed_names)

    # The learning rate

    @property
    def learning_rate(self) -> Any:
        """A Variable; with a schedule, its present value. Numbers can be set.

        >>> import tapejit as tj
        >>> optimizer = tj.optimizers.SGD(learning_rate=0.1)
        >>> optimizer.learning_rate = 0.01
        >>> float(optimizer.learning_rate)
        0.01
        """
        return self._current_rate() if self._rate is None else self._rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if self._rate is None:
            raise ArgumentTypeError(
                "the learning rate follows a schedule and cannot be set",
                op=self.name,
                help="make the optimizer with a number to set it later",
            )
        if callable(value):
            raise ArgumentTypeError(
                "a schedule cannot take the place of a learning rate that is a number",
                op=self.name,
                help="make the optimizer with it; what is traced would not see it",
            )
        self._rate.assign(self._as_rate(value))

    def _as_rate(self, given: Any) -> Tensor:
        """A learning rate as a float64 scalar, exact for variables of that width."""
        is_number = isinstance(given, (int, float, np.number))
        if isinstance(given, (list, tuple)) and any(map(clipping.is_array, given)):
            raise ArgumentTypeError(
                "the learning rate is one real number, got a list of tensors",
                op=self.name,
                help="variables go to apply_gradients(zip(gradients, variables))",
            )
        rate = asarray(given, dtype=FLOAT64) if is_number else as_operand(given)
        if rate.shape != () or is_complex(rate.dtype):
            raise ArgumentError(
                f"the learning rate is one real number, got {rate._type}", op=self.name
            )
        return cast(rate, FLOAT64)

    def _current_rate(self) -> Tensor:
        if self._schedule is not None:
            return self._as_rate(self._schedule(self._iterations.value()))
        assert self._rate is not None
        return self._rate.value()

    # State

    @property
    def iterations(self) -> Variable:
        """How many steps have been taken."""
        return self._iterations

    def build(self, variables: Any) -> None:
        """Make the slots of variables that have none yet, in this order.

        The first step does so too; what is to be loaded from a checkpoint has to be
        there before.

        >>> import tapejit as tj
        >>> optimizer = tj.optimizers.SGD(momentum=0.9)
        >>> w = tj.Variable([1.0, 2.0], name="w")
        >>> optimizer.build([w])
        >>> list(optimizer.state())
        ['iterations', 'learning_rate', '0/w/momentum']
        """
        for variable in tree.leaves(variables):
            self._slots_of(_as_variable(variable))
        self._is_built = True

    def _slots_of(self, variable: Variable) -> dict[str, Variable]:
        variable.ref()  # in a trace: it is for this very variable
        slots = self._slots.get(variable)
        if slots is None:
            if not is_differentiable(variable.dtype):
                raise DTypeError(
                    f"{_described(variable)} is no floating point variable",
                    op=self.name,
                )
            shape = variable.shape + ((2,) if is_complex(variable.dtype) else ())
            kind = _wide(variable.dtype)
            with variable.device:
                slots = self._slots[variable] = {
                    name: Variable(
                        np.full(shape, self.initial(name), kind),
                        trainable=False,
                        name=f"{variable.name}/{name}",
                    )
                    for name in self.slot_names
                }
        return slots

    def state(self) -> dict[str, Variable]:
        """All that changes from step to step, by name.

        A slot is named after the place of its variable among those seen, the name of
        that variable, and its own.

        >>> import tapejit as tj
        >>> optimizer = tj.optimizers.Adam()
        >>> optimizer.build([tj.Variable(1.0, name="w")])
        >>> list(optimizer.state())  # w is gone by now, and so are its slots
        ['iterations', 'learning_rate']
        """
        found = {"iterations": self._iterations}
        if self._rate is not None:
            found["learning_rate"] = self._rate
        for at, (variable, slots) in enumerate(self._slots.items()):
            for name, slot in slots.items():
                found[f"{at}/{variable.name}/{name}"] = slot
        return found

    @property
    def variables(self) -> list[Variable]:
        """The variables of `state`."""
        return list(self.state().values())

    def __repr__(self) -> str:
        return f"<tj.optimizers.{type(self).__name__} {self.name!r}>"


def _as_variable(x: Any) -> Variable:
    if not isinstance(x, Variable):
        raise ArgumentTypeError(f"an optimizer updates variables, got {_kind(x)}")
    return x


def _as_pair(given: Any) -> tuple[Any, Variable]:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ArgumentTypeError(
            f"takes pairs of a gradient and a variable, got {_kind(given)}",
            op="apply_gradients",
            help="write apply_gradients(zip(gradients, variables))",
        )
    gradient, variable = given
    if not isinstance(variable, Variable):
        raise ArgumentTypeError(
            f"the second of a pair is a variable, got {_kind(variable)}",
            op="apply_gradients",
            help="a pair is (gradient, variable), in this order"
            if isinstance(gradient, Variable)
            else "only a tj.Variable can be updated",
        )
    return gradient, variable


def _fitting(gradient: Any, variable: Variable) -> Tensor:
    """A gradient that belongs to a variable by shape and kind."""
    found = as_operand(gradient, "apply_gradients")
    if found.shape != variable.shape:
        raise ShapeError(
            f"{_described(variable)} has shape {variable.shape}, its gradient "
            f"{found.shape}",
            op="apply_gradients",
        )
    if not is_differentiable(variable.dtype):
        raise DTypeError(
            f"{_described(variable)} is no floating point variable",
            op="apply_gradients",
        )
    if is_complex(found.dtype) and not is_complex(variable.dtype):
        raise DTypeError(
            f"{_described(variable)} is real, its gradient {found._type}",
            op="apply_gradients",
            help="take tj.real of the gradient",
        )
    return found


def _listed(variables: Sequence[Variable]) -> str:
    names = [_described(variable) for variable in variables[:MAX_NAMED]]
    more = len(variables) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _described(variable: Variable) -> str:
    return f"variable {variable.name!r}"


def _kind(x: Any) -> str:
    return "None" if x is None else type(x).__name__


def _wide(dtype: DType) -> DType:
    """The real dtype in which variables of `dtype` are updated."""
    return wide_dtype(real_dtype(dtype))


def _lifted(x: Tensor, dtype: DType) -> Tensor:
    """A variable of `dtype`, or its gradient, as a rule sees it."""
    if is_complex(dtype):
        x = stack([elementwise.real(x), elementwise.imag(x)], axis=-1)
    return cast(x, _wide(dtype))


def _lowered(x: Tensor, dtype: DType) -> Tensor:
    """What a rule has computed as a value of a variable of `dtype`."""
    if is_complex(dtype):
        return apply(ops.make_complex, x[..., 0], x[..., 1])
    return cast(x, dtype)
