"""The documentation as a site: its tables of contents, its reference, its build.

Sphinx is needed for the build alone, which is part of a full run. What can be said of
the site without building it is always checked: every page is reached from the index,
every public name is in the reference once and has a docstring, and the settings name
no extension that the `docs` extra does not bring.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from elsewhere import load_module

import tapejit as tj

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.rglob("*.rst")])

# Namespaces of tapejit that a page documents completely.
NAMESPACES = [
    "tapejit",
    *(f"tapejit.{name}" for name in tj.__all__ if inspect.ismodule(getattr(tj, name))),
    "tapejit.nn.initializers",
    "tapejit.optimizers.schedules",
]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return load_module(DOCS / "reference.py")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What conf.py sets; it also changes paths, which are put back."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return runpy.run_path(str(DOCS / "conf.py"))


# Pages


def listed_in(path: Path) -> Iterator[Path]:
    """The pages that the tables of contents of a page name."""
    text = path.read_text()
    tables = re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    tables += re.findall(r"^\.\. toctree::\n((?:[ \t]+.*\n|\n)+)", text, re.MULTILINE)
    for line in "\n".join(tables).splitlines():
        name = line.strip()
        if name and not name.startswith(":"):
            found = [path.parent / f"{name}{suffix}" for suffix in (".md", ".rst")]
            existing = [page for page in found if page.exists()]
            assert existing, f"{path.name} lists {name}, which does not exist"
            yield existing[0]


def test_the_index_leads_to_every_page_once() -> None:
    reached, waiting = Counter([DOCS / "index.md"]), [DOCS / "index.md"]
    while waiting:
        found = list(listed_in(waiting.pop()))
        reached.update(found)
        waiting += found
    assert dict(reached) == dict.fromkeys(PAGES, 1)


def test_the_notebook_draws_and_what_it_draws_is_only_run_when_it_is_built() -> None:
    text = (DOCS / "tutorial.md").read_text()
    cells = re.findall(
        r"^```\{code-cell\}[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    pictures = [cell for cell in cells if cell.startswith(":tags: [picture]")]
    assert len(pictures) >= 2
    drawn = [cell for cell in cells if "plt" in cell or "matplotlib" in cell]
    assert drawn == pictures


# Settings


def test_the_docs_extra_brings_every_extension(settings: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [*project["optional-dependencies"]["docs"], *project["dependencies"]]
    brought = {re.split(r"[<>=]", name)[0].replace("-", "_") for name in required}
    used = [*settings["extensions"], settings["html_theme"]]
    own = {path.stem for path in DOCS.glob("*.py")}
    missing = [name for name in used if name.partition(".")[0] not in brought | own]
    assert missing == []


def test_the_settings_import_nothing_but_the_standard_library() -> None:
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse((DOCS / "conf.py").read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert imported <= sys.stdlib_module_names


# The reference


def documented(reference: ModuleType) -> list[tuple[str, str]]:
    """(namespace, name) of everything that a directive of a page documents."""
    found = []
    for page in DOCS.rglob("*.rst"):
        pattern = r"^\.\. public:: (\S+)\n((?:[ ]+.*\n|\n)*)"
        for space, body in re.findall(pattern, page.read_text() + "\n", re.MULTILINE):
            names = body.split() or reference.names_of(reference.namespace(space))
            found += [(space, name) for name in names]
    return found


def test_every_public_name_is_in_the_reference_once(reference: ModuleType) -> None:
    counts = Counter(documented(reference))
    assert [key for key, count in counts.items() if count > 1] == []
    wanted = {
        (space, name)
        for space in NAMESPACES
        for name in reference.names_of(reference.namespace(space))
    }
    # `tj.tree` also offers two names of `tj`, which are described there.
    shared = {
        ("tapejit.tree", name) for name in ("StructureError", "register_structure")
    }
    assert sorted(wanted - set(counts)) == sorted(shared)
    known = [key for key in counts if key[0] in NAMESPACES]
    assert sorted(set(known) - wanted) == []


def test_everything_in_the_reference_has_a_docstring(reference: ModuleType) -> None:
    missing = []
    for space, name in documented(reference):
        thing = getattr(reference.namespace(space), name)
        if callable(thing) and not inspect.getdoc(thing):
            missing.append(f"{space}.{name}")
    assert missing == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["Sets `x`."], ["Sets ``x``."]),
        (["A `Node`s b_ *c* |d| e\\f"], ["A ``Node``\\ s b\\_ \\*c\\* \\|d\\| e\\\\f"]),
        (["Code `a", "b` goes on."], ["Code ``a", "b`` goes on."]),
        ([">>> f(*x)", "`y`"], [">>> f(*x)", "`y`"]),
        (["Text", ">>> 1", "1"], ["Text", "", ">>> 1", "1"]),
        (["x    one", "yy   two"], ["::", "", "   x    one", "   yy   two"]),
        (["    f(x) -> y"], ["::", "", "       f(x) -> y"]),
        (["- `a`: one;", "- b."], ["- ``a``: one;", "- b."]),
    ],
)
def test_docstrings_become_restructured_text(
    reference: ModuleType, given: list[str], expected: list[str]
) -> None:
    assert reference.as_rst(given) == [*expected, ""]


def test_a_page_shows_a_table_and_then_each_name(reference: ModuleType) -> None:
    lines = reference.listing("tapejit", ["sin", "GradientTape", "ShapeError", "pi"])
    text = "\n".join(lines)
    assert lines[0] == ".. autosummary::"
    assert lines[3:6] == [
        f"   ~tapejit.{x}" for x in ("sin", "GradientTape", "ShapeError")
    ]
    for directive in (
        ".. autofunction:: tapejit.sin",
        ".. autoclass:: tapejit.GradientTape",
        ".. autoexception:: tapejit.ShapeError",
        ".. py:data:: tapejit.pi",
    ):
        assert directive in text


# The build


def test_the_site_builds_without_a_warning(
    full: bool, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """In a full run; otherwise only that conf.py can be run and asks for no less."""
    assert settings["nb_execution_raise_on_error"]
    assert settings["nb_execution_mode"] == "force"
    assert not settings.get("suppress_warnings")
    if not full:
        return
    assert importlib.util.find_spec("sphinx"), "a full run needs: pip install '.[docs]'"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, str(DOCS), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tutorial = (tmp_path / "tutorial.html").read_text()
    assert tutorial.count('<img alt="') >= 2
    assert "graph shrink(x: f32[2], v: f32[2])" in re.sub(r"<[^>]*>", "", tutorial)
    assert (tmp_path / "api" / "training.html").exists()
