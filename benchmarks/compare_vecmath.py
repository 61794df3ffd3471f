"""How long vector maths takes per element, beside NumPy's and PyTorch's functions.

Each function runs over arrays that stay in the first level of the cache, so what is
measured is arithmetic, not memory. Ours is called once for many passes over the array;
NumPy writes into an array that is there already; what a call of each costs by itself,
seen at one element, is taken off. The smallest of many timings is reported. NumPy's
float32 functions are its own loops, some of which are off by more than 2 ULP. First
every result is compared with the one of double. The second column counts the vector
instructions of one pass through the loop, loads and the store included.

Run with:  python benchmarks/compare_vecmath.py   (PyTorch's column if it is installed)
           python benchmarks/compare_vecmath.py --dtype float64 --width 4 exp log

Start reading at `measure`.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from llvmlite import binding

from tapejit.targets.cpu import vecmath
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.machine.host import (
    FORMATS,
    Library,
    aligned,
    host_machine,
    loop_module,
)

SIZE, PASSES, ROUNDS = 1024, 64, 200
# name -> NumPy's or SciPy's name and PyTorch's, where they have one
NAMES: dict[str, tuple[str | None, str | None]] = {
    "exp": ("exp", "exp"),
    "log": ("log", "log"),
    "erf": ("special.erf", "erf"),
    "tanh": ("tanh", "tanh"),
    "sigmoid": ("special.expit", "sigmoid"),
    "softplus": (None, "nn.functional.softplus"),
    "logaddexp": ("logaddexp", "logaddexp"),
    "ndtr": ("special.ndtr", "special.ndtr"),
    "erfc": ("special.erfc", "erfc"),
    "log1p": ("log1p", "log1p"),
    "expm1": ("expm1", "expm1"),
    "sin": ("sin", "sin"),
}


def named(package: str, name: str) -> Any:
    """What a dotted name stands for; `special` is SciPy's where NumPy is asked."""
    if package == "numpy" and name.startswith("special."):
        package = "scipy"
    *modules, function = name.split(".")
    return getattr(importlib.import_module(".".join([package, *modules])), function)


def native(name: str, dtype: Any, width: int) -> Callable[..., Any]:
    """`many(operands..., out, vectors)`: the function, `PASSES` times over."""
    formula = {**vecmath.UNARY, **vecmath.BINARY}[name]
    arity = 2 if name in vecmath.BINARY else 1
    module = loop_module(formula, arity, FORMATS[np.dtype(dtype)], width)
    run = module.get_global("run")
    many = ir.LLVMFunction(module, run.function_type, "many")
    entry, body, done = (many.append_basic_block(x) for x in ("entry", "body", "done"))
    builder, integer = ir.IRBuilder(entry), ir.IntType(64)
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(integer)
    index.add_incoming(ir.Literal(integer, 0), entry)
    builder.call(run, many.args)
    following = builder.add(index, ir.Literal(integer, 1))
    index.add_incoming(following, body)
    is_less = builder.icmp_signed("<", following, ir.Literal(integer, PASSES))
    builder.cbranch(is_less, body, done)
    builder.position_at_end(done)
    builder.ret_void()
    operands = [ctypes.c_void_p] * (arity + 1)
    return Library(module).function("many", None, *operands, ctypes.c_int64)


def instructions(name: str, dtype: Any, width: int) -> int:
    """The vector instructions of the loop, on x86 those whose names begin with v."""
    formula = {**vecmath.UNARY, **vecmath.BINARY}[name]
    arity = 2 if name in vecmath.BINARY else 1
    module = loop_module(formula, arity, FORMATS[np.dtype(dtype)], width)
    machine = host_machine()
    parsed = binding.parse_assembly(str(module))
    parsed.triple = machine.triple
    lines = [line.strip() for line in machine.emit_assembly(parsed).splitlines()]
    places = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    largest = 0
    for i, line in enumerate(lines):
        jump = re.match(r"j\w+\s+(\S+)", line)
        if jump is not None and places.get(jump[1], i) < i:
            body = lines[places[jump[1]] : i]
            largest = max(largest, sum(x.startswith("v") for x in body))
    return largest


def shortest(call: Callable[[], Any]) -> float:
    """The least of many timings, in seconds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def measure(
    name: str, dtype: Any, width: int
) -> tuple[float, float | None, float | None]:
    """Nanoseconds per element: ours, NumPy's or SciPy's, PyTorch's."""
    rng = np.random.default_rng(0)
    arity = 2 if name in vecmath.BINARY else 1
    arrays = [aligned(SIZE, dtype) for _ in range(arity + 1)]
    for array in arrays:
        array[:] = np.abs(rng.normal(size=SIZE)) + 0.01
    *operands, out = arrays
    addresses = [array.ctypes.data for array in arrays]
    many = native(name, dtype, width)
    ours = shortest(lambda: many(*addresses, SIZE // width)) / PASSES
    numpys, torchs = NAMES.get(name, (None, None))

    peer = None
    if numpys is not None:
        function = named("numpy", numpys)
        exact = function(*(x.astype(np.float64) for x in operands))
        np.testing.assert_allclose(out, exact, rtol=4 * np.finfo(dtype).eps)
        single, result = [x[:1] for x in operands], np.empty_like(out)
        first = result[:1]
        peer = shortest(lambda: function(*operands, out=result))
        peer -= shortest(lambda: function(*single, out=first))

    other = None
    if torchs is not None and importlib.util.find_spec("torch") is not None:
        torch: Any = importlib.import_module("torch")
        torch.set_num_threads(1)
        function = named("torch", torchs)
        tensors = [torch.from_numpy(x) for x in operands]
        ones = [x[:1].clone() for x in tensors]
        other = shortest(lambda: function(*tensors))
        other -= shortest(lambda: function(*ones))
    scale = 1e9 / SIZE
    return (
        ours * scale,
        None if peer is None else peer * scale,
        None if other is None else other * scale,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--width", type=int, default=8)
    chosen = parser.parse_args()
    print(f"ns per element, {chosen.dtype}, {chosen.width} lanes, {SIZE} elements")
    header = ("tapejit", "vectors", "NumPy", "PyTorch")
    print(f"{'function':16}" + "".join(f"{title:>9}" for title in header))
    for name in chosen.names:
        row = measure(name, chosen.dtype, chosen.width)
        cells = ["-" if value is None else f"{value:.2f}" for value in row]
        cells.insert(1, str(instructions(name, chosen.dtype, chosen.width)))
        print(f"{name:16}" + "".join(f"{cell:>9}" for cell in cells))


if __name__ == "__main__":
    main()
