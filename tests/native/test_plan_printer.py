"""The loop IR as text: loops, vectors, tasks, memory and lines, for every kind."""

from __future__ import annotations

import re

import numpy as np

import tapejit as tj
from tapejit.loops import pipeline
from tapejit.runtime.executable import executable_for
from tapejit.runtime.executable_report import NativeInside
from tapejit.targets.cpu.module import build
from tapejit.targets.cpu.schedule import pipeline as cpu_pipeline
from tapejit.targets.cpu.target import CPU

from .test_kernel_source import more_programs, programs


def softmax(x: tj.Tensor) -> tj.Tensor:
    e = tj.exp(x - tj.max(x, axis=1, keepdims=True))
    return e / tj.sum(e, axis=1, keepdims=True)


ROWS = np.ones((8, 256), "f4")


def without_lines(text: str) -> str:
    """The text without the user's lines, which depend on this file."""
    return re.sub(r" +# \S+:\d+$", "", text, flags=re.MULTILINE)


def test_nests_show_loops_before_they_are_scheduled() -> None:
    assert (
        without_lines(str(CPU.nests(tj.function(softmax).graph(ROWS))))
        == """\
nest 0 (reduce) {
  for i:8 {
    for j:256 {
      %0: f32 = max in0[i, j] over j
    }
    for j:256 {
      %1: f32 = sub in0[i, j], %0
      %2: f32 = exp %1
      %3: f32 = sum %2 over j
    }
    for j:256 {
      %4: f32 = div %2, %3 -> out0
    }
  }
}
out0 may be written over in0"""
    )


def test_nests_show_what_goes_between_them_and_what_is_updated() -> None:
    def program(w: tj.Tensor, x: tj.Tensor) -> list[tj.Tensor]:
        y = tj.cumulative_sum(tj.tanh(x), axis=0)
        return [y @ y, w - 0.1 * tj.exp(w)]

    square = np.ones((40, 40), "f4")
    graph = tj.function(program).graph(square, square)
    text = without_lines(str(CPU.nests(graph)))
    assert re.findall(r"^nest \d \(.*\) {$", text, re.MULTILINE) == [
        "nest 0 (map) {",
        "nest 1 (array op) {",
        "nest 2 (matmul) {",
        "nest 3 (map) {",
    ]
    assert "tanh in1[i, j] -> memory" in text
    assert text.endswith("out1 may be written over in0")


def test_every_pass_is_observed_with_what_it_left() -> None:
    """Nests have no word of what a target decides."""
    seen: dict[str, str] = {}
    plan = CPU.plan(tj.function(softmax).graph(ROWS), observe=seen.__setitem__)
    passes = [x.run.__name__ for x in (*pipeline.PASSES, *cpu_pipeline.PASSES)]
    assert list(seen) == list(dict.fromkeys(passes))
    assert seen["expand"].startswith("graph softmax")
    assert all(" by " not in seen[x.run.__name__] for x in pipeline.PASSES)
    assert seen["vectorize"].count("for j:256 by 16") == 3
    assert seen[passes[-1]] == str(plan)


def test_a_plan_shows_vectors_and_memory() -> None:
    plan = build(tj.function(softmax).graph(ROWS), "shown").plan
    assert (
        without_lines(str(plan))
        == """\
arena of 64 bytes
kernel 0 (stage 0) {
  for i:8 {
    for j:256 by 16 {
      %0: f32 = max in0[i, j] over j
    }
    for j:256 by 16 {
      %1: f32 = sub in0[i, j], %0
      %2: f32 = exp %1 -> private[j]
      %3: f32 = sum %2 over j
    }
    for j:256 by 16 {
      %4: f32 = div %2, %3 -> out0[256 * i + j]
    }
  }
}"""
    )


def test_each_line_has_the_line_of_the_user() -> None:
    plan = build(tj.function(softmax).graph(ROWS), "lined").plan
    steps = [x for x in str(plan).splitlines() if x.strip().startswith("%")]
    assert steps
    assert all(re.search(r"# test_plan_printer\.py:\d+$", x) for x in steps)


def test_tasks_and_an_arena_are_shown() -> None:
    x = np.ones((2000, 300), "f4")
    program = tj.function(lambda x: tj.cumulative_sum(tj.tanh(x), axis=0))
    text = str(build(program.graph(x), "large").plan)
    assert re.search(r"kernel 0 \(stage 0, \d+ tasks\) {", text)
    assert re.search(r"tanh in0\[i, j\] -> arena\+64\[300 \* i \+ j\]", text)


def test_every_kind_of_step_is_printed() -> None:
    wanted = {
        *("in0[", "const", ".flat[", " if ", " over ", "checked_index", "verify"),
        *("contract", "where", "matmul", "strides", "convert", "copy", "tiles of"),
    }
    whole = ""
    heads, x = np.ones((2, 4, 256, 32), "f4"), np.ones((14, 35), "f4")
    attention = tj.function(tj.nn.scaled_dot_product_attention)
    merged = tj.function(lambda x: tj.reshape(tj.tanh(x).T, (-1, 7)) * 2)
    others = ((attention, heads, heads, heads), (merged, x))
    for function, *arguments in (
        *(*programs().values(), *more_programs().values(), *others),
    ):
        inside = NativeInside(executable_for(function.graph(*arguments)).graph)
        whole += inside.plan()
    missing = {word for word in wanted if word not in whole}
    assert not missing


def test_equal_graphs_have_equal_texts() -> None:
    """Numbers of axes and Steps are the process's; those of a text are its own."""
    texts = {
        str(build(tj.function(softmax).graph(ROWS), f"again_{at}").plan)
        for at in range(3)
    }
    assert len(texts) == 1
