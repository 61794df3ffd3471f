"""The pages that are made, not written: `ops.md`, `numpy_coverage.md`, `vecmath.md`.

`python docs/generate.py` writes them, `--check` fails if they are not current. What the
page of operations says of dtypes and derivatives is read from the op table of the
tests, so every word of it is tested; what the page of NumPy's functions says is read
from the tables by which tapejit answers NumPy; what the page of vector maths says of
errors is measured when it is made.

Start reading at `PAGES`.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

DOCS = Path(__file__).resolve().parent
for folder in (DOCS.parent, DOCS.parent / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import op_cases  # noqa: E402  # found by the path above
from op_cases.case import F64, OpCase, Row  # noqa: E402  # found by the path above

import tapejit as tj  # noqa: E402  # after it
from tapejit.array.numpy import protocol  # noqa: E402  # after it
from tapejit.array.numpy import table as numpy_table  # noqa: E402  # after it
from tapejit.base.types import is_complex, is_float, is_integer  # noqa: E402  # after it
from tapejit.ir import OPS  # noqa: E402  # after it

MADE = (
    "<!-- Made by docs/generate.py: change that, or what it reads, not this page. -->"
)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# The page of operations

LETTERS = {"c": "yes", "0": "zero", "-": "none"}
OPERANDS = "xyzuvwabcd"
KINDS: dict[str, Callable[[Any], bool]] = {
    "bool": lambda dtype: dtype.kind == "b",
    "integer": is_integer,
    "float": is_float,
    "complex": is_complex,
}

OPS_INTRODUCTION = """# Operations

Everything tapejit computes is made of the operations on this page; functions that are
not on it are compositions of them. For each operation:

- **takes**: the kinds of dtypes of its operands (float includes float16 and bfloat16).
- **first**: whether a derivative flows to an operand: *yes*; *zero*, if the operand
  matters but the derivative is zero everywhere (a gradient of zeros); *none*, if there
  is no path (a gradient of `None`). Integer and bool operands have none.
- **second**: the same for the derivative of the derivative; `xy` is how the derivative
  by `x` depends on `y`. Operations with a *zero* or *none* first derivative have no
  entry.
- **vmap**: whether `tj.vmap` and `tape.jacobian` run it on a batch at once.
- **lane**: whether it is one scalar expression per element, so that neighbours can be
  fused into one loop.

Where the entry depends on attributes (a product over no axes, say), there are several,
with *or* between them. How exact the functions of generated code are is said in
[vecmath.md](vecmath.md).

```python
import tapejit as tj

x, y = tj.Variable([1.5]), tj.Variable([2.0])
with tj.GradientTape(persistent=True) as tape:
    rounded, compared = tj.floor(x), tj.astype(x < y, tj.float32)
print(tape.gradient(rounded, x))  # [0.]
print(tape.gradient(compared, x))  # None
```
"""


def ops_page() -> str:
    """`ops.md`: one table per family, in the order of the op table."""
    missing = sorted(set(OPS) - set(op_cases.CASES))
    if missing:
        raise SystemExit(f"no case in tests/op_cases for: {', '.join(missing)}")
    parts = [MADE, OPS_INTRODUCTION]
    seen: set[str] = set()
    for family in sorted(op_cases.FAMILIES, key=_title):
        names = sorted({case.op for case in family.CASES} - seen)
        seen.update(names)
        if not names:
            continue
        header = ["operation", "takes", "first", "second", "vmap", "lane"]
        parts.append(f"## {_title(family)}\n\n{table(header, map(_op_row, names))}\n")
    parts.append(f"{len(OPS)} operations.\n")
    return "\n".join(parts)


def _title(family: ModuleType) -> str:
    """The first sentence of a family's essay, without `Cases of`."""
    first = (family.__doc__ or family.__name__).strip().splitlines()[0].rstrip(".")
    said = re.sub(r"^Cases of (the )?", "", first)
    return said[0].upper() + said[1:]


def _op_row(name: str) -> list[str]:
    op, cases = OPS[name], op_cases.CASES[name]
    rows = [row for case in cases for row in case.rows]
    return [
        f"`{name}`",
        _takes(cases),
        _by_kind(rows, _first) if op.differentiable else "none",
        _by_kind(rows, _second),
        "yes" if op.batch is not None or op.deriv is not None else "no",
        "yes" if op.scalar is not None else "no",
    ]


def _by_kind(rows: Sequence[Row], describe: Callable[[Row, Any], str]) -> str:
    """The entry for real operands, and the one for complex ones if that differs."""
    entries = []
    for is_wanted in (lambda dtype: not is_complex(dtype), is_complex):
        said: dict[str, None] = {}
        for row in rows:
            dtypes = [dtype for dtype in row.dtypes if is_wanted(dtype)]
            if dtypes:
                said[describe(row, F64 if F64 in dtypes else dtypes[-1])] = None
        entries.append(" or ".join(filter(None, said)))
    real, complex_ = entries
    if not real or not complex_ or real == complex_:
        return real or complex_
    return f"{real}; complex: {complex_}"


def _takes(cases: Sequence[OpCase]) -> str:
    dtypes = {dtype for case in cases for row in case.rows for dtype in row.dtypes}
    return ", ".join(kind for kind, has in KINDS.items() if any(map(has, dtypes)))


def _count(row: Row) -> int:
    """How many operands differ; the last one stands for the rest of a variadic op."""
    words = row.variant.second if row.variant.second is not None else row.case.second
    letters = row.variant.first if row.variant.first is not None else row.case.first
    return max([len(letters), *map(len, words), 1])


def _first(row: Row, dtype: Any) -> str:
    letters = row.first(dtype)[: _count(row)]
    if len(letters) <= 1:
        return LETTERS[letters or "-"]
    pairs = zip(OPERANDS, letters, strict=False)
    return ", ".join(f"{operand} {LETTERS[letter]}" for operand, letter in pairs)


def _second(row: Row, dtype: Any) -> str:
    count = _count(row)
    connected = [at for at, letter in enumerate(row.first(dtype)) if letter == "c"]
    words = dict(zip(connected, row.second(dtype), strict=False))
    if count == 1:
        return ", ".join(LETTERS[word[0]] for word in list(words.values())[:1])
    return ", ".join(
        f"{OPERANDS[i]}{OPERANDS[j]} {LETTERS[words[i][j]]}"
        for i in sorted(words)
        if i < count
        for j in range(count)
        if j >= i or j not in words
    )


# The page of NumPy's functions

NUMPY_INTRODUCTION = """# NumPy's functions on tensors

NumPy asks its arguments before it computes. For a tensor or a variable tapejit answers:

- **recorded**: tapejit's function of the same meaning runs and tapes record it; the
  last column names it where it has a name of its own. Arguments without a meaning for
  tensors (`out=`, `where=`, ...) are refused by name.
- **answered**: a question about shape, dtype or equality has a Python answer.
- **runs on values**: printing and saving take the numbers; nothing is recorded.
- **refused**: `tapejit.UnsupportedError` names the function and the way out,
  `np.f(x.numpy())`. Nothing turns a tensor into an array silently, because that would
  cut the path of a gradient without a word.

```python
import numpy as np
import tapejit as tj

x = tj.Variable([3.0, 4.0])
with tj.GradientTape() as tape:
    y = np.linalg.norm(x)
print(tape.gradient(y, x))  # [0.6 0.8]
np.packbits(x)  # raises UnsupportedError: np.packbits
```
"""

ANSWERS = frozenset(
    """
    allclose array_equal array_equiv can_cast common_type iscomplexobj isrealobj ndim
    result_type shape size may_share_memory shares_memory
    """.split()  # noqa: SIM905  # names read better than a column of strings
)


def numpy_functions() -> dict[str, Any]:
    """Every public function and ufunc of NumPy that asks its arguments, by name."""
    found: dict[str, Any] = {}
    for prefix, module in (
        ("np", np),
        ("np.linalg", np.linalg),
        ("np.fft", np.fft),
    ):
        for name in sorted(dir(module)):
            if name.startswith("_") or (module is np and name in ("linalg", "fft")):
                continue
            value = getattr(module, name)
            if isinstance(value, np.ufunc) or hasattr(value, "_implementation"):
                found[f"{prefix}.{name}"] = value
    return found


def answer_of(function: Any) -> tuple[str, Any]:
    """How tapejit answers a NumPy function, and with which of its own."""
    if isinstance(function, np.ufunc):
        call = protocol.UFUNCS.get(function)
        return ("refused", None) if call is None else ("recorded", call)
    row = numpy_table.row_of(function)
    if row is not None:
        is_answer = function.__name__ in ANSWERS
        return ("answered" if is_answer else "recorded"), row.call
    values = function in protocol.OUTPUT
    return ("runs on values" if values else "refused"), None


def public_names() -> dict[int, str]:
    """tapejit's functions by identity."""
    modules = {"tj": tj, "tj.linalg": tj.linalg, "tj.fft": tj.fft}
    names: dict[int, str] = {}
    for prefix, module in modules.items():
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.isfunction(value):
                names.setdefault(id(value), f"{prefix}.{name}")
    return names


def numpy_page() -> str:
    """`numpy_coverage.md`: one row per function."""
    from scipy import special

    names = public_names()
    answers = {name: answer_of(value) for name, value in numpy_functions().items()}
    counts = {kind: 0 for kind, _ in sorted(answers.values(), key=str)}
    for kind, _ in answers.values():
        counts[kind] += 1
    rows = [
        [f"`{name}`", kind, f"`{names[id(call)]}`" if id(call) in names else ""]
        for name, (kind, call) in answers.items()
    ]
    methods = [
        [f"`np.{ufunc.__name__}.reduce`", "recorded", f"`{names[id(call)]}`"]
        for ufunc, call in protocol.REDUCTIONS.items()
    ]
    scipy = [
        [f"`scipy.special.{name}`", "recorded", f"`{_name_of(call, names)}`"]
        for name, call in sorted(protocol.scipy_ufuncs().items())
        if hasattr(special, name)  # one is not SciPy's
    ]
    header = ["function", "with tensors", "tapejit"]
    total = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    version = ".".join(np.__version__.split(".")[:2])
    return "\n".join(
        [
            MADE,
            NUMPY_INTRODUCTION,
            f"Of NumPy {version}: {total}.\n",
            table(header, rows),
            "\n## Methods of ufuncs\n\nThe other methods are refused.\n",
            table(header, methods),
            "\n## Functions of SciPy\n\nufuncs of `scipy.special`; see also "
            "[array_api.md](array_api.md).\n",
            table(header, scipy),
            "",
        ]
    )


def _name_of(call: Any, names: dict[int, str]) -> str:
    return names.get(id(call), f"tj.special.{call.__name__}")


# The page of vector maths

VECMATH_INTRODUCTION = """# Vector maths

Generated code computes exponentials, logarithms, angles and their relatives itself,
several elements at a time, in float32 and float64. Results are promised to be within 2
ULP of the correctly rounded ones (4 for `pow`) for every argument: subnormal numbers,
results that overflow or vanish, NaN, infinities, zeros of both signs and angles of any
size included. They have the same bits for every vector width. `gammaln` and `digamma`
are within 4 ULP or, for negative numbers, where they have a zero between any two
integers, within 2^-23 (2^-52) absolute; the table has their errors for positive ones.
So are `logaddexp` and `logaddexp2` where the result is below 1 in magnitude: there they
have zeros along a curve; the table has their errors elsewhere.

The table has the largest errors that were seen, in ULP: half a unit is what rounding
the exact result may cost. float32 is measured on {single:,} points against double,
float64 on {double:,} against 120 bits. The points are drawn from all bit patterns and
from where the function is neither constant nor infinite. (The tests try many more.)

```python
import numpy as np
from tapejit.targets.cpu import vecmath
from tapejit.targets.cpu.machine.host import elementwise

sine = elementwise(vecmath.sin, dtype=np.float64, width=4)
print(sine(np.array([0.5, 1e22, -0.0])))  # [ 0.47942554 -0.85220085 -0.        ]
```
"""


def vecmath_page() -> str:
    """`vecmath.md`: one row per function."""
    import vecmath_accuracy as accuracy  # compiles, and takes some seconds

    rows = [
        [f"`{name}`", *(f"{error:.2f}" for error in accuracy.measured(name))]
        for name in sorted(accuracy.CASES)
    ]
    says = VECMATH_INTRODUCTION.format(
        single=accuracy.SINGLE_POINTS, double=accuracy.DOUBLE_POINTS
    )
    return "\n".join([MADE, says, table(["function", "float32", "float64"], rows), ""])


# Writing and checking

PAGES: dict[str, Callable[[], str]] = {
    "ops.md": ops_page,
    "numpy_coverage.md": numpy_page,
    "vecmath.md": vecmath_page,
}


def table_rows(text: str) -> dict[str, str]:
    """The lines of all tables by their first cell."""
    return {
        line.split(" | ")[0]: line
        for line in text.splitlines()
        if line.startswith("| `")
    }


def version_of(text: str) -> str | None:
    found = re.search(r"^Of NumPy ([\d.]+):", text, re.MULTILINE)
    return found[1] if found else None


def differences(name: str) -> list[str]:
    """Where a page is not current, as lines of a diff.

    Another NumPy has other functions. Then only those that both have are compared.
    """
    path, made = DOCS / name, PAGES[name]()
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    before, after = written.splitlines(), made.splitlines()
    if version_of(written) not in (None, version_of(made)):
        old, new = table_rows(written), table_rows(made)
        common = [key for key in old if key in new]
        before, after = [old[key] for key in common], [new[key] for key in common]
    return list(difflib.unified_diff(before, after, f"docs/{name}", "made", "", "", 0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or say which are not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args(arguments)
    status = 0
    for name, make in PAGES.items():
        if not options.check:
            (DOCS / name).write_text(make(), encoding="utf-8")
            continue
        lines = differences(name)
        if lines:
            status = 1
            print("\n".join(lines), f"\ndocs/{name}: run python docs/generate.py")
    return status


if __name__ == "__main__":
    sys.exit(main())
