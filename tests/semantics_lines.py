"""Which tests hold which line of the contract.

The contract has numbered lines; a test names its line (`test_s07_...`). Run as a
program, this prints each line with its tests and fails if a line has none:

    python tests/semantics_lines.py

Start reading at `collect_by_line`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

FOLDER = Path(__file__).parent / "semantics"

TITLES = {
    1: "a tape's arguments, entering it, exceptions in its block",
    2: "entering a tape again",
    3: "using a tape that has not recorded or is not recording",
    4: "which variables are watched without being asked",
    5: "what watch takes and refuses",
    6: "watching late, and watching intermediates",
    7: "watched_variables",
    8: "values read before the tape, variables made inside it",
    9: "what is recorded at all",
    10: "stop_recording",
    11: "reset",
    12: "threads, asyncio tasks, tapes ended out of order",
    13: "what a tape keeps alive, and until when",
    14: "gradient's arguments and the structure of its result",
    15: "several targets, repeated ones, targets that are sources",
    16: "intermediates as sources, unconnected sources",
    17: "targets and sources of the wrong type",
    18: "output_gradients",
    19: "tapes of one use, and calls that fail",
    20: "asking a tape inside its own block",
    21: "None against zero",
    22: "why_none",
    23: "shape and dtype of a gradient",
    24: "default dtypes and promotion",
    25: "NumPy's functions and arrays",
    26: "casts",
    27: "kinks and other choices of slope",
    28: "where, and NaN in the branch not taken",
    29: "complex numbers",
    30: "indexing",
    31: "tensors as Python objects",
    32: "making a variable",
    33: "assigning to a variable",
    34: "each read captures its value",
    35: "parts, copies, pickles, constraints of variables",
    36: "jacobian",
    37: "batch_jacobian",
    38: "nested tapes",
    39: "Hessians, products with them, functions of functions",
    40: "ForwardAccumulator",
}


def collect_by_line(folder: Path = FOLDER) -> dict[int, list[str]]:
    """Line number -> the tests that carry it, as `file::test`, by reading the files."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            match = re.match(r"test_s(\d+)_", node.name)
            if match:
                found[int(match[1])].append(f"{path.name}::{node.name}")
    return dict(found)


def lines_without_tests(found: dict[int, list[str]]) -> list[int]:
    """The lines of the contract that no test carries."""
    return [line for line in TITLES if not found.get(line)]


def report(found: dict[int, list[str]]) -> str:
    """Every line with its tests, ready to print."""
    parts = []
    for line, title in TITLES.items():
        tests = found.get(line, [])
        parts.append(f"{line:3}  {title} ({len(tests)})")
        parts.extend(f"       {test}" for test in tests or ["NO TEST"])
    return "\n".join(parts)


def main() -> int:
    found = collect_by_line()
    print(report(found))
    missing = lines_without_tests(found)
    if missing:
        print(f"\nlines without a test: {', '.join(map(str, missing))}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
