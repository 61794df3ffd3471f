"""A process loads what it uses: nobody waits for modules that nobody asked for.

Each test asks a fresh interpreter which modules it has. What is loaded late must not
be seen to be: names are listed, imported, pickled and found as if it were there.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from elsewhere import run_interpreter

import tapejit as tj
from tapejit.targets.cpu.machine import linking

STEP = """
import numpy as np
import tapejit as tj
x = tj.asarray(np.linspace(-1, 1, 10))
@tj.function
def step(x):
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.sum((1 - x[:-1]) ** 2)
    return y, tape.gradient(y, x)
y, g = step(x)
"""


def loaded_by(program: str, **environment: str) -> set[str]:
    """The modules of a fresh interpreter at the end of a program."""
    program += "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    out = run_interpreter("-c", program, **environment)
    assert out.returncode == 0, out.stderr
    return set(json.loads(out.stdout.splitlines()[-1]))


def parts_among(modules: set[str], *parts: str) -> list[str]:
    """Which of the modules are one of these, or inside of one."""
    return sorted(
        module
        for module in modules
        for part in parts
        if module == part or module.startswith(f"{part}.")
    )


# What is not loaded


def test_importing_loads_neither_networks_nor_what_compiles() -> None:
    compilers = ("rewrite.pipeline", "loops", "targets", "runtime.compiled")
    unwanted = ("nn", "optimizers", "training", *compilers)
    loaded = loaded_by("import tapejit")
    assert not parts_among(loaded, *(f"tapejit.{part}" for part in unwanted))


def test_a_compiled_step_loads_nothing_of_gpus(tmp_path: Path) -> None:
    loaded = loaded_by(STEP, TAPEJIT_CACHE_DIR=str(tmp_path), TAPEJIT_NATIVE="1")
    assert "tapejit.targets.cpu.target" in loaded
    assert not parts_among(
        loaded, "tapejit.runtime.cuda", "tapejit.targets.cuda", "cuda"
    )


def test_a_function_of_networks_loads_no_layers_and_no_generators() -> None:
    loaded = loaded_by("import tapejit as tj\ntj.nn.relu(tj.ones(3))")
    unwanted = ("nn.layers", "nn.module", "tape.random", "array.linalg")
    assert "tapejit.nn" in loaded
    assert not parts_among(loaded, *(f"tapejit.{part}" for part in unwanted))


def test_a_layer_loads_no_decompositions() -> None:
    loaded = loaded_by("import tapejit as tj\ntj.nn.Dense(2)(tj.ones((3, 4)))")
    assert "tapejit.nn.layers" in loaded
    assert not parts_among(loaded, "tapejit.array.factorisations", "difflib")


@pytest.mark.parametrize(
    ("name", "home"), [("tan", "trigonometry"), ("var", "statistics")]
)
def test_asking_for_a_name_loads_its_module_alone(name: str, home: str) -> None:
    late = {path for path in tj._FUNCTIONS if path.startswith("tapejit.array.")}
    before = loaded_by("import tapejit")
    alone = loaded_by(f"import tapejit\nimport tapejit.array.{home}")
    asked = loaded_by(f"import tapejit\ntapejit.{name}")
    assert f"tapejit.array.{home}" in late - before
    assert asked == alone


def test_code_from_disk_is_run_without_what_makes_code(tmp_path: Path) -> None:
    environment = {"TAPEJIT_CACHE_DIR": str(tmp_path / "cache"), "TAPEJIT_NATIVE": "1"}
    makers = ("tapejit.rewrite.pipeline", "tapejit.loops.lower")
    first = loaded_by(STEP, **environment)
    second = loaded_by(STEP, **environment)
    assert parts_among(first, *makers)
    assert not parts_among(second, *makers)
    assert not second & {"numba", "scipy", "numpy.typing"}
    if linking.HERE:  # elsewhere it is LLVM that loads code
        assert not parts_among(second, "llvmlite.binding", "llvmlite.ir")


# What is not noticed


def test_the_table_of_late_names_is_that_of_the_modules() -> None:
    for path, names in tj._FUNCTIONS.items():
        module = importlib.import_module(path)
        listed = names.split()
        assert listed == getattr(module, "__all__", listed), path
        for name in listed:
            assert getattr(module, name) is getattr(tj, name), path
        if not hasattr(module, "__all__"):
            parts = ast.parse(inspect.getsource(module)).body
            kinds = (ast.FunctionDef, ast.ClassDef)
            defined = {part.name for part in parts if isinstance(part, kinds)}
            assert {x for x in defined if not x.startswith("_")} <= set(listed), path


def test_every_public_name_is_listed_before_it_is_loaded() -> None:
    missing = (
        "import tapejit as tj\n"
        "print(set(tj.__all__) - set(dir(tj)), set(tj.nn.__all__) - set(dir(tj.nn)))"
    )
    out = run_interpreter("-c", missing)
    assert (out.stdout, out.stderr) == ("set() set()\n", "")


def test_tab_completion_shows_public_names_alone() -> None:
    assert {name for name in dir(tj) if not name.startswith("__")} <= set(tj.__all__)
    for name in tj._MODULES:
        module = getattr(tj, name)
        assert dir(module) == sorted(module.__all__), name
    for module in (tj.tree, tj.optimizers.schedules):
        assert dir(module) == sorted(module.__all__), module.__name__
    function = {name for name in dir(tj.function(abs)) if not name.startswith("_")}
    assert not function & {"body", "note_trace", "perform", "run_inside", "traced"}
    assert {"explain", "trace_count", "verify"} <= function


def test_every_public_name_can_be_imported_first() -> None:
    program = (
        "from tapejit import *\n"
        "from tapejit import fit, tan, nn, History\n"
        "from tapejit.nn import *\n"
        "from tapejit.nn import Dense, initializers, relu\n"
        "import tapejit as tj\n"
        "assert tj.nn.Dense is Dense and tj.nn.initializers is initializers\n"
        "assert Dense.__module__ == 'tapejit.nn'\n"
        "assert isinstance(Dense(2), Module) and isinstance(Dense(2), tj.nn.Module)\n"
        "assert nn is tj.nn and relu is tj.nn.relu\n"
    )
    out = run_interpreter("-c", program)
    assert (out.returncode, out.stderr) == (0, "")


@pytest.mark.parametrize("name", tj.nn.__all__)
def test_a_name_of_networks_is_the_same_object_each_time(name: str) -> None:
    assert getattr(tj.nn, name) is getattr(tj.nn, name)


def test_a_name_that_is_missing_is_told_from_one_that_is_late() -> None:
    with pytest.raises(AttributeError, match=r"nn has no attribute 'Linear'; write"):
        _ = tj.nn.Linear
    with pytest.raises(AttributeError, match="has no attribute 'tann'"):
        _ = tj.tann


def test_a_pickled_layer_is_read_by_a_process_that_has_loaded_nothing(
    tmp_path: Path,
) -> None:
    layer = tj.nn.Dense(2)
    expected = layer(tj.ones((3, 4)))
    file = tmp_path / "layer.pickle"
    file.write_bytes(pickle.dumps((layer, expected)))
    program = (
        "import pickle, sys\n"
        "layer, expected = pickle.load(open(sys.argv[1], 'rb'))\n"
        "import numpy as np, tapejit as tj\n"
        "assert type(layer) is tj.nn.Dense\n"
        "np.testing.assert_array_equal(layer(tj.ones((3, 4))), expected)\n"
    )
    out = run_interpreter("-W", "ignore::ResourceWarning", "-c", program, str(file))
    assert (out.returncode, out.stderr) == (0, "")


def test_a_printed_graph_is_read_by_a_process_that_has_loaded_no_family() -> None:
    text = "graph f(x: f64[3]) {\n  %0: f64[3] = tan x\n  return %0\n}"
    program = (
        "import sys\n"
        "from tapejit.ir import interpret, parse_graph\n"
        "graph = parse_graph(sys.stdin.read())\n"
        "import numpy as np\n"
        "print(*interpret(graph, np.full(3, 0.5))[0])\n"
    )
    out = run_interpreter("-c", program, given=text)
    assert out.returncode == 0, out.stderr
    np.testing.assert_allclose([float(v) for v in out.stdout.split()], np.tan(0.5))
