"""What native code computes, as digests: run once per processor to be compared.

    python native_bits.py <every>

Operations from the op table (each `every`-th one, in two dtypes), random Graphs with
their adjoints, and a few steps of a training. The last line printed is JSON: what was
computed -> digest of its bits.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from graph_properties import float_nodes, random_like
from op_cases import CASES
from random_graphs import Style, case_of, random_graph

import tapejit as tj
from tapejit.ir import Graph
from tapejit.runtime.executable import executable_for
from tapejit.transforms import vjp_graph

Found = dict[str, str]


def digest(arrays: Any) -> str:
    whole = hashlib.sha256()
    for array in arrays:
        x = np.array(array)
        if x.dtype.kind in "fc":
            x[np.isnan(x)] = np.nan  # where it is counts, not which one
        whole.update(f"{x.dtype} {x.shape} ".encode() + x.tobytes())
    return whole.hexdigest()


def run(graph: Graph, arrays: Any) -> Any:
    """The outputs as native code computes them, where it does."""
    executable = executable_for(graph)
    return executable.run([x if x.ndim else x[()] for x in arrays])


def operations(every: int) -> Found:
    found = {}
    for case in [case for cases in CASES.values() for case in cases][::every]:
        row = case.rows[0]
        for dtype in {row.dtypes[0]: None, row.dtypes[-1]: None}:
            arrays = row.sample(np.random.default_rng(5), dtype)
            found[f"{row} in {dtype}"] = digest(run(row.graph(dtype), arrays))
    return found


def graphs(count: int) -> Found:
    found = {}
    dtypes = tuple(np.dtype(name) for name in ("f4", "f8", "f2", "i4"))
    style = Style(dtypes=dtypes, sizes=(1, 3, 16, 33), most_elements=2000)
    for seed in range(count):
        seeds = np.random.default_rng(seed).integers(1, 2**63, style.steps + 1)
        case = case_of(random_graph(seeds.tolist(), style), seed)
        graph = vjp_graph(case.graph, wrt=float_nodes(case.graph.inputs))
        arrays = random_like(np.random.default_rng(seed), graph.inputs, case)
        found[f"graph {seed}"] = digest(run(graph, arrays))
    return found


def training(steps: int) -> Found:
    rng = np.random.default_rng(3)
    w = tj.Variable(rng.normal(size=(20, 30)).astype("f4"))
    b = tj.Variable(np.zeros(30, "f4"))
    x = rng.normal(size=(64, 20)).astype("f4")

    @tj.function
    def step(x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = x @ w + b
            loss = tj.mean(tj.logsumexp(tj.tanh(y) * y, axis=-1))
        for variable, slope in zip((w, b), tape.gradient(loss, (w, b)), strict=True):
            variable.assign_sub(0.1 * slope)
        return loss

    return {
        f"step {at}": digest([step(x).numpy(), w.numpy(), b.numpy()])
        for at in range(steps)
    }


def main(every: int) -> None:
    with np.errstate(all="ignore"):
        found = operations(every) | graphs(max(4, 40 // every)) | training(3)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
