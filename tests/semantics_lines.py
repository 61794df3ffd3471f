"""Which tests hold which line of the contract, and in which modes.

The contract has numbered lines; a test names its line (`test_s07_...`). Every line
holds for plain Python and for decorated functions alike, so each needs a test in both
modes too: one that uses the harness `semantics/both_modes.py`, directly or through a
helper of its file, or that is run for each entry of its file's table MODES. The lines
about `function` itself have no other mode: there a test that decorates a function
counts.

Run as a program, this prints each line with its tests, those in both modes marked with
a star, and fails if a line has none of either kind:

    python tests/semantics_lines.py

Start reading at `collect_by_line`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "semantics"

HARNESS = {"assert_modes", "assert_taped", "ways", "MODES"}
FUNCTION_LINES = range(46, 59)

# Lines whose tests in both modes are still to be written, and why.
NOT_YET: dict[int, str] = {}

# Parts of lines that are still to be written, for the report.
PARTS_NOT_YET = {
    58: "cond, while_loop, scan, fori_loop, map_fn, vectorized_map",
}

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
    41: "custom_gradient: what it returns and what grad_fn gets",
    42: "custom_gradient: keywords, closures, checks of gradients",
    43: "custom_gradient: variables",
    44: "custom_gradient: second order, errors, methods; grad_pass_through",
    45: "stop_gradient and recompute_grad",
    46: "which calls of a function share a trace",
    47: "objects as arguments of a function",
    48: "input_signature, reduce_retracing, concrete functions",
    49: "traces counted, bounded and explained; what can be decorated",
    50: "variables made by a function",
    51: "side effects, closures, randomness and printing in a function",
    52: "tensors that leak out of a trace, values that are needed in it",
    53: "what a function returns",
    54: "the order of reads, writes and checks; calls that fail",
    55: "exceptions while tracing",
    56: "running eagerly, tapes around calls, nested functions",
    57: "threads, pickling and collecting of functions",
    58: "control flow",
    61: "loss scaling",
    62: "devices",
    65: "policies of mixed precision",
}


def collect_by_line(folder: Path = FOLDER) -> dict[int, list[str]]:
    """Line number -> the tests that carry it, as `file::test`, by reading the files.

    A test in both modes has a star behind its name.
    """
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(folder.glob("test_*.py")):
        for name, uses in _tests_in(path):
            line = int(name[6:].partition("_")[0])
            counts = HARNESS | {"function"} if line in FUNCTION_LINES else HARNESS
            star = " *" if uses & counts else ""
            found[line].append(f"{path.name}::{name}{star}")
    return dict(found)


def _tests_in(path: Path) -> Iterator[tuple[str, set[str]]]:
    """The numbered tests of a file, each with all names that it uses.

    The names that the file's own functions and tables use count as used by the test.
    """
    module = ast.parse(path.read_text(), str(path))
    own: dict[str, set[str]] = {}
    tests: list[str] = []
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own[node.name] = _names_in(node)
            if re.match(r"test_s\d+_", node.name):
                tests.append(node.name)
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    own[target.id] = _names_in(node)
    for name in tests:
        uses: set[str] = set()
        waiting = [name]
        while waiting:
            new = own.get(waiting.pop(), set()) - uses
            uses |= new
            waiting.extend(new)
        yield name, uses


def _names_in(node: ast.AST) -> set[str]:
    names = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    return names | {x.attr for x in ast.walk(node) if isinstance(x, ast.Attribute)}


def lines_without_tests(found: dict[int, list[str]]) -> list[int]:
    """The lines of the contract that no test carries."""
    return [line for line in TITLES if not found.get(line) and line not in NOT_YET]


def has_both_modes(found: dict[int, list[str]], line: int) -> bool:
    """Whether a test carries this line in both modes."""
    return any(test.endswith(" *") for test in found.get(line, []))


def lines_in_one_mode(found: dict[int, list[str]]) -> list[int]:
    """The lines that no test carries in both modes."""
    lines = [line for line in TITLES if line not in NOT_YET]
    return [line for line in lines if not has_both_modes(found, line)]


def report(found: dict[int, list[str]]) -> str:
    """Every line with its tests, ready to print."""
    parts = ["     both modes"]
    for line, title in TITLES.items():
        tests = found.get(line, [])
        both = "yes" if has_both_modes(found, line) else "no"
        parts.append(f"{line:3}  {both:3}  {title} ({len(tests)})")
        parts.extend(f"            {test}" for test in tests or ["NO TEST"])
    for line, what in {**NOT_YET, **PARTS_NOT_YET}.items():
        parts.append(f"not yet: {line} ({what})")
    return "\n".join(parts)


def main() -> int:
    found = collect_by_line()
    print(report(found))
    missing = lines_without_tests(found)
    if missing:
        print(f"\nlines without a test: {', '.join(map(str, missing))}")
    half = lines_in_one_mode(found)
    if half:
        print(f"\nlines without a test in both modes: {', '.join(map(str, half))}")
    return 1 if missing or half else 0


if __name__ == "__main__":
    sys.exit(main())
