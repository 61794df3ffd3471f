"""What the ladder finds, counted, as lines and as the page `docs/cuda_kernels.md`.

Start reading at `Found`, then `page`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from op_cases import FAMILIES, ROWS
from op_cases.case import DTYPES

from tapejit.base.errors import UnsupportedError
from tapejit.base.types import is_float, is_integer
from tapejit.rewrite.empty import without_empty
from tapejit.rewrite.pipeline import optimise
from tapejit.runtime.cuda.device_graph import whole_graph

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cuda_kernels.md"
PROCESSORS = ("sm_80", "sm_90", "sm_100")


@dataclass
class OpFound:
    """What is known of an operation; `modules` are hashes of the text of kernels."""

    dtypes: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    modules: set[str] = field(default_factory=set)

    def see(self, dtype: str, kind: str) -> None:
        self.dtypes.add(dtype)
        self.kinds[kind] += 1


@dataclass
class Found:
    """What was found, by rung; parts of several processes are put `together`."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    ops: dict[str, OpFound] = field(default_factory=dict)
    # Registers of each kernel, by the hash of its module, for each of `PROCESSORS`.
    registers: dict[str, tuple[list[int], ...]] = field(default_factory=dict)
    seconds: float = 0.0
    every: int = 1  # one program of so many was taken

    def row(self, op: str) -> OpFound:
        return self.ops.setdefault(op, OpFound())

    def refuse(self, rung: str, reason: str, op: str) -> None:
        self.counts[rung, "no kernel"] += 1
        self.refused[rung, reason, op] += 1

    def fail(self, text: str) -> None:
        self.wrong.append(text[:1500])
        print(f"WRONG {text[:1500]}\n", flush=True)

    @classmethod
    def together(cls, parts: Iterable[Found]) -> Found:
        all_of = cls()
        for part in parts:
            all_of.counts += part.counts
            all_of.explained += part.explained
            all_of.refused += part.refused
            all_of.wrong += part.wrong
            all_of.registers |= part.registers
            all_of.seconds += part.seconds
            all_of.every = part.every
            for op, x in part.ops.items():
                row = all_of.row(op)
                row.dtypes |= x.dtypes
                row.kinds += x.kinds
                row.modules |= x.modules
        return all_of

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        for rung in dict.fromkeys(rung for rung, _ in self.counts):
            told = {kind: n for (x, kind), n in self.counts.items() if x == rung}
            yield f"{rung}: " + ", ".join(f"{n} {kind}" for kind, n in told.items())
            if rung == "assemble":
                yield from self.assembled()
            if rung == "run":
                for why, n in self.explained.most_common():
                    yield f"  {n} not in the CPU's order: {why}"
            reasons: dict[str, Counter[str]] = {}
            for (x, reason, op), n in self.refused.items():
                if x == rung:
                    reasons.setdefault(reason, Counter())[op] += n
            for reason, names in reasons.items():
                said = ", ".join(f"{name} {n}" for name, n in names.most_common())
                yield f"  {names.total():6} {reason}: {said}"
        taken = "all programs" if self.every == 1 else f"one program of {self.every}"
        minutes = f"{self.seconds / 60:.1f} processor-minutes"
        yield f"{len(self.wrong)} wrong; {taken}, {minutes}"

    def assembled(self) -> Iterator[str]:
        """A line for each processor."""
        for at, processor in enumerate(PROCESSORS):
            kernels = [x[at] for x in self.registers.values()]
            numbers = [x for module in kernels for x in module]
            yield (
                f"  {processor}: {len(kernels)} different modules, {len(numbers)} "
                f"kernels, {max(numbers, default=0)} registers at most, "
                f"{sum(x > 64 for x in numbers)} above 64"
            )


# The page


INTRODUCTION = """<!-- Made by python -m tests.devices.ladder --page: do not edit. -->

# Kernels for GPUs

What the proof of kernels found that needs no GPU: `python -m tests.devices.ladder`.
It takes every row of the op table in every dtype, with and without its gradient, every
golden program and 300 random ones, and

- runs their kernels on the emulated device, where races are errors, and compares the
  results with the CPU's;
- runs them in five orders of threads, which must give the same bits;
- leaves out each barrier in turn, which must be noticed;
- makes machine code for three processors and looks at what it takes.

None of it has run on hardware. The emulated device is one that programs can use, too:

```python
import tapejit as tj

with tj.config.override(cuda="emulated"):
    x = tj.asarray([0.0, 1.0], device="cuda:0")
    print(tj.square(x + 1))  # [1. 4.]
```
"""
TABLES = """
## By family

*Programs* are rows of the op table, by dtype and with gradients. Their results have
the CPU's *bits*; or they *agree*, where floats are added up in another order;
*unsteady* are those that rounding alone changes by more than that. *Registers* are the
most that a kernel takes on any of the processors, of 255.
"""
WITHOUT = """
## Without a kernel

The host does what is on this list, for the dtypes or sizes that are named (see
`soft_placement`). What every operation lacks is left out: complex numbers, and sizes
that are not fixed.
"""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(found: Found) -> str:
    """The whole page."""
    counted = "\n".join(f"    {x}" for x in found.lines() if not x.startswith("   "))
    header = ["family", "operations", "dtypes", "programs", "bits", "agree"]
    header += ["unsteady", "kernels", "registers"]
    parts = [INTRODUCTION, counted, TABLES, table(header, families(found))]
    return "\n".join([*parts, WITHOUT, without_table()])


def families(found: Found) -> Iterator[list[str]]:
    """A line for each family of operations."""
    seen: set[str] = set()
    for family in FAMILIES:
        names = {case.op for case in family.CASES} - seen
        seen |= names
        ops = [x for name in names if (x := found.ops.get(name)) and x.kinds]
        if not ops:
            continue
        dtypes = set[str]().union(*(x.dtypes for x in ops))
        kinds = sum((x.kinds for x in ops), Counter[str]())
        modules = set[str]().union(*(x.modules for x in ops)) & set(found.registers)
        taken = [n for x in modules for kernels in found.registers[x] for n in kernels]
        kernels = sum(len(found.registers[x][0]) for x in modules)
        yield [
            family.__name__.rpartition(".")[2].replace("_", " "),
            str(len(ops)),
            str(len(dtypes)),
            str(kinds.total()),
            *(str(kinds[x]) for x in ("bits", "close", "unsteady")),
            str(kernels),
            str(max(taken, default=0)),
        ]


def without_table() -> str:
    """Rows of operations that have no kernel, and why."""
    return table(["operation", "why", "dtypes", "programs"], without_kernels()) + "\n"


def without_kernels() -> Iterator[list[str]]:
    """Operations that no kernel can do, why, and in which dtypes.

    They are named as what is left of a row when it is optimised.
    """
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in ROWS:
        for dtype in row.dtypes:
            if dtype.kind == "c":
                continue
            try:
                whole_graph(without_empty(optimise(row.graph(dtype))))
            except UnsupportedError as error:
                reason = error.message.removeprefix("a GPU cannot do this: ")
                reason = NAMED.sub("", reason)
                if reason not in LEFT_OUT:
                    reasons.setdefault((error.op or "", reason), []).append(dtype.name)
    for (op, reason), found in sorted(reasons.items()):
        yield [f"`{op}`", reason, said(set(found)), str(len(found))]


def said(dtypes: set[str]) -> str:
    """Dtypes in a few words.

    >>> said({"bool", "float16", "bfloat16"})
    'bool, float16, bfloat16'
    """
    kinds = {"integers": is_integer, "floats": is_float}
    words = [x.name for x in DTYPES if x.name in dtypes]
    for kind, holds in kinds.items():
        own = [x.name for x in DTYPES if holds(x)]
        if dtypes.issuperset(own):
            words = [kind, *(x for x in words if x not in own)]
    return ", ".join(words)


LEFT_OUT = ("complex numbers", "sizes that are not fixed")
NAMED = re.compile("(?<=^no native code) for (?:bool|u?int|b?float).*")


def write_page(found: Found) -> None:
    PAGE.write_text(page(found))
