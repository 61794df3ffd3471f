"""The pages of the reference: public names, documented by their docstrings.

A page under `api/` lists names in a directive:

    .. public:: tapejit.linalg

       det
       solve

and gets a table of them, each with its first sentence, and then each in full. Without
names it means all public names of the namespace. The directive is needed because most
names of tapejit are imported when they are first asked for, so autodoc does not see
them by looking at the module.

Docstrings are plain text with examples. `as_rst` turns them into reStructuredText: a
word between backticks is code, and no other character means anything.

Start reading at `listing`, then `as_rst`.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

# Docstrings


def as_rst(lines: Iterable[str]) -> list[str]:
    """A docstring as reStructuredText.

    >>> as_rst(["Powers `x**y` of *both*, x_ and |y|."])
    ['Powers ``x**y`` of \\\\*both\\\\*, x\\\\_ and \\\\|y\\\\|.', '']
    >>> as_rst(["name    meaning", "x       a number"])
    ['::', '', '   name    meaning', '   x       a number', '']
    """
    found: list[str] = []
    for paragraph in paragraphs(lines):
        if paragraph[0].lstrip().startswith(">>>"):
            found += paragraph
        elif is_set(paragraph):
            found += ["::", "", *(f"   {line}" for line in paragraph)]
        else:
            found += escaped("\n".join(paragraph)).split("\n")
        found.append("")
    return found


def paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """The lines between empty ones; an example also starts a paragraph."""
    current: list[str] = []
    is_example = False
    for line in [*lines, ""]:
        starts = line.lstrip().startswith(">>>") and not is_example
        if current and (starts or not line.strip()):
            yield current
            current, is_example = [], False
        if line.strip():
            is_example = is_example or starts
            current.append(line)


def is_set(paragraph: list[str]) -> bool:
    """Whether the lines stand as they are: indented, or columns of a table."""
    if paragraph[0].startswith("- "):
        return False
    if paragraph[0].startswith(" "):
        return True
    return all(re.search(r"\S {2,}\S", line) for line in paragraph)


def escaped(text: str) -> str:
    """Running text: code between backticks, everything else as it is."""
    parts = re.split(r"`([^`]+)`", text)
    made = ""
    for at, part in enumerate(parts):
        if at % 2 == 0:
            made += re.sub(r"([\\*|_`])", r"\\\1", part)
            continue
        # Code ends where a word does; an empty escape stands for that.
        before = "\\ " if made[-1:].isalnum() else ""
        after = "\\ " if parts[at + 1][:1].isalnum() else ""
        made += f"{before}``{part}``{after}"
    return made


# Names


def namespace(name: str) -> Any:
    """`tapejit`, or a namespace inside it, which need not be a module of that path."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        outer, _, inner = name.rpartition(".")
        if not outer:
            raise
        return getattr(namespace(outer), inner)


def names_of(space: Any) -> list[str]:
    """The public names of a namespace, without the namespaces inside it."""
    listed = getattr(space, "__all__", None)
    names = (
        [n for n in dir(space) if not n.startswith("_")] if listed is None else listed
    )
    return [name for name in names if not isinstance(getattr(space, name), ModuleType)]


def description(space: str, name: str) -> list[str]:
    """The directive that documents one name."""
    thing = getattr(namespace(space), name)
    if inspect.isclass(thing):
        kind = "exception" if issubclass(thing, BaseException) else "class"
        return [f".. auto{kind}:: {space}.{name}", "   :members:", ""]
    if callable(thing):
        return [f".. autofunction:: {space}.{name}", ""]
    text = [escaped(f"`{thing!r}`")]
    if type(thing).__module__.startswith("tapejit"):
        text = as_rst((inspect.getdoc(type(thing)) or "").split("\n"))
    return [f".. py:data:: {space}.{name}", "", *(f"   {line}" for line in text), ""]


def listing(space: str, names: Iterable[str]) -> list[str]:
    """A table of names with their first sentences, and each name in full."""
    names = list(names)
    described = [name for name in names if callable(getattr(namespace(space), name))]
    lines: list[str] = []
    if len(described) > 1:
        lines += [".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   ~{space}.{name}" for name in described]
        lines.append("")
    for name in names:
        lines += description(space, name)
    return lines


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx, which is imported here so that the rest can do without."""
    from sphinx.util.docutils import SphinxDirective

    class Public(SphinxDirective):
        """`.. public:: namespace`, with names, or for all of them."""

        required_arguments = 1
        has_content = True

        def run(self) -> list[Any]:
            space = self.arguments[0]
            names = " ".join(self.content).split() or names_of(namespace(space))
            return self.parse_text_to_nodes("\n".join(listing(space, names)))

    def convert(app: Any, what: str, name: str, thing: Any, options: Any, lines: Any):
        lines[:] = as_rst(lines)

    app.add_directive("public", Public)
    app.connect("autodoc-process-docstring", convert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
