"""Modules: Python objects that hold variables, and know which.

A module is a plain object. Nothing is registered when an attribute is set: whoever asks
for the variables walks the attributes, in the order they were set, into other modules
and into lists, tuples, dicts and other containers. What is met twice counts once, so
shared parts and parts that refer back to their owner are no special case.

The name of a variable is the way to it, "layers.0.weight".

Start reading at `Module`, then `walk`.
"""

from __future__ import annotations

import re
import reprlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import wraps
from types import FunctionType
from typing import Any, Final, NamedTuple, Self

import numpy as np

from tapejit.array.creation import asarray
from tapejit.base.config import config
from tapejit.base.errors import ArgumentError, ArgumentTypeError, DTypeError
from tapejit.base.public import public
from tapejit.base.structure import KINDS, LEAF_TYPES, classify
from tapejit.nn.summary import Summary, SummaryRow
from tapejit.tape.generator import Generator
from tapejit.tape.variable import Variable
from tapejit.tensor.device import as_device, move
from tapejit.tensor.foreign_keywords import LAYER_KEYWORDS, with_hints
from tapejit.tensor.tensor import Tensor

__all__ = ["LoadedState", "Module"]

# What the modules of other libraries have, and what to write here.
SPELLINGS: Final[dict[str, str]] = {
    "add": "append a layer with .append(layer)",
    "call": "name the method __call__",
    "children": "the attributes are the children",
    "compile": "write the step and decorate it with tj.function",
    "cuda": 'use .to("cuda:0")',
    "cpu": 'use .to("cpu")',
    "eval": "call it with training=False, which is the default",
    "fit": "write the step and run it with tj.fit",
    "forward": "name the method __call__",
    "get_weights": "use .state_dict()",
    "kernel": "use .weight",
    "load_weights": "write tj.load(path, into=model)",
    "named_parameters": "use .named_variables()",
    "parameters": "use .trainable_variables",
    "predict": "call it",
    "requires_grad_": "take gradients by the variables that are to be trained",
    "reset_state": "use .reset()",
    "reset_states": "use .reset()",
    "save": "write tj.save(path, model)",
    "save_weights": "write tj.save(path, model)",
    "set_weights": "use .load_state_dict(state)",
    "train": "call it with training=True",
    "trainable_weights": "use .trainable_variables",
    "update_state": "use .update(predictions, targets)",
    "weights": "use .variables",
    "zero_grad": "a tape gives new gradients each time: there are none to clear",
}


@public("tapejit.nn")
class LoadedState(NamedTuple):
    """What `Module.load_state_dict` found on one side only.

    >>> import tapejit as tj
    >>> tj.nn.Dense(1, input_size=1).load_state_dict({}, strict=False)
    LoadedState(missing=['weight', 'bias'], unexpected=[])
    """

    missing: list[str]
    unexpected: list[str]


@public("tapejit.nn")
class Module:
    """An object with variables, to be derived from.

    Attributes that are Variables, Modules, random Generators, or containers of them
    belong to the module. A subclass defines `__call__` and, if it likes, `__init__`,
    which need not call that of the base class; if it does, it may give a `name`. That
    is the class's in small letters otherwise. With a `policy` of `tj.mixed_precision`
    it computes by that, whatever is in force. Modules are equal to themselves alone
    and hashable, so a traced function takes them as arguments.

    >>> import tapejit as tj
    >>> class Line(tj.nn.Module):
    ...     def __init__(self):
    ...         self.slope = tj.Variable(2.0)
    ...         self.offset = tj.Variable(1.0)
    ...
    ...     def __call__(self, x):
    ...         return self.slope * x + self.offset
    >>> line = Line()
    >>> with tj.GradientTape() as tape:
    ...     y = line(3.0)
    >>> tape.gradient(y, line.trainable_variables)
    [<tj.Tensor f32[] 3.0>, <tj.Tensor f32[] 1.0>]
    >>> line
    Line(
      slope: f32[]
      offset: f32[]
    )
    """

    name: str
    policy: str | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Have keywords explained that a layer of tapejit does not have.

        And have calls follow the policy of their module, if it has one.
        """
        super().__init_subclass__(**options)
        call = vars(cls).get("__call__")
        if isinstance(call, FunctionType):
            cls.__call__ = by_own_policy(call)  # type: ignore[method-assign]
        if "__init__" in vars(cls) and cls.__module__.startswith("tapejit."):
            hinted = with_hints(cls.__init__, LAYER_KEYWORDS)
            cls.__init__ = hinted  # type: ignore[method-assign]

    def __init__(self, name: str | None = None, *, policy: str | None = None) -> None:
        if name is not None:
            self.name = str(name)
        if policy is not None:
            self._set_policy(policy)

    def _set_policy(self, policy: str | None) -> None:
        """Compute by a policy of mixed precision, not by the one in force."""
        if policy is None:
            return
        from tapejit.tensor.mixed_precision import checked

        name = type(self).__name__
        self.policy = checked(policy, name)
        if not isinstance(type(self).__call__, FunctionType):
            raise ArgumentTypeError(
                f"__call__ of {name} is no plain method, so it cannot have a policy",
                help="write `with tj.mixed_precision.policy(...):` in its body",
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes: for subclasses to define."""
        name = type(self).__name__
        other = next((x for x in ("call", "forward") if hasattr(type(self), x)), None)
        if other is None:
            raise ArgumentTypeError(f"{name} has no __call__: define it")
        raise ArgumentTypeError(f"{name} has no __call__", help=f"rename {other} to it")

    def __getattr__(self, name: str) -> Any:
        # Reached for what is not there, and by properties that raise AttributeError,
        # which are asked again so that their own message is seen.
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)
        if name == "name":
            return in_small_letters(type(self).__name__)
        hint = SPELLINGS.get(name)
        tail = f"; {hint}" if hint else ""
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}{tail}",
            name=name,
            obj=self,
        )

    # What it holds

    @property
    def variables(self) -> list[Variable]:
        """All variables, each once, in the order in which they are found.

        >>> import tapejit as tj
        >>> [v.name for v in tj.nn.BatchNorm(input_size=3).variables]
        ['batch_norm.scale', 'batch_norm.bias', 'batch_norm.moving_mean',
         'batch_norm.moving_variance']
        """
        return [found.thing for found in walk(self) if type(found.thing) is Variable]

    @property
    def trainable_variables(self) -> list[Variable]:
        """The variables that tapes watch: what to differentiate by.

        >>> import tapejit as tj
        >>> [v.name for v in tj.nn.BatchNorm(input_size=3).trainable_variables]
        ['batch_norm.scale', 'batch_norm.bias']
        """
        return [variable for variable in self.variables if variable.trainable]

    @property
    def non_trainable_variables(self) -> list[Variable]:
        """The other variables: running statistics and counters.

        >>> import tapejit as tj
        >>> len(tj.nn.BatchNorm(input_size=3).non_trainable_variables)
        2
        """
        return [variable for variable in self.variables if not variable.trainable]

    def named_variables(self) -> list[tuple[str, Variable]]:
        """The variables with their names, which are the ways to them.

        >>> import tapejit as tj
        >>> model = tj.nn.Sequential([tj.nn.Dense(2, input_size=3)])
        >>> [name for name, variable in model.named_variables()]
        ['layers.0.weight', 'layers.0.bias']
        """
        named = _named_state(self)
        return [(name, x) for name, x in named.items() if type(x) is Variable]

    def to(self, device: Any) -> Self:
        """Move all variables and random generators to a device; returns the module.

        What refers to the variables, an optimizer for example, goes on with them.

        >>> import tapejit as tj
        >>> layer = tj.nn.Dense(2, input_size=3)
        >>> with tj.config.override(cuda="emulated"):
        ...     layer.to("cuda:0").weight.device
        'cuda:0'
        """
        there = as_device(device)
        for found in walk(self):
            if not isinstance(found.thing, Module):
                _variable_of(found.thing)._move(there)
        return self

    # Its state

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of all values by name: of variables, and of random generators.

        >>> import tapejit as tj
        >>> tj.nn.Dense(1, kernel_initializer="ones", input_size=2).state_dict()
        {'weight': array([[1.], [1.]], dtype=float32),
         'bias': array([0.], dtype=float32)}
        """
        return {
            name: np.array(_variable_of(thing).numpy())
            for name, thing in _named_state(self).items()
        }

    def load_state_dict(
        self, state: Mapping[str, Any], strict: bool = True
    ) -> LoadedState:
        """Take the values of a `state_dict`.

        Names, shapes and dtypes must agree; if anything does not, the error names all
        of it and nothing is changed. With `strict=False` names may be on one side
        only; they are returned. Random generators are no weights: they take their
        state if it is there. Of a whole checkpoint, `tj.load(path)` of a file with a
        model, an optimizer and more, the model's part is taken.

        >>> import tapejit as tj
        >>> one, two = (tj.nn.Dense(3, input_size=2) for _ in range(2))
        >>> loaded = two.load_state_dict(one.state_dict())
        >>> bool(tj.all(one.weight == two.weight))
        True
        """
        own = _named_state(self)
        weights = [name for name, x in own.items() if isinstance(x, Variable)]
        part = _part_with({str(name): x for name, x in state.items()}, weights)
        given = {name: asarray(value) for name, value in part.items()}
        missing = [name for name in weights if name not in given]
        unexpected = [
            name
            for name, value in given.items()
            if name not in own and not _is_generator_state(name, value)
        ]
        lines: list[str] = []
        if strict:
            lines += [f"missing     {name}: {_type_of(own[name])}" for name in missing]
            lines += [f"unexpected  {name}: {given[name]._type}" for name in unexpected]
        common = {name: value for name, value in given.items() if name in own}
        wrong_dtypes = False
        for name, value in common.items():
            wanted = _type_of(own[name])
            if value.shape != wanted.shape:
                lines.append(f"shape       {name}: {wanted}, given {value._type}")
            elif value.dtype != wanted.dtype:
                lines.append(f"dtype       {name}: {wanted}, given {value._type}")
                wrong_dtypes = True
        if lines:
            kind = DTypeError if wrong_dtypes and len(lines) == 1 else ArgumentError
            raise kind(
                f"the state does not fit this {type(self).__name__}:\n    "
                + "\n    ".join(lines),
                op="load_state_dict",
                help=self._help_with_state(missing, unexpected),
            )
        for name, value in common.items():
            variable = _variable_of(own[name])
            variable.assign(move(value, variable.device))
        return LoadedState(missing, unexpected)

    def _help_with_state(self, missing: list[str], unexpected: list[str]) -> str | None:
        new = [
            found.path or type(self).__name__
            for found in (Found("", self, self), *walk(self))
            if isinstance(found.thing, Module) and not _is_built(found.thing)
        ]
        if unexpected and new:
            return (
                f"not built yet: {', '.join(new)}; call the module once, or give its "
                "layers input_size="
            )
        if missing or unexpected:
            return "strict=False ignores names that are on one side only"
        return None

    # How it looks

    def summary(self) -> Summary:
        """A table of the modules inside with their variables and sizes; print it.

        >>> import tapejit as tj
        >>> layers = [tj.nn.Dense(8, "relu", input_size=4), tj.nn.Dense(1)]
        >>> print(tj.nn.Sequential(layers).summary())
        name      module  variables                  parameters
        layers.0  Dense   weight f32[4,8], bias f32[8]       40
        layers.1  Dense   made at the first call              0
        40 parameters, 40 of them trainable, 160 bytes
        """
        rows = {id(self): SummaryRow("", type(self).__name__, _is_built(self))}
        for path, thing, owner in walk(self):
            if isinstance(thing, Module):
                kind = type(thing).__name__
                rows[id(thing)] = SummaryRow(path, kind, _is_built(thing))
            elif type(thing) is Variable:
                row = rows[id(owner)]
                row.variables[path[len(row.path) :].removeprefix(".")] = thing
        top, *inner = rows.values()
        return Summary([top, *inner] if top.variables or not inner else inner)

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        lines = []
        for name, value in vars(self).items():
            for path, thing in _parts(value, name, {}):
                if isinstance(thing, Module):
                    lines.append(f"{path}: {thing!r}")
                elif type(thing) is Variable:
                    lines.append(f"{path}: {_type_of(thing)}")
        if not lines:
            return f"{type(self).__name__}()"
        inner = textwrap.indent("\n".join(lines), "  ")
        return f"{type(self).__name__}(\n{inner}\n)"


def by_own_policy(call: FunctionType) -> Any:
    """`__call__` by the policy of the module, if it has one of its own."""

    @wraps(call)
    def call_by_policy(self: Module, *args: Any, **kwargs: Any) -> Any:
        policy = self.policy
        if policy is None or policy == config.mixed_precision:
            return call(self, *args, **kwargs)
        with config.override(mixed_precision=policy):
            return call(self, *args, **kwargs)

    return call_by_policy


def in_small_letters(name: str) -> str:
    """The name of a class as that of a variable would be.

    >>> in_small_letters("MultiHeadAttention"), in_small_letters("MaxPool2D")
    ('multi_head_attention', 'max_pool2d')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name).lower()


class Found(NamedTuple):
    """Something that belongs to a module: the way to it, it, and what holds it."""

    path: str
    thing: Any
    owner: Module


def walk(module: Module) -> Iterator[Found]:
    """The modules, variables and generators inside a module, each once.

    >>> from tapejit.nn import Dense, Sequential
    >>> shared = Dense(2)
    >>> [found.path for found in walk(Sequential([shared, Dense(1), shared]))]
    ['layers.0', 'layers.1']
    """
    return _inside(module, "", {id(module): module})


def _inside(module: Module, path: str, seen: dict[int, Any]) -> Iterator[Found]:
    # `seen` keeps what it has seen: the id of something gone may come again.
    for name, value in list(vars(module).items()):
        if value is None or type(value) in _PLAIN:
            continue  # most attributes: this is asked for in every training step
        for where, thing in _parts(value, f"{path}.{name}" if path else name, seen):
            if id(thing) in seen:
                continue
            seen[id(thing)] = thing
            yield Found(where, thing, module)
            if isinstance(thing, Module):
                yield from _inside(thing, where, seen)


_PLAIN: Final = frozenset({bool, int, float, str, FunctionType, np.ndarray})


def _parts(value: Any, path: str, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """The modules, variables and generators in an attribute, whatever holds them."""
    if isinstance(value, (Module, Variable, Generator)):
        yield path, value
        return
    cls = type(value)
    if cls in LEAF_TYPES or value is None:
        return
    kind = KINDS.get(cls) or classify(cls)
    if kind is None or id(value) in seen:
        return
    seen[id(value)] = value
    children, keys, _ = kind.take(value)
    for at, child in enumerate(children):
        step = kind.step(keys, at).strip("[]<>.'\"")
        yield from _parts(child, f"{path}.{step}", seen)


def _named_state(module: Module) -> dict[str, Variable | Generator]:
    named: dict[str, Variable | Generator] = {}
    for path, thing, _ in walk(module):
        if isinstance(thing, Module):
            continue
        if path in named:
            raise ArgumentError(
                f"two variables of {type(module).__name__} are both called {path!r}",
                help="give the dicts that hold them keys that differ as text",
            )
        named[path] = thing
    return named


def _part_with(state: dict[str, Any], weights: Sequence[str]) -> dict[str, Any]:
    """The part of a checkpoint that has these weights: all of it, or `model.` of it.

    That is so if no name fits as it is and some do behind a prefix; if several
    prefixes have equally many, nobody knows which is meant.
    """
    if not weights or any(name in state for name in weights):
        return state
    prefixes = {
        name.removesuffix(f".{weight}")
        for weight in weights
        for name in state
        if name.endswith(f".{weight}")
    }
    fitting = {
        prefix: sum(f"{prefix}.{weight}" in state for weight in weights)
        for prefix in sorted(prefixes)
    }
    most = max(fitting.values(), default=0)
    best = [prefix for prefix, count in fitting.items() if count == most]
    if len(best) > 1:
        raise ArgumentError(
            f"the state has several parts that fit: {', '.join(best)}",
            op="load_state_dict",
            help="give the one that is meant, its names without that prefix",
        )
    if not best:
        return state
    start = f"{best[0]}."
    return {
        name.removeprefix(start): value
        for name, value in state.items()
        if name.startswith(start)
    }


def _is_generator_state(name: str, value: Tensor) -> bool:
    """Whether this is what a random generator saves, which is no weight."""
    kind = _type_of(Generator(0))
    return name.rpartition(".")[2] == "generator" and value._type == kind


def _variable_of(thing: Variable | Generator) -> Variable:
    return thing._variable if isinstance(thing, Generator) else thing


def _type_of(thing: Variable | Generator) -> Any:
    return _variable_of(thing)._tensor._type


def _is_built(module: Module) -> bool:
    """Whether a module has all its variables, as far as it tells."""
    return bool(getattr(module, "is_built", True))
