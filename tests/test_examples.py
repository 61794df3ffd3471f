"""The examples do what they promise, and the README's commands are the tested ones."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import tapejit as tj

ROOT = Path(__file__).resolve().parent.parent

# The short form of each example: its arguments, and how its output begins.
SHORT_FORMS = {"quickstart.py": (["--epochs", "1"], "z = 25, dz/dx = 6, dz/dy = 8\n")}

# Twelve seeds gave 95.0 % to 96.4 %; a network that does not learn has 10 %.
EXPECTED_ACCURACY = 0.94


def load(name: str) -> ModuleType:
    """An example as a module; its main part does not run."""
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def quickstart() -> ModuleType:
    return load("quickstart")


# The quickstart


def test_the_first_gradient_is_that_of_the_readme(
    quickstart: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    quickstart.first_gradient()
    assert capsys.readouterr().out == "z = 25, dz/dx = 6, dz/dy = 8\n"


def test_the_network_learns_digits_and_its_progress_goes_to_stderr(
    quickstart: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    tj.random.set_seed(0)
    accuracy = quickstart.train(epochs=8)
    assert accuracy >= EXPECTED_ACCURACY
    printed = capsys.readouterr()
    assert "training: 100%" in printed.err
    assert "training" not in printed.out
    assert re.fullmatch(
        rf"test accuracy {accuracy:.1%}, \d+ µs per step\n", printed.out
    )


def test_a_seed_fixes_the_weights(quickstart: ModuleType) -> None:
    networks = []
    for seed in (1, 1, 2):
        tj.random.set_seed(seed)
        networks.append([v.numpy().tobytes() for v in quickstart.make_network()])
    assert networks[0] == networks[1]
    assert networks[0] != networks[2]


def test_the_held_out_digits_are_not_trained_on(quickstart: ModuleType) -> None:
    images, labels, test_images, test_labels = quickstart.load_data()
    assert len(images) == len(labels) == 1437
    assert len(test_images) == len(test_labels) == 360
    rows = {image.tobytes() for image in images}
    assert not rows & {image.tobytes() for image in test_images}


# All examples


def test_every_example_has_a_short_form() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SHORT_FORMS)


@pytest.mark.parametrize("name", SHORT_FORMS)
def test_an_example_runs_as_a_program(name: str) -> None:
    arguments, beginning = SHORT_FORMS[name]
    out = subprocess.run(
        [sys.executable, "-W", "error", f"examples/{name}", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith(beginning)


# The commands of the README


def commands_of(path: Path) -> list[str]:
    """The lines of its `bash` blocks."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", path.read_text(), re.S | re.M)
    return [line for block in blocks for line in block.splitlines()]


def test_the_readme_has_one_command_to_try_and_one_to_test() -> None:
    try_it, test_it = commands_of(ROOT / "README.md")
    assert try_it.endswith("python examples/quickstart.py")
    assert "-m pytest" in test_it


def test_continuous_integration_runs_the_readmes_test_command() -> None:
    _, test_it = commands_of(ROOT / "README.md")
    assert test_it in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_commands_install_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for command in commands_of(ROOT / "README.md"):
        extras = re.findall(r"'\.\[(\w+)\]'", command)
        assert len(extras) == 1, command
        assert extras[0] in project["optional-dependencies"]


def test_what_the_example_imports_is_installed_by_its_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {re.split(r"[<>=]", text)[0] for text in extras["examples"]}
    assert wanted == {"scikit-learn", "tqdm"}
    assert set(extras["examples"]) <= set(extras["test"]), "the tests run it too"
