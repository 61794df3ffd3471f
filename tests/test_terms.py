"""The field's words: who looks for a term finds the one file that is about it."""

from __future__ import annotations

import ast

import pytest
from elsewhere import ROOT

PACKAGE = ROOT / "tapejit"

# A term of the field, and the file whose first sentence has it: for terms that both
# targets have, the one of the CPU.
TERMS = {
    "arena": "targets/cpu/schedule/allocate.py",
    "argmax": "targets/cpu/arrays/extremum.py",
    "batching": "transforms/batch.py",
    "common subexpression": "rewrite/cse.py",
    "compile thread": "targets/cpu/machine/compile_thread.py",
    "constant folding": "rewrite/fold.py",
    "ctrl-c": "targets/cpu/call/signal_poll.py",
    "cuda graph": "runtime/cuda/launches.py",
    "disk cache": "runtime/store/store.py",
    "dynamic shapes": "tracing/open_sizes.py",
    "epilogue fusion": "loops/fuse/fuse_epilogue.py",
    "flash attention": "targets/cpu/schedule/tile_rows.py",
    "forward mode: the tangents": "transforms/jvp.py",
    "in-place update": "loops/fuse/inplace.py",
    "inlining": "rewrite/inline.py",
    "lane algebra": "loops/lane_algebra.py",
    "loop fusion": "loops/schedule/schedule.py",
    "lowering: a graph as steps": "loops/lower/lower.py",
    "memory order": "rewrite/memory_order.py",
    "memory pool": "runtime/memory_pool.py",
    "micro-kernel": "targets/cpu/matmul/micro_kernel.py",
    "parallel reduction": "targets/cpu/nest/reductions.py",
    "prefetch": "targets/cpu/matmul/micro_kernel.py",
    "prefix scan": "targets/cpu/arrays/scan.py",
    "ptx": "targets/cuda/ptx.py",
    "rematerialization": "tracing/recompute.py",
    "the remainder of": "targets/cpu/nest/kernel_emitter.py",
    "reverse mode": "transforms/vjp.py",
    "scatter-add": "targets/cpu/arrays/scatter.py",
    "tensor cores": "targets/cuda/matmul/tensor_tile.py",
    "tile sizes": "targets/cpu/matmul/tiling.py",
    "vectorization": "targets/cpu/schedule/vectorize.py",
}


GPU_TERMS = {
    "argmax": "targets/cuda/arrays/extremum.py",
    "prefix scan": "targets/cuda/arrays/scan.py",
    "scatter-add": "targets/cuda/arrays/scatter.py",
}


def first_sentences() -> dict[str, str]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        found[path.relative_to(PACKAGE).as_posix()] = text.split("\n\n")[0].lower()
    return found


FIRST = first_sentences()


@pytest.mark.parametrize("term", TERMS)
def test_a_term_leads_to_one_file(term: str) -> None:
    files = {name for name, text in FIRST.items() if term in text}
    assert files == {TERMS[term], GPU_TERMS.get(term, TERMS[term])}
