"""Arguments that a body must not change.

A traced body gets containers of its own, filled with tensors that have no values. What
it does to them (`l.append(x)`, `d["k"] = x`) its caller would never see, so that is an
error. `GivenArguments` finds out that something has changed, by comparing before and
after; for the message the line is looked up in the source.

Start reading at `GivenArguments.check_unchanged`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final

from tapejit.base import tree
from tapejit.base.errors import UnsupportedError
from tapejit.base.origin import describe, short_location

# Methods of lists and dictionaries that change them.
MUTATORS: Final = frozenset(
    [
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "clear",
        "sort",
        "reverse",
        "update",
        "setdefault",
        "popitem",
        "__setitem__",
        "__delitem__",
    ]
)


class GivenArguments:
    """The arguments of a body, `(args, kwargs)`, and what was in them at first."""

    __slots__ = ("_given", "_leaves", "_structure")

    def __init__(self, given: Any) -> None:
        self._given = given
        self._leaves, self._structure = tree.flatten(given, none_is_leaf=True)

    def check_unchanged(self, function: Callable[..., Any]) -> None:
        """An error if the body of `function` has changed a container among them."""
        leaves, structure = tree.flatten(self._given, none_is_leaf=True)
        if structure == self._structure and all(map(_is, leaves, self._leaves)):
            return
        name, line = _where_changed(function)
        what = "an argument" if name is None else f"its argument {name}"
        raise UnsupportedError(
            f"{getattr(function, '__name__', 'the function')} changes {what}, at "
            f"{line}; the caller would not see it, because a function gets containers "
            "of its own",
            help="return the new value, change a copy, or keep what changes in a "
            "tj.Variable",
        )


def _is(x: Any, y: Any) -> bool:
    return x is y


def _where_changed(function: Callable[..., Any]) -> tuple[str | None, str]:
    """The parameter that a function changes, and its line; else where it is defined."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None, "an unknown line"
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    try:
        lines, first = inspect.getsourcelines(code)
        parsed = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):  # typed in, or a part of a line
        return None, describe((code, 0))
    for node in ast.walk(parsed):
        for changed in _changed_by(node):
            name = _root(changed)
            if name in names:
                at = node.lineno  # type: ignore[attr-defined]  # a statement or a call
                text = lines[at - 1].strip()
                file = short_location((code, 0)).rpartition(":")[0]
                return name, f"{file}:{first + at - 1} in {code.co_name}:  {text}"
    return None, describe((code, 0))


def _changed_by(node: ast.AST) -> Iterator[ast.expr]:
    """The containers that a statement or a call changes."""
    targets: list[ast.expr] = []
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            pass
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            targets = [target]
        case ast.Call(func=ast.Attribute(value=owner, attr=name)):
            if name in MUTATORS:
                yield owner
    for each in targets:
        parts = each.elts if isinstance(each, ast.Tuple) else [each]
        for part in parts:
            if isinstance(part, (ast.Subscript, ast.Attribute)):
                yield part.value
            elif isinstance(node, ast.AugAssign):
                yield part  # l += [x]


def _root(changed: ast.expr) -> str | None:
    """The name that an expression like `d["k"].parts[0]` begins with."""
    match changed:
        case ast.Subscript(value=owner) | ast.Attribute(value=owner):
            return _root(owner)
        case ast.Name(id=name):
            return name
    return None
