"""Matmuls inside of one tile of rows as text: what `TiledMatmul` emits for the CPU.

In the text no tile begins before the end of another: the last one is shorter.

Start reading at `write_row_product`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tapejit.loops.steps import Step, tiles_of

if TYPE_CHECKING:
    from tapejit.targets.python.kernel_writer import Array, KernelWriter


def write_row_product(at: KernelWriter, step: Step) -> None:
    """A product of the rows of one tile."""
    along, parts = tiles_of(step), parts_of(at, step)
    cuts, is_sum = along.cuts, along.kind == "sum"
    texts: list[str] = []
    operands = zip(step.views, step.performed.inputs, ("mk", "kn"), strict=True)
    for view, x, names in operands:
        base = view[0]
        if isinstance(base, Step) and at.plan.storage[base].kernel is not None:
            is_swapped = is_sum and not texts
            kept = at.array(base)
            name = kept.name + rows_of_tile(at, kept)
            texts.append(name + (".T" if is_swapped else ""))
        else:
            place = in_stack(at, step, x.shape[:-2], part_of(names, parts))
            texts.append(f"{at.view(view, x)}{place}")
    text = " @ ".join(texts)
    name = at.matrices(step)
    if at.plan.storage[step].kernel is not None:
        part = rows_of_tile(at, at.array(step)) or "[...]"
        at.write(f"{name}{part} = {text}", step.performed)
        return
    part = in_stack(at, step, step.performed.shape[:-2], part_of("mn", parts))
    out = name + (part or "[...]")
    if "k" in cuts:
        first = at.first_of(cuts["k"])
        text = f"{text} if {first} == 0 else {out} + {text}"
    at.write(f"{out} = {text}", step.performed)


def parts_of(at: KernelWriter, step: Step) -> dict[str, str]:
    """The axes of a product that go by in tiles, with the current one's slice."""
    tiles = {x.axis: x.tile for x in at.plan.paths[step] if x.tile}
    found = {}
    for name, axis in tiles_of(step).cuts.items():
        first = at.first_of(axis)
        end = at.ends.get(axis, f"{first} + {tiles[axis]}")
        found[name] = f"{first}:{end}"
    return found


def rows_of_tile(at: KernelWriter, kept: Array) -> str:
    """An index: what the current tile has of memory for one tile, if not all."""
    if not any(axis in at.ends for axis in kept.tiled):
        return ""
    parts = []
    for axis in kept.axes:
        if axis in kept.tiled and axis in at.ends:
            parts.append(f":{at.ends[axis]} - {at.first_of(axis)}")
        else:
            parts.append(":")
    return f"[{', '.join(parts)}]"


def in_stack(at: KernelWriter, product: Step, front: Sequence[Any], end: str) -> str:
    """An index: the matrix of this iteration in a stack, and a part of it.

    `front` are the sizes of the stack, 1 where all matrices of an axis are one.
    """
    whole, axes = product.performed.shape[:-2], tiles_of(product).axes
    names = iter([at.index(axis) for axis in axes[:-1]])
    indices = ["0" if size == 1 else next(names) for size in whole]
    own = indices[len(indices) - len(front) :]
    pairs = zip(front, own, strict=True)
    parts = ["0" if size == 1 else index for size, index in pairs]
    parts += [end] if end else []
    return f"[{', '.join(parts)}]" if parts else ""


def part_of(names: str, parts: Mapping[str, str]) -> str:
    """The index of a part of a matrix, by the names of its axes.

    >>> part_of("mk", {"k": "0:8"}), part_of("mk", {"m": "0:8"}), part_of("mn", {})
    (':, 0:8', '0:8', '')
    """
    found = [parts.get(name, ":") for name in names]
    while found and found[-1] == ":":
        found.pop()
    return ", ".join(found)
