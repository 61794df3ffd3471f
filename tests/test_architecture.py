"""The shape of the code base: who may import whom, what must be said, what is clean.

The sources are read, not run, wherever that is enough: a test names the file and the
line that breaks a rule and the rule itself.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import io
import json
import keyword
import re
import sys
import tokenize
import types
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elsewhere import ROOT, run_interpreter

import tapejit
from tapejit import ops
from tapejit.base import numpy_adapter
from tapejit.base.errors import ArgumentError
from tapejit.ir import OPS, Op, register
from tapejit.loops.index import Axis

PACKAGE = ROOT / "tapejit"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = ("tapejit", "tests", "examples", "benchmarks")  # in docs, layout is meant


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


# Each may import itself and what stands before it. The package itself comes last:
# it gathers the public names.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"base"}),
    frozenset({"ir"}),
    frozenset({"ops"}),
    frozenset({"transforms"}),
    frozenset({"rewrite"}),
    frozenset({"loops"}),
    frozenset({"targets"}),
    frozenset({"runtime"}),
    frozenset({"tensor"}),
    frozenset({"array"}),
    frozenset({"tape"}),
    frozenset({"tracing"}),
    frozenset({"nn"}),
    frozenset({"optimizers"}),
    frozenset({"training"}),
    frozenset({"testing", "debug"}),
    frozenset({"", "__main__"}),
)

# Ops that the batcher treats itself, because their meaning is not a tensor's.
STRUCTURAL = frozenset({"param", "literal", "item", "call", "custom_call"})


def module_name(path: Path) -> str:
    """`tapejit.ir.node` for `tapejit/ir/node.py`, `tapejit.ir` for its package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> int:
    """The rank of a module; one that no layer names is an error to be decided."""
    first = module.split(".")[1] if "." in module else ""
    for rank, names in enumerate(LAYERS):
        if first in names:
            return rank
    raise AssertionError(f"{module} belongs to no layer: name it in LAYERS")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Every part of a module that can run: all but what is for type checkers."""
    for child in ast.iter_child_nodes(tree):
        if is_type_checking(child):
            assert isinstance(child, ast.If)
            for other in child.orelse:
                yield other
                yield from executed(other)
            continue
        yield child
        yield from executed(child)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imports_of(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """The lines and names of the tapejit modules that a source imports when run."""
    for node in executed(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "tapejit":
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")
                above = above[: len(above) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            if base.split(".")[0] != "tapejit":
                continue
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if is_module(inner) else base


def wrong_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    """Each import of a later layer, as a sentence."""
    rank = layer_of(module)
    return [
        f"{module} line {line} imports {found}, which is of a later layer"
        for line, found in imports_of(source, module, is_package)
        if layer_of(found) > rank
    ]


# Imports


def test_every_layer_imports_only_earlier_ones() -> None:
    offenders = [
        text
        for path in SOURCES
        for text in wrong_imports(
            path.read_text(), module_name(path), path.name == "__init__.py"
        )
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("source", "module", "count"),
    [
        ("from tapejit.tensor.tensor import Tensor", "tapejit.ir.node", 1),
        ("from tapejit.ir.node import Node", "tapejit.tensor.tensor", 0),
        ("def f():\n    import tapejit.transforms.vjp", "tapejit.ops.linalg", 1),
        ("import tapejit", "tapejit.tensor.tensor", 1),
        ("from tapejit import ops", "tapejit.ir.node", 1),
        ("from tapejit import Tensor", "tapejit.testing", 1),
        ("from ..tape import tape", "tapejit.ir.node", 1),
        ("from .graph import Graph", "tapejit.ir.node", 0),
        ("if TYPE_CHECKING:\n    from tapejit.tape import tape", "tapejit.ir.x", 0),
        (
            "if TYPE_CHECKING:\n    pass\nelse:\n    from tapejit.tape import tape",
            "tapejit.ir.node",
            1,
        ),
    ],
)
def test_an_import_of_a_later_layer_is_found(
    source: str, module: str, count: int
) -> None:
    assert len(wrong_imports(source, module)) == count


def test_a_relative_import_in_a_package_starts_at_the_package() -> None:
    found = list(imports_of("from .node import Op", "tapejit.ir", is_package=True))
    assert found == [(1, "tapejit.ir.node")]


def test_a_module_of_no_layer_is_refused() -> None:
    with pytest.raises(AssertionError, match="belongs to no layer"):
        layer_of("tapejit.helpers.strings")


def modules_loaded_by(statement: str) -> set[str]:
    """The top-level modules of a fresh interpreter after one statement."""
    code = f"import sys\n{statement}\nimport json\nprint(json.dumps(list(sys.modules)))"
    out = run_interpreter("-c", code)
    assert out.returncode == 0, out.stderr
    return {name.split(".")[0] for name in json.loads(out.stdout)}


def test_importing_tapejit_loads_numpy_and_nothing_else() -> None:
    loaded = modules_loaded_by("import tapejit")
    heavy = {"numba", "llvmlite", "scipy", "ml_dtypes", "opt_einsum"}
    assert not loaded & heavy
    others = loaded - modules_loaded_by("import numpy") - sys.stdlib_module_names
    assert others == {"tapejit"}


def test_a_training_step_loads_no_compiler() -> None:
    step = (
        "import tapejit as tj\n"
        "w = tj.Variable([1.0, 2.0])\n"
        "with tj.GradientTape() as tape:\n    y = tj.sum(tj.tanh(w) @ w)\n"
        "tape.gradient(y, w)"
    )
    assert not modules_loaded_by(step) & {"numba", "llvmlite", "scipy"}


# Files


def test_no_module_is_named_after_nothing() -> None:
    names = {"utils", "util", "helpers", "common", "misc"}
    offenders = [str(p) for p in PACKAGE.rglob("*") if p.stem in names]
    assert not offenders


def test_every_module_opens_with_its_essay() -> None:
    offenders = [
        f"{path.relative_to(ROOT)} has no docstring"
        for path in SOURCES
        if not (ast.get_docstring(parsed(path)) or "").strip()
    ]
    assert not offenders, "\n".join(offenders)


def test_every_package_says_where_to_start_reading() -> None:
    packages = [path for path in SOURCES if path.name == "__init__.py"]
    offenders = [
        module_name(path)
        for path in packages
        if "tart reading at" not in (ast.get_docstring(parsed(path)) or "")
    ]
    assert not offenders
    folders = {path.parent for path in SOURCES}
    assert folders == {path.parent for path in packages}


def test_what_a_module_calls_the_start_exists() -> None:
    """`Start reading at `x`` names something of the module, or a file beside it."""
    offenders = []
    for path in SOURCES:
        text = ast.get_docstring(parsed(path)) or ""
        _, found, after = text.partition("tart reading at `")
        if not found:
            continue
        name = after.partition("`")[0]
        if not (is_defined(name, path) or (path.parent / name).is_file()):
            offenders.append(f"{path.relative_to(ROOT)}: there is no {name}")
    assert not offenders, "\n".join(offenders)


def words_of_code(source: str) -> set[str]:
    """The names of a source and the words in its strings, without essays."""
    words: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_essay = token.type == tokenize.STRING and '"""' in token.string
        if token.type in (tokenize.NAME, tokenize.STRING) and not is_essay:
            words.update(re.findall(r"\w+", token.string))
    return words


@cache
def words_of_package() -> frozenset[str]:
    """What essays may name: what is in the code, or is a file of it."""
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in SOURCES]
    files = {part for names in parts for part in names}
    return frozenset(dir(builtins)).union(
        keyword.kwlist, files, *(words_of_code(path.read_text()) for path in SOURCES)
    )


def unknown_names(source: str) -> list[str]:
    """What essays put into backticks as a name or a file, and nothing has.

    A formula (`x`) is no name, and what begins with another library's is not ours.
    """
    unknown = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        text = ast.get_docstring(node) or ""
        for name in re.findall(r"`([A-Za-z_][\w./]*)`", text):
            if "/" in name and (ROOT / name).exists():
                continue
            parts = [part for part in re.split(r"[./]", name) if len(part) > 1]
            is_ours = bool(parts) and parts[0] not in OTHER_LIBRARIES
            if is_ours and not words_of_package().issuperset({*parts} - {"py"}):
                unknown.append(name)
    return unknown


OTHER_LIBRARIES = frozenset({"jax", "np", "numba", "numpy", "scipy", "tf", "torch"})


def test_what_essays_name_exists() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}: there is no {name}"
        for path in SOURCES
        for name in unknown_names(path.read_text())
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("essay", "unknown"),
    [
        ("`ir.node.Node` is in `node.py`, `x` is a formula", []),
        ("see `tests/test_architecture.py` and `tf.math.segment_mean`", []),
        ("`whole_flowers` says so, in `garden.py`", ["whole_flowers", "garden.py"]),
        ("`targets/garden/node.py` has `Node.op`", ["targets/garden/node.py"]),
    ],
)
def test_a_name_that_nothing_has_is_found(essay: str, unknown: list[str]) -> None:
    assert unknown_names(f'"""{essay}."""') == unknown


def is_defined(dotted: str, path: Path) -> bool:
    found: Any = importlib.import_module(module_name(path))
    if is_module(dotted):
        return True
    for part in dotted.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_numpys_private_parts_are_touched_in_one_file() -> None:
    offenders = []
    for path in SOURCES:
        if path.name == "numpy_adapter.py":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                owner = ast.unparse(node.value).split(".")[0]
                if owner in ("np", "numpy") and not node.attr.endswith("__"):
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    offenders.append(f"{where} uses {ast.unparse(node)}")
    assert not offenders, "\n".join(offenders)


# Names


def repeated_classes(sources: dict[str, str]) -> list[str]:
    """Each class name that stands for two classes, with where they are."""
    places: dict[str, list[str]] = {}
    for path, source in sources.items():
        for node in executed(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return [f"{name}: {', '.join(at)}" for name, at in places.items() if len(at) > 1]


def test_a_class_name_is_one_class() -> None:
    """One word, one thing: a name in an error or an essay needs no module with it."""
    texts = {x.relative_to(ROOT).as_posix(): x.read_text() for x in SOURCES}
    offenders = repeated_classes(texts)
    assert not offenders, "\n".join(offenders)


def test_a_class_name_that_is_used_twice_is_found() -> None:
    sources = {"a.py": "class Step:\n    pass", "b.py": "def f():\n  class Step: pass"}
    assert repeated_classes(sources) == ["Step: a.py:1, b.py:2"]
    assert not repeated_classes({"a.py": "class Step:\n    pass", "b.py": "Step = 1"})


# Numbers


# Where numbers are not choices: folders and files, and names in other files.
FIXED_NUMBERS: dict[str, str] = {
    "targets/cpu/call/": "places in memory, flags and numbers of the system",
    "targets/cpu/machine/linking.py": "the format of object files",
    "targets/cpu/machine/objects.py": "the format of object files",
    "targets/cpu/machine/processor.py": "what processors answer",
    "targets/cpu/simd/storage.py": "bits of 16-bit floats",
    "targets/cpu/vecmath/": "coefficients, and the ranges that they are for",
    "targets/python/": "what readable source looks like",
    "loops/check.py:MOST_SAMPLES": "of a check, which changes no code",
    "loops/fuse/row_updates.py:MOST_ROWS": "numbers of 32 bits",
    "loops/kernels.py:ALIGNMENT": "of all arrays",
    "loops/lower/lower.py:FAR": "positions whose distance is a number, too",
    "loops/lower/lower.py:MOST_EXACT": "whole numbers that are floats",
    "loops/printer.py:COMMENT_COLUMN": "what printed plans look like",
    "targets/cpu/arrays/random.py:BLOCK_WORDS": "of the cipher",
    "targets/cpu/arrays/scatter.py:HASH": "a function of its own",
    "targets/cpu/machine/host.py:ALIGNMENT": "of all arrays",
    "targets/cpu/schedule/allocate.py:MOST_PARTS": "bits of a word",
    "targets/cpu/schedule/tile_roles.py:BLOCK_WORDS": "of the cipher",
    "targets/cpu/schedule/tile_roles.py:WORD": "of the cipher",
    "targets/cuda/arrays/scatter.py:NO_ROW": "the largest number of 64 bits",
    "targets/cuda/kernel.py:ALIGNED": "of arrays, and of what a thread loads at once",
}


def is_number(value: ast.expr | None) -> bool:
    """Whether an expression is a number, or a tuple of them, as it is written."""
    match value:
        case ast.Constant(value=bool()):
            return False
        case ast.Constant(value=int() | float()):
            return True
        case ast.UnaryOp(operand=inner):
            return is_number(inner)
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
        case ast.Tuple(elts=parts):
            return bool(parts) and all(map(is_number, parts))
    return False


def numbers_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The lines and names of the numbers that a module defines."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_number(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in ast.walk(ast.Tuple(targets)):
                if isinstance(name, ast.Name):
                    yield node.lineno, name.id


def loose_numbers(source: str, path: str) -> list[str]:
    """Each number that is neither a field of tuning or numerics nor fixed."""
    if any(path.startswith(part) for part in FIXED_NUMBERS):
        return []
    return [
        f"{path}:{line} {name}: make it a field of tuning.py, or of numerics.py if it "
        "can change a bit"
        for line, name in numbers_in(ast.parse(source))
        if f"{path}:{name}" not in FIXED_NUMBERS
    ]


def test_numbers_that_choose_code_are_fields() -> None:
    """Of `Tuning` and `Numerics`, with a unit, in one place for each target."""
    texts = {x.relative_to(PACKAGE).as_posix(): x.read_text() for x in SOURCES}
    offenders = [
        text
        for path, source in texts.items()
        if path.startswith(("loops/", "targets/"))
        for text in loose_numbers(source, path)
    ]
    assert not offenders, "\n".join(offenders)
    named = [key.partition(":") for key in FIXED_NUMBERS]
    unused = [
        f"{start}{colon}{name}"
        for start, colon, name in named
        if not any(
            path.startswith(start) and (not name or f"\n{name}" in source)
            for path, source in texts.items()
        )
    ]
    assert not unused, unused


@pytest.mark.parametrize(
    ("source", "path", "count"),
    [
        ("NEAR: Final = 4096", "loops/steps.py", 1),
        ("NEAR = 24 << 10", "targets/cpu/nest/loops.py", 1),
        ("SETS, WAYS = 1024, 8", "targets/cpu/matmul/tiling.py", 2),
        ("SHARE: float = -0.5", "targets/cpu/machine/host.py", 1),
        ("BEST = (4, 5, 6)", "targets/cpu/schedule/plan.py", 1),
        ("ALIGNMENT: Final = 64", "loops/kernels.py", 0),
        ("ALIGNMENT: Final = 64", "loops/steps.py", 1),
        ("LINE: Final = 16", "targets/cpu/call/thread_layout.py", 0),
        ("IS_HERE = True", "loops/steps.py", 0),
        ("class Tuning:\n    near_bytes: int = 64", "targets/cpu/tuning.py", 0),
    ],
)
def test_a_number_that_is_no_field_is_found(source: str, path: str, count: int) -> None:
    assert len(loose_numbers(source, path)) == count


# Axes


def sizes_of_axes(source: str) -> list[int]:
    """The lines that ask the axis of a loop or of a value for its size."""
    names = {"axis", "dim", "label", "row", "column", "vector", "root", "own"}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr == "size":
            owner = node.value
            while isinstance(owner, ast.Subscript):
                owner = owner.value
            name = owner.attr if isinstance(owner, ast.Attribute) else ""
            name = owner.id if isinstance(owner, ast.Name) else name
            if name in names or name in ("axes", "dims"):
                found.append(node.lineno)
    return found


def test_an_axis_has_an_extent_and_a_hint_but_no_size() -> None:
    """What is chosen by size asks for the hint, code for the extent."""
    assert not hasattr(Axis(3), "size")
    matmuls = "targets/cpu/matmul/"  # whose axes of a batch have one size
    offenders = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if path.relative_to(PACKAGE).as_posix().startswith(("loops/", "targets/"))
        and matmuls not in path.as_posix()
        for line in sizes_of_axes(path.read_text())
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("loop.axis.size", 1),
        ("[dim.size for dim in dims]", 1),
        ("axes[-1].size", 1),
        ("axis.extent + loop.axis.hint", 0),
        ("memory.size", 0),
    ],
)
def test_a_size_of_an_axis_is_found(source: str, count: int) -> None:
    assert len(sizes_of_axes(source)) == count


# Types


def annotations_of(tree: ast.AST) -> Iterator[ast.expr]:
    """What parameters, results and variables are said to be."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef) and node.returns:
            yield node.returns


@pytest.mark.parametrize("layer", ["loops", "targets"])
def test_few_annotations_say_any(layer: str) -> None:
    """A tenth at most: there, what is passed around has types."""
    said = [
        [x.id for x in ast.walk(annotation) if isinstance(x, ast.Name)]
        for path in (PACKAGE / layer).rglob("*.py")
        for annotation in annotations_of(parsed(path))
    ]
    assert len(said) > 500
    assert sum("Any" in names for names in said) <= len(said) / 10


# Public names


def public_things() -> dict[str, Any]:
    """What a user can name: the public names and those of the public modules."""
    found: dict[str, Any] = {}
    for name in tapejit.__all__:
        thing = getattr(tapejit, name)
        if isinstance(thing, types.ModuleType):
            assert hasattr(thing, "__all__"), f"{name} does not say what is public"
            for inner in thing.__all__:
                found[f"{name}.{inner}"] = getattr(thing, inner)
        else:
            found[name] = thing
    return found


def public_callables() -> dict[str, Any]:
    return {
        name: thing
        for name, thing in public_things().items()
        if inspect.isfunction(thing) or inspect.isclass(thing)
    }


def test_the_public_names_are_distinct_and_there() -> None:
    names = tapejit.__all__
    assert len(set(names)) == len(names)
    assert public_callables()
    missing = [name for name in names if not hasattr(tapejit, name)]
    assert not missing


def test_every_public_name_has_a_docstring_with_an_example() -> None:
    offenders = [
        f"{name}: {'no example' if thing.__doc__ else 'no docstring'}"
        for name, thing in public_callables().items()
        if ">>>" not in (thing.__doc__ or "")
    ]
    assert not offenders, "\n".join(offenders)


def test_every_public_method_has_a_docstring() -> None:
    offenders = []
    for name, cls in public_callables().items():
        if not inspect.isclass(cls):
            continue
        for attribute in dir(cls):
            member = inspect.getattr_static(cls, attribute)
            ours = getattr(member, "fget", None) or getattr(member, "__func__", member)
            module = getattr(ours, "__module__", None) or ""
            is_ours = module.startswith("tapejit") and callable(ours)
            if attribute.startswith("_") or not is_ours:
                continue
            if not (getattr(ours, "__doc__", None) or "").strip():
                offenders.append(f"{name}.{attribute} has no docstring")
    assert not offenders, "\n".join(offenders)


# The registry


def positional_count(rule: Any) -> int | None:
    """How many operands a type rule takes; None for any number."""
    kinds = [p.kind for p in inspect.signature(rule).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    return sum(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)


def attribute_names(rule: Any) -> frozenset[str] | None:
    """The attributes a rule names; None if it takes any or is not ours."""
    if not inspect.isfunction(rule):  # a ufunc or an operator written in C
        return None
    parameters = inspect.signature(rule).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    only = inspect.Parameter.KEYWORD_ONLY
    return frozenset(p.name for p in parameters if p.kind is only)


def test_every_record_stands_under_its_own_name() -> None:
    assert all(op.name == name for name, op in OPS.items())
    assert len({id(op) for op in OPS.values()}) == len(OPS)
    assert all(name.isidentifier() for name in OPS)


def test_every_record_can_be_imported_from_ops() -> None:
    names = set(OPS) - {"param", "literal", "start"}
    missing = [
        name for name in sorted(names) if getattr(ops, name, None) is not OPS[name]
    ]
    assert not missing
    assert names <= set(ops.__all__)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ArgumentError, match="'add' is registered twice"):
        register(Op("add", type_rule=len, eval=len, differentiable=False))
    assert OPS["add"] is ops.add


def test_every_record_has_its_rules() -> None:
    offenders = []
    for name, op in OPS.items():
        if not callable(op.type_rule) or not callable(op.eval):
            offenders.append(f"{name} has no type rule or no meaning")
        if op.differentiable and (op.vjp is None or op.jvp is None):
            offenders.append(f"{name} is differentiable but lacks a mode")
        if not op.differentiable and (op.vjp or op.jvp or op.deriv):
            offenders.append(f"{name} has a derivative it says it has not")
        takes_operands = positional_count(op.type_rule) != 0
        needs_batch = takes_operands and name not in STRUCTURAL and not op.is_effect
        if needs_batch and op.batch is None:
            offenders.append(f"{name} cannot be batched")
    assert not offenders, "\n".join(offenders)


def test_elementwise_records_have_a_formula_per_operand() -> None:
    offenders = []
    for name, op in OPS.items():
        if op.deriv is None:
            continue
        if op.scalar is None:
            offenders.append(f"{name} has formulas but no lane expression")
            continue
        attrs = attribute_names(op.scalar) or frozenset()
        lanes = len(inspect.signature(op.scalar).parameters) - 1 - len(attrs)
        if lanes != len(op.deriv):
            offenders.append(f"{name}: {lanes} lanes, {len(op.deriv)} formulas")
    assert not offenders, "\n".join(offenders)


def test_the_rules_of_a_record_agree_on_its_attributes() -> None:
    offenders = []
    for name, op in OPS.items():
        wanted = attribute_names(op.type_rule)
        if wanted is None:
            continue
        rules = {"eval": op.eval, "vjp": op.vjp, "jvp": op.jvp, "batch": op.batch}
        for kind, rule in rules.items():
            given = None if rule is None else attribute_names(rule)
            if given is not None and given != wanted:
                offenders.append(f"{name}: {kind} takes {given}, types {wanted}")
    assert not offenders, "\n".join(offenders)


def test_what_a_reduction_starts_from_changes_nothing() -> None:
    for op in OPS.values():
        if op.reduces is None:
            continue
        kinds = "?" if op in (ops.all, ops.any) else "?bBefd"
        for dtype in map(np.dtype, kinds):
            x = np.array([0, 1, 1], dtype)
            identity = np.array(op.reduces.identity(dtype), dtype)
            found = op.reduces.combine.eval(identity, x)
            np.testing.assert_array_equal(found, x, f"{op.name} of {dtype}")


# Tables of op names

# What looks like one and is not: names of somebody else's that ops are called, too.
OTHERS_NAMES = {
    "array/at.py UPDATES": "methods of `x.at[i]`",
    "array/einops_backend.py REDUCTIONS": "what einops calls its reductions",
    "array/numpy/protocol.py SCIPY_UFUNCS": "ufuncs of `scipy.special`",
    "array/operators.py HINTED": "methods of tensors",
    "array/scattering.py METHODS": "methods of `x.at[i]`",
    "array/special.py PLAIN_FUNCTIONS": "functions of `scipy.special`",
    "loops/lower/complex_parts.py FORMULAS": "functions of the lane algebra",
    "targets/cpu/machine/objects.py _EXACT": "functions of C's library",
    "targets/cpu/simd/lanes.py FUNCTIONS": "functions of the lane algebra",
    "targets/python/lane_source.py OPERATORS": "functions of the lane algebra",
    "targets/python/lane_source.py RENAMED": "functions of the lane algebra",
    "targets/python/source_text.py INSTEAD": "Python's builtins",
    "tensor/foreign_keywords.py WRITTEN": "public functions, in hints",
    "tensor/foreign_names.py ATTRIBUTES": "names of other libraries",
    "tensor/foreign_names.py SPELLINGS": "names of other libraries",
    "tensor/symbolic_float.py _name": "Python's methods",
    "tensor/symbolic_size.py _name": "Python's methods",
    "tracing/captured_arrays.py REDUCES": "methods of NumPy's arrays",
}


def elements_of(part: ast.AST) -> Iterator[Sequence[ast.AST | None]]:
    """What is written down in a collection, keys and values apart."""
    match part:
        case ast.Dict(keys=keys, values=values):
            yield keys
            yield values
        case ast.Set(elts=elements) | ast.List(elts=elements):
            yield elements
        case ast.Tuple(elts=elements):
            yield elements
        case ast.MatchOr(patterns=patterns):
            yield [x.value for x in patterns if isinstance(x, ast.MatchValue)]


def name_tables(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the variable of each collection of three names of ops or more."""
    variable: dict[ast.AST, str] = {}
    for statement in ast.walk(tree):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=inside):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as inside):
                pass
            case ast.For(target=ast.Name(id=name), iter=inside):
                pass
            case _:
                continue
        variable.update(dict.fromkeys(ast.walk(inside), name))
    for part in ast.walk(tree):
        for elements in elements_of(part):
            texts = [x.value for x in elements if isinstance(x, ast.Constant)]
            count = sum(isinstance(x, str) and x in OPS for x in texts)
            if count >= 3 and variable.get(part) != "__all__":  # public names
                yield getattr(part, "lineno", 0), variable.get(part, "")


def test_no_table_of_op_names_stands_outside_of_the_records() -> None:
    """What is said of ops by name is a field of their record, or an identity test."""
    found = {
        f"{path.relative_to(PACKAGE)} {name}": f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if path.parent != PACKAGE / "ops"
        for line, name in name_tables(parsed(path))
    }
    offenders = [f"{found[x]} lists ops" for x in found if x not in OTHERS_NAMES]
    assert not offenders, "\n".join([*offenders, "say it in their records (Op)"])
    assert found.keys() == OTHERS_NAMES.keys(), "what is gone need not be allowed"


@pytest.mark.parametrize(
    "source",
    [
        'CHEAP = frozenset({"add", "sub", "mul"})',
        'COST: dict[str, int] = {"add": 1, "sub": 1, "tan": 9, "other": 2}',
        'NUMPYS = {np.add: "add", np.subtract: "sub", np.multiply: "mul"}',
        'def f(node):\n    return node.op.name in ("sum", "max", "min")',
        'def f(node):\n    if node.op.name in ("sum", "max", "min"):\n        pass',
        'def f(name):\n    match name:\n        case "sum" | "max" | "min":\n'
        "            pass",
        'def f(names=("sum", "max", "min")):\n    pass',
    ],
)
def test_a_table_of_op_names_is_found(source: str) -> None:
    assert list(name_tables(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        '__all__ = ["add", "sub", "mul"]',
        "CHEAP = frozenset({ops.add, ops.sub, ops.mul})",
        'PARTS = ("add", "sub", "front", "back")',
    ],
)
def test_other_collections_are_not_tables_of_op_names(source: str) -> None:
    assert not list(name_tables(ast.parse(source)))


# NumPy's private parts


def test_the_installed_numpy_has_the_switch_that_the_adapter_uses() -> None:
    assert numpy_adapter.uses_private_switch, (
        f"NumPy {np.__version__} has changed its error handling: each operation is "
        "slower by a microsecond until numpy_adapter finds the new switch. The public "
        "np.errstate is in use, so results are right."
    )


def test_the_public_switch_works_and_nests() -> None:
    switch = numpy_adapter._public_switch()
    assert numpy_adapter._works(switch)
    silence, restore = switch
    before = np.geterr()
    outer = silence()
    inner = silence()
    restore(inner)
    assert np.geterr()["divide"] == "ignore"
    restore(outer)
    assert np.geterr() == before


def test_the_private_switch_nests() -> None:
    before = np.geterr()
    outer = numpy_adapter.silence()
    inner = numpy_adapter.silence()
    numpy_adapter.restore(inner)
    assert np.geterr()["divide"] == "ignore"
    numpy_adapter.restore(outer)
    assert np.geterr() == before


def test_a_switch_that_silences_nothing_is_not_used() -> None:
    def silence() -> None:
        return None

    def restore(token: Any) -> None:
        return None

    assert not numpy_adapter._works((silence, restore))


@pytest.mark.parametrize("part", ["_extobj_contextvar", "_make_extobj"])
def test_without_numpys_private_parts_the_public_switch_takes_over(part: str) -> None:
    code = (
        "import numpy as np\n"
        f"del np._core.umath.{part}\n"
        "import tapejit as tj\n"
        "from tapejit.base import numpy_adapter\n"
        "assert not numpy_adapter.uses_private_switch\n"
        "with np.errstate(all='raise'):\n"
        "    x = tj.Variable([0.0, 1.0])\n"
        "    with tj.GradientTape() as tape:\n"
        "        y = tj.sum(tj.log(x))\n"
        "    print(float(y), tape.gradient(y, x).numpy().tolist())\n"
        "    assert np.geterr()['divide'] == 'raise'\n"
    )
    out = run_interpreter("-W", "error", "-c", code)
    assert out.returncode == 0, out.stderr
    assert out.stdout.split("\n")[0] == "-inf [inf, 1.0]"


# Tools


def assert_clean(*command: str) -> None:
    out = run_interpreter("-m", *command, timeout=300)
    assert out.returncode == 0, out.stdout + out.stderr


def test_ruff_has_no_objections() -> None:
    assert_clean("ruff", "check", "--output-format=concise", *FOLDERS)


def test_ruff_would_format_nothing_differently() -> None:
    options = ("--check", "--output-format=concise")
    assert_clean("ruff", "format", *options, *FOLDERS)


def test_mypy_has_no_objections() -> None:
    assert_clean("mypy", "--strict", "tapejit")
