"""Looking inside compiled functions: kernels, source, LLVM, instructions, reports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elsewhere import run_interpreter

import tapejit as tj
from tapejit.targets.cpu import module


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    with tj.config.override(native=True, cache=False, compile="now"):
        yield


def energy_function() -> Any:
    @tj.function
    def energy(x: Any) -> Any:
        return tj.sum(tj.exp(x) * x)

    return energy


def mixed_function() -> Any:
    @tj.function
    def mixed(x: Any) -> Any:
        h = tj.tanh(x)
        factor = tj.linalg.cholesky(h @ h.T + 4 * tj.eye(5))
        return tj.sum(factor * h, axis=0)

    return mixed


# Kernels


def test_a_kernel_is_described_in_numbers() -> None:
    (kernel,) = energy_function().kernels(tj.ones((100, 64)))
    assert kernel.name == "kernel_0"
    assert kernel.loops == "i<100> { j<64 by 16> }"
    assert (kernel.vector, kernel.width, kernel.tasks) == ("j", 16, 1)
    assert kernel.ops == {"exp": 1, "mul": 1, "sum": 1}
    assert (kernel.reads, kernel.writes) == (100 * 64 * 4, 4)
    assert kernel.bytes_moved == 100 * 64 * 4 + 4
    assert kernel.flops == 3 * 100 * 64
    assert kernel.temporaries == ()
    assert [line.rpartition(":")[0] for line in kernel.lines] == ["test_inside.py"]
    assert repr(kernel).startswith("<kernel_0: i<100> { j<64 by 16> }; exp, mul, sum;")


def test_a_product_of_matrices_counts_two_operations_for_each_element() -> None:
    product = tj.function(lambda x, y: x @ y)
    (kernel,) = product.kernels(tj.ones((64, 32)), tj.ones((32, 48)))
    assert kernel.flops == 2 * 64 * 32 * 48
    assert kernel.reads == 4 * (64 * 32 + 32 * 48)
    assert kernel.writes == 4 * 64 * 48
    assert (kernel.loops, kernel.vector, kernel.width) == ("", None, 1)


def test_an_element_that_is_read_twice_is_fetched_once() -> None:
    (kernel,) = tj.function(lambda x: x[1:] - x[:-1]).kernels(tj.ones(100))
    assert kernel.reads == 400


def test_what_is_kept_between_passes_is_listed() -> None:
    softmax = tj.function(tj.nn.softmax)
    (kernel,) = softmax.kernels(tj.ones((8, 100)))
    assert [str(x) for x in kernel.temporaries] == ["f32[100]"]


def test_large_kernels_are_cut_into_tasks() -> None:
    (kernel,) = energy_function().kernels(tj.ones((2000, 1000)))
    assert kernel.tasks > 1
    assert f"in {kernel.tasks} tasks" in kernel.loops
    assert f"# in {kernel.tasks} tasks" in kernel.source


def test_questions_run_nothing_and_need_no_native_code() -> None:
    count = tj.Variable(0.0)

    @tj.function
    def counted(x: Any) -> Any:
        count.assign_add(1.0)
        return x * count

    with tj.config.override(native=False):
        kernels = counted.kernels(tj.ones(20))
        assert "def run(x, " in counted.source(tj.ones(20))
        assert "float>" in counted.llvm()
        assert "ret" in counted.asm()
    assert kernels
    assert count.numpy() == 0.0
    assert counted.trace_count == 1


def test_kernels_source_and_explain_need_no_text_of_llvm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks and tilings are in the plan, whether code was made of it or not."""

    def program(x: Any, w: Any) -> Any:
        return tj.cumulative_sum(tj.tanh(x @ w), axis=0) @ w

    arrays = [np.ones((512, 512), "f4")] * 2
    made = tj.function(program)
    made(*arrays)
    expected = [(x.name, x.tasks, str(x)) for x in made.kernels(*arrays)]
    monkeypatch.setattr(module, "emit_plan", None)
    asked = tj.function(lambda x, w: program(x, w))
    for function in (made, asked):
        found = function.kernels(*arrays)
        assert [(x.name, x.tasks, str(x)) for x in found] == expected
        assert "def kernel_0" in function.source(*arrays)
        assert "kernel_1" in str(function.explain(*arrays))
    assert any(tasks > 1 for _, tasks, _ in expected)
    with pytest.raises(TypeError):
        asked.llvm(*arrays)


def test_a_concrete_function_shows_the_same() -> None:
    energy = energy_function()
    x = tj.ones((5, 7))
    concrete = energy.get_concrete_function(x)
    assert concrete.kernels() == energy.kernels(x)
    assert concrete.source() == energy.source(x)
    assert concrete.llvm() == energy.llvm(x)
    assert concrete.asm() == energy.asm(x)


def test_a_function_that_runs_eagerly_has_no_kernels() -> None:
    @tj.function
    def needs_value(x: Any) -> Any:
        return x * float(x)

    with pytest.warns(UserWarning, match="needs a value"):
        needs_value(tj.asarray(1.0))
    with pytest.raises(tj.UnsupportedError, match="has no kernels"):
        needs_value.kernels(tj.asarray(1.0))


def test_without_native_parts_there_are_no_kernels() -> None:
    logarithm = tj.function(lambda z: tj.log(z))
    z = tj.asarray(np.array([1 + 2j, 3j]))
    assert logarithm.kernels(z) == []
    assert "# there are no kernels" in logarithm.source(z)
    assert "# NumPy performs log" in logarithm.source(z)


# Reports


def test_explain_lists_kernels_and_what_numpy_performs() -> None:
    mixed = mixed_function()
    x = tj.asarray(np.eye(5, dtype="f4"))
    before = mixed.explain(x)
    assert before.executable == "native"
    assert before.seconds is None
    assert "compiled   not yet" in str(before)
    mixed(x)
    after = mixed.explain(x)
    assert [x.op for x in after.on_numpy] == ["cholesky"]
    assert after.on_numpy[0].reason == "matrices of more than 4 rows"
    assert after.on_numpy[0].where.startswith("test_inside.py:")
    assert after.arena_bytes >= 64
    assert after.seconds is not None
    assert set(after.seconds) == {"build", "print", "parse", "emit", "load"}
    text = str(after)
    assert f"native in {len(after.kernels)} kernels" in text
    assert "NumPy      cholesky at test_inside.py:" in text
    assert "compiled   in " in text


@pytest.mark.parametrize(
    ("function", "argument", "reason"),
    [
        (tj.log, np.ones(3, "c8"), "complex numbers"),
        (tj.exp, np.ones((0, 3), "f4"), "arrays without elements"),
        (lambda x: tj.print("x", x), np.ones(3, "f4"), "an effect"),
        (tj.sort, np.ones(3, "f4"), "no native code for this operation"),
    ],
)
def test_the_reason_says_why_numpy_performs_it(
    function: Any, argument: Any, reason: str
) -> None:
    found = tj.function(function).explain(tj.asarray(argument))
    assert found.on_numpy[0].reason == reason


def test_open_sizes_are_a_reason() -> None:
    specs = [tj.TensorSpec([None, 3])]
    doubled = tj.function(lambda x: x + x, input_signature=specs)
    assert [x.reason for x in doubled.explain(tj.ones((5, 3))).on_numpy] == [
        "sizes that are not fixed"
    ]


def test_debug_shows_as_much_as_its_level_asks_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = []
    for level in range(6):
        with tj.config.override(debug=level):
            energy_function()(tj.ones((5, 7 + level)))
        texts.append(capsys.readouterr().err)
    assert texts[0] == ""
    for text in texts[1:]:
        assert "tapejit: compiled energy, 1 kernel: in " in text
        assert "emit" in text
    assert [("def kernel_0(x, out):" in text) for text in texts] == 4 * [False] + [
        True,
        True,
    ]
    assert ["for i:" in text for text in texts] == 4 * [False] + [True, True]
    schedule = "tapejit: schedule of energy\n-nest 0 (steps) {\n"
    vectorize = "tapejit: vectorize of energy\n-    for j:"
    for wanted in (schedule, vectorize):
        assert [wanted in text for text in texts] == 4 * [False] + [True, True]
    assert [("define internal void" in text) for text in texts] == 5 * [False] + [True]


def test_dump_writes_a_file_for_each_stage(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    with tj.config.override(dump=os.fspath(folder)):
        mixed_function()(tj.asarray(np.eye(5, dtype="f4")))
    found = {path.name.partition(".")[2]: path for path in folder.iterdir()}
    assert set(found) == {"graph.txt", "optimised.txt", "plan.txt", "py", "ll", "s"}
    assert "kernel 0 (stage 0) {" in found["plan.txt"].read_text()
    assert all(path.name.startswith("mixed-") for path in found.values())
    assert "cholesky" in found["graph.txt"].read_text()
    assert "def run_1(" in found["py"].read_text()
    assert "define" in found["ll"].read_text()
    assert "ret" in found["s"].read_text()


def test_a_large_constant_is_part_of_the_source() -> None:
    table = np.random.default_rng(0).standard_normal((20, 30)).astype("f4")
    rows, columns = np.indices(table.shape)

    @tj.function
    def spread(x: Any) -> Any:
        return x[rows, columns] * 2

    x = tj.asarray(table)
    namespace: dict[str, Any] = {}
    exec(spread.source(x), namespace)
    assert "base64" in spread.source(x)
    (found,) = namespace["run"](table)
    assert np.array_equal(found, table * 2)


def test_instructions_can_be_seen_before_anything_is_compiled() -> None:
    program = "import tapejit as tj; print(tj.function(tj.sin).asm(tj.ones(3)))"
    ended = run_interpreter("-c", program, TAPEJIT_NATIVE="1")
    assert ended.returncode == 0, ended.stderr
    assert "ret" in ended.stdout
