"""Saving what a training program holds, and loading it into a program like it.

A checkpoint is one safetensors file. Variables, random generators, tensors and arrays
are its arrays, under the dotted way that leads to them (`model.layers.0.weight`); so
another program can read them, and weights that another program wrote can be loaded.
Numbers, texts and lists of them are JSON in the file's metadata. No file can run code.

The data structures are `Contents` (named arrays and named plain values: what is in a
file, or kept in memory) and `Change` (what loading one part will do and how to take it
back). Loading first collects a Change for every part and all that does not fit; only
if all fits are the changes made, and if one fails the others are taken back.

Start reading at `save`, then `gather`, then `load`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from tapejit.array.creation import asarray
from tapejit.base import tree
from tapejit.base.dims import Shape
from tapejit.base.errors import ArgumentTypeError, CheckpointError, UnsupportedError
from tapejit.base.structure import LEAF, Structure
from tapejit.base.types import DType, as_dtype
from tapejit.tape.generator import Generator
from tapejit.tape.variable import Variable
from tapejit.tensor.dispatch import TRACE
from tapejit.tensor.tensor import Tensor, another
from tapejit.training.tensor_file import (
    Array,
    Path,
    parse_json,
    read_arrays,
    write_arrays,
)

__all__ = ["load", "save"]

VERSION: Final = 1
METADATA_KEY: Final = "tapejit"
PLAIN: Final = frozenset({type(None), bool, int, float, complex, str})


def save(path: Path, state: Any = None, /, **named: Any) -> None:
    """Write variables, modules, optimizers, generators, arrays and numbers to a file.

    `state` is any structure of them, or they are given by name. So is every object
    with `state()` and `restore(state)`, such as `tj.data.batches`. The file is in the
    safetensors format and appears completely or not at all: a program that is killed
    while it writes leaves the former file.

    The names in it are the ways through the structure, joined by dots. Arrays of
    complex128, which the format lacks, are stored as pairs of float64.

    >>> import os, tempfile
    >>> import tapejit as tj
    >>> path = os.path.join(tempfile.mkdtemp(), "run.safetensors")
    >>> layer = {"weight": tj.Variable([1.0, 2.0]), "bias": tj.Variable(0.5)}
    >>> tj.save(path, layer=layer, epoch=3)
    >>> layer["bias"].assign(0.0)
    <tj.Tensor f32[] 0.0>
    >>> print(tj.load(path, into={"layer": layer, "epoch": 0})["epoch"], layer["bias"])
    3 0.5
    """
    _refuse_trace("save")
    if named and state is not None:
        raise ArgumentTypeError(
            "give one structure or parts by name, not both", op="save"
        )
    if not named and state is None:
        raise ArgumentTypeError("there is nothing to save", op="save")
    contents = gather(named if state is None else state)
    document = {"version": VERSION, "values": contents.values}
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    write_arrays(path, contents.arrays, {METADATA_KEY: text})


def load(path: Path, into: Any = None, *, strict: bool = True) -> Any:
    """Read a file that `save` wrote, or any other safetensors file.

    Without `into`, the result is a dict from name to array or plain value. With it,
    what it holds gets the values of the file: variables, modules, optimizers and
    generators are changed, and a structure like `into` is returned, with the arrays
    and plain values of the file in it. Parts of the file that a dict `into` does not
    name stay where they are: `into={"model": model}` takes the model of a whole run.
    If anything of what it names is missing in the file, is there without a place, or
    has another shape or dtype, a CheckpointError names all of it and nothing is
    changed. With `strict=False` names may be on one side only.

    >>> import os, tempfile
    >>> import tapejit as tj
    >>> path = os.path.join(tempfile.mkdtemp(), "run.safetensors")
    >>> tj.save(path, weight=tj.Variable([1.0, 2.0]), epoch=3)
    >>> tj.load(path)
    {'weight': array([1., 2.], dtype=float32), 'epoch': 3}
    >>> weight = tj.Variable([0.0, 0.0])
    >>> loaded = tj.load(path, into={"weight": weight, "epoch": 0})
    >>> print(loaded["epoch"], weight)
    3 [1. 2.]
    """
    _refuse_trace("load")
    arrays, metadata = read_arrays(path)
    contents = _contents_of_file(arrays, metadata.get(METADATA_KEY))
    if into is None:
        return contents.decoded()
    return contents.load_into(into, os.fspath(path), strict)


def _refuse_trace(name: str) -> None:
    if TRACE.get() is not None:
        raise UnsupportedError(
            "files are not part of a traced function",
            op=name,
            help=f"call tj.{name} between the calls of the function",
        )


# Contents


class Contents:
    """Named arrays and named plain values, which may refer to arrays.

    `values` are JSON: see `Contents.encode`.

    >>> contents = gather({"w": Variable([1.0, 2.0]), "epoch": 3})
    >>> contents.arrays, contents.values
    ({'w': array([1., 2.], dtype=float32)}, {'epoch': 3})
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.values: dict[str, Any] = {}

    def add(self, name: str, leaf: Any) -> None:
        """Add one part of a structure."""
        state_of, _ = _hooks(leaf)
        if isinstance(leaf, Generator):
            self._add_array(name, leaf._variable._tensor._value)
        elif isinstance(leaf, Variable):
            self._add_array(name, leaf._tensor._value)
        elif isinstance(leaf, (Tensor, np.ndarray, np.generic)):
            self._add_array(name, leaf)
        elif _has_state_dict(leaf):
            for inner, value in leaf.state_dict().items():
                self.add(_joined(name, inner), value)
        elif state_of is not None:
            self._claim(name)
            self.values[name] = self.encode(state_of(), name)
        elif callable(getattr(type(leaf), "state", None)):
            for inner, value in named_leaves(leaf.state(), name):
                self.add(inner, value)
        else:
            self._claim(name)
            self.values[name] = self.encode(leaf, name)

    def _add_array(self, name: str, value: Any) -> None:
        array = np.asarray(value)
        try:
            dtype = as_dtype(array.dtype)
        except TypeError:
            raise ArgumentTypeError(
                f"{name} is an array of {array.dtype}, which cannot be saved", op="save"
            ) from None
        self._claim(name)
        self.arrays[name] = array.astype(dtype, copy=False)

    def _claim(self, name: str) -> None:
        if name in self.arrays or name in self.values:
            raise CheckpointError(
                f"two things would be called {name!r}",
                op="save",
                help="a dot in a key reads like one between keys",
            )

    def encode(self, x: Any, name: str) -> Any:
        """A nest of plain values and arrays as JSON.

        What JSON lacks is an object whose only key starts with `$`; a key of the
        user's that does so gets another `$`.

        >>> Contents().encode({"a": (1, float("inf")), "$b": [True, None]}, "")
        {'a': {'$tuple': [1, {'$float': 'inf'}]}, '$$b': [True, None]}
        """
        kind = type(x)
        if kind is float:
            return x if math.isfinite(x) else {"$float": repr(x)}
        if kind is complex:
            return {"$complex": [self.encode(part, name) for part in (x.real, x.imag)]}
        if kind in PLAIN:
            return x
        if kind in (list, tuple):
            items = [self.encode(e, _joined(name, str(i))) for i, e in enumerate(x)]
            return items if kind is list else {"$tuple": items}
        if kind is dict:
            _check_keys(x, name)
            return {
                f"${key}" if key.startswith("$") else key: self.encode(
                    value, _joined(name, key)
                )
                for key, value in x.items()
            }
        if isinstance(x, (Tensor, Variable, np.ndarray, np.generic)):
            self._add_array(name, x._tensor._value if isinstance(x, Variable) else x)
            return {"$array": name}
        raise ArgumentTypeError(
            f"{name} is a {kind.__name__}, which cannot be saved",
            op="save",
            help="variables, modules, optimizers, generators, arrays, numbers and "
            "texts can, and objects with state() and restore(state)",
        )

    def decode(self, x: Any) -> Any:
        """What `encode` encoded."""
        if isinstance(x, list):
            return [self.decode(item) for item in x]
        if not isinstance(x, dict):
            return x
        match x:
            case {"$tuple": [*items]} if len(x) == 1:
                return tuple(self.decode(item) for item in items)
            case {"$float": ("nan" | "inf" | "-inf") as text} if len(x) == 1:
                return float(text)
            case {"$complex": [real, imag]} if len(x) == 1:
                parts = self.decode(real), self.decode(imag)
                if all(type(part) is float for part in parts):
                    return complex(*parts)
            case {"$array": str(name)} if len(x) == 1 and name in self.arrays:
                return self.arrays[name]
        wrong = [key for key in x if key.startswith("$") and key[1:2] != "$"]
        if wrong:
            raise CheckpointError(f"the file has a plain value with {wrong[0]!r}")
        return {key.removeprefix("$"): self.decode(value) for key, value in x.items()}

    def inner_arrays(self) -> set[str]:
        """The arrays that belong to values."""
        found: set[str] = set()
        waiting = list(self.values.values())
        while waiting:
            match waiting.pop():
                case {"$array": str(name)}:
                    found.add(name)
                case dict() as items:
                    waiting.extend(items.values())
                case [*items]:
                    waiting.extend(items)
        return found

    def decoded(self) -> dict[str, Any]:
        """Name to array or value."""
        inner = self.inner_arrays()
        arrays = {n: array for n, array in self.arrays.items() if n not in inner}
        return arrays | {name: self.decode(x) for name, x in self.values.items()}

    def load_into(self, into: Any, source: str, strict: bool = True) -> Any:
        """Change what `into` holds; a structure like it with the loaded values."""
        asked = {str(key) for key in into} if isinstance(into, Mapping) else None
        reader = CheckpointReader(self, asked)
        leaves, spec = tree.flatten(into, is_leaf=_is_part, none_is_leaf=True)
        names = _names(spec, "", into)
        changes = [
            reader.change(name, leaf) for name, leaf in zip(names, leaves, strict=True)
        ]
        reader.raise_if_wrong(source, strict)
        _make(changes)
        results = [change.result for change in changes]
        return tree.unflatten(spec, results)


def gather(state: Any) -> Contents:
    """Everything that a structure holds, by name; arrays are not copied.

    >>> sorted(gather([Variable(1.0), {"b": 2}]).arrays)
    ['0']
    """
    contents = Contents()
    for name, leaf in named_leaves(state):
        contents.add(name, leaf)
    return contents


def _contents_of_file(arrays: dict[str, Array], text: str | None) -> Contents:
    contents = Contents()
    contents.arrays = arrays
    if text is None:  # written by another program
        return contents
    document = parse_json(text, "its plain values")
    match document:
        case {"version": int(version), "values": dict(values)} if (
            version == VERSION and len(document) == 2
        ):
            contents.values = values
        case {"version": int(version)} if version > VERSION:
            raise CheckpointError(
                f"the file has version {version}, this tapejit reads {VERSION}",
                help="use a newer tapejit",
            )
        case _:
            raise CheckpointError("the file's plain values are not what tj.save writes")
    try:
        contents.decoded()
    except RecursionError:
        raise CheckpointError("the file's values are nested too deeply") from None
    both = contents.values.keys() & (arrays.keys() - contents.inner_arrays())
    if both:
        raise CheckpointError(f"{min(both)!r} is an array and a plain value")
    return contents


# Names


def named_leaves(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The parts of a structure with their names.

    >>> dict(named_leaves({"a": [np.ones(2), {"b": 1}], "losses": [1.0, 0.5]}))
    {'a.0': array([1., 1.]), 'a.1.b': 1, 'losses': [1.0, 0.5]}
    """
    leaves, spec = tree.flatten(state, is_leaf=_is_part, none_is_leaf=True)
    return zip(_names(spec, prefix, state), leaves, strict=True)


def _names(spec: Structure, prefix: str, whole: Any) -> list[str]:
    if spec is LEAF:
        return [prefix if prefix or _brings_names(whole) else "value"]
    found: list[str] = []
    _add_names(spec, prefix, found)
    return found


def _add_names(spec: Structure, prefix: str, found: list[str]) -> None:
    if spec is LEAF:
        found.append(prefix)
        return
    is_mapping = issubclass(spec.cls, Mapping)
    if is_mapping:
        _check_keys(spec.keys, prefix)
    for at, child in enumerate(spec.children):
        if is_mapping:
            step = spec.keys[at]
        else:
            step = spec.kind.step(spec.keys, at).strip("[].<>")
        _add_names(child, _joined(prefix, step), found)


def _check_keys(keys: Any, name: str) -> None:
    for key in keys:
        if type(key) is not str:
            where = f" of {name}" if name else ""
            raise ArgumentTypeError(
                f"the keys of a dict that is saved are texts; {key!r}{where} is not"
            )


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _is_part(x: Any) -> bool:
    """Whether a container is one part: it has state of its own, or is one value."""
    if x is None or _has_state_dict(x) or callable(getattr(type(x), "state", None)):
        return True
    return type(x) in (list, tuple) and _is_plain(x)


def _is_plain(x: Any) -> bool:
    kind = type(x)
    if kind in (list, tuple):
        return all(_is_plain(item) for item in x)
    if kind is dict:
        return all(_is_plain(item) for item in x.values())
    return kind in PLAIN


def _has_state_dict(x: Any) -> bool:
    cls = type(x)
    return callable(getattr(cls, "state_dict", None)) and callable(
        getattr(cls, "load_state_dict", None)
    )


def _brings_names(x: Any) -> bool:
    """Whether it is saved as several things with names of their own."""
    has_state = callable(getattr(type(x), "state", None))
    return _has_state_dict(x) or (has_state and _hooks(x) == (None, None))


def _hooks(x: Any) -> tuple[Callable[[], Any] | None, Callable[[Any], None] | None]:
    """`state` and `restore` of an object that has both."""
    cls = type(x)
    if all(callable(getattr(cls, name, None)) for name in ("state", "restore")):
        return x.state, x.restore
    return None, None


# Loading


class Change(NamedTuple):
    """What loading one part does, how it is taken back, and what it results in."""

    make: Callable[[], Any]
    undo: Callable[[], Any]
    result: Any


def _nothing() -> None:
    pass


class CheckpointReader:
    """Hands out the contents of a file and notes what does not fit.

    `asked` are the parts that are wanted, None for all; the rest of a file is left.
    """

    def __init__(self, contents: Contents, asked: Collection[str] | None) -> None:
        self.contents = contents
        self.asked = asked
        self.taken: set[str] = set()
        self.missing: list[str] = []
        self.wrong: list[str] = []
        self.inner = contents.inner_arrays()
        self.has_lazy = False

    def change(self, name: str, leaf: Any) -> Change:
        """What loading this part means."""
        if isinstance(leaf, Generator):
            return self._assignment(name, leaf._variable)._replace(result=leaf)
        if isinstance(leaf, Variable):
            return self._assignment(name, leaf)
        if isinstance(leaf, (Tensor, np.ndarray, np.generic)):
            return self._replacement(name, leaf)
        if _has_state_dict(leaf):
            return self._module(name, leaf)
        state_of, restore = _hooks(leaf)
        if state_of is not None and restore is not None:
            return self._restoring(name, leaf, state_of, restore)
        if callable(getattr(type(leaf), "state", None)):
            self.has_lazy = True
            inner = [self.change(*part) for part in named_leaves(leaf.state(), name)]
            return Change(
                lambda: _make(inner), lambda: [each.undo() for each in inner], leaf
            )
        return Change(_nothing, _nothing, self._value(name, leaf))

    def _assignment(self, name: str, variable: Variable) -> Change:
        before = variable._tensor
        array = self._array(name, variable.shape, variable.dtype)
        if array is None:
            return Change(_nothing, _nothing, variable)
        new = asarray(array, device=variable.device)
        return Change(
            lambda: variable.assign(new),
            lambda: variable.assign(another(before)),
            variable,
        )

    def _replacement(self, name: str, leaf: Any) -> Change:
        array = self._array(name, leaf.shape, leaf.dtype)
        result: Any = leaf if array is None else array
        if array is not None and isinstance(leaf, Tensor):
            result = asarray(array, device=leaf.device)
        elif array is not None and isinstance(leaf, np.generic):
            result = array[()]
        return Change(_nothing, _nothing, result)

    def _module(self, name: str, module: Any) -> Change:
        self.has_lazy = True
        before = module.state_dict()
        new = dict(before)
        for inner, value in before.items():
            array = self._array(_joined(name, inner), value.shape, value.dtype)
            if array is not None:
                new[inner] = array
        return Change(
            lambda: module.load_state_dict(new),
            lambda: module.load_state_dict(before),
            module,
        )

    def _restoring(
        self, name: str, owner: Any, state_of: Any, restore: Callable[[Any], None]
    ) -> Change:
        before = state_of()
        new = self._value(name, before)
        return Change(lambda: restore(new), lambda: restore(before), owner)

    def _array(self, name: str, shape: Shape, dtype: DType) -> Array | None:
        """The array with this name if it fits."""
        self.taken.add(name)
        array = None if name in self.inner else self.contents.arrays.get(name)
        if array is None and name in self.contents.values:
            self.wrong.append(f"{name} is a plain value in the file, an array here")
        elif array is None:
            self.missing.append(f"{name} is missing in the file")
        elif array.shape != shape:
            self.wrong.append(
                f"{name} has shape {array.shape} in the file, {shape} here"
            )
        elif array.dtype != dtype:
            self.wrong.append(f"{name} is {array.dtype} in the file, {dtype} here")
        else:
            return array
        return None

    def _value(self, name: str, default: Any) -> Any:
        """The plain value with this name."""
        self.taken.add(name)
        if name in self.contents.values:
            return self.contents.decode(self.contents.values[name])
        if name in self.contents.arrays:
            self.wrong.append(f"{name} is an array in the file, a plain value here")
        else:
            self.missing.append(f"{name} is missing in the file")
        return default

    def raise_if_wrong(self, source: str, strict: bool) -> None:
        """A CheckpointError with everything that does not fit."""
        names = [*self.contents.arrays, *self.contents.values]
        left = [
            f"{name} is in the file only"
            for name in names
            if name not in self.taken
            and name not in self.inner
            and (self.asked is None or name.partition(".")[0] in self.asked)
        ]
        problems = [*self.missing, *left, *self.wrong] if strict else self.wrong
        if not problems:
            return
        text = problems[0] if len(problems) == 1 else "\n    ".join(["", *problems])
        space = " " if len(problems) == 1 else ""
        help = None
        if strict and self.has_lazy and left:
            help = (
                "what is made at the first use has to be there before: call the model "
                "once, and optimizer.build(variables)"
            )
        elif strict and (self.missing or left):
            help = "strict=False ignores names that are on one side only"
        raise CheckpointError(
            f"{source} does not fit:{space}{text}", op="load", help=help
        )


def _make(changes: list[Change]) -> None:
    """Make all changes or, if one of them fails, none."""
    for at, change in enumerate(changes):
        try:
            change.make()
        except BaseException:  # an interrupt too changes nothing
            for done in reversed(changes[: at + 1]):
                done.undo()
            raise
