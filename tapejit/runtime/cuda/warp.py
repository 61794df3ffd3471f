"""Operations of an emulated warp, as LLVM text: shuffles, `mma`, `ldmatrix`.

Each of the 32 threads of a warp leaves what it gives in its slot of `@tj.slots`, all of
them wait, then each calls a function of this file with the slots of its warp (`%warp`)
and its number there (`%lane`). Which thread has which elements of a matrix is written
in the PTX ISA, section "Matrix Fragments".

An `mma` adds exact products by ascending k, each sum rounded to float32. Hardware has
its own order and roundings, so its last bits differ.

Start reading at `operation_of`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from tapejit.runtime.cuda.scheduler import SLOT_WORDS


class WarpOperation(NamedTuple):
    """How an intrinsic is done: what threads leave in slots, and who makes the result.

    `left` and `passed` choose among the operands, `function` is the LLVM text of the
    function `name`, whose result is `result`.
    """

    name: str
    result: str
    left: slice
    passed: slice
    function: str


def operation_of(intrinsic: str) -> WarpOperation | None:
    """The operation of a warp that an intrinsic is; None if it is none.

    >>> operation_of("llvm.nvvm.shfl.sync.bfly.i32").name
    'tj.shuffle.bfly'
    >>> operation_of("llvm.nvvm.read.ptx.sreg.tid.x")
    """
    for pattern, make in OPERATIONS.items():
        if found := re.fullmatch(pattern, intrinsic):
            return make(*found.groups())
    return None


# By how it is shuffled: from which thread, and when that is one of the segment.
SHUFFLES: Final = {
    "up": ("sub i32 %lane, %by", "sge"),
    "down": ("add i32 %lane, %by", "sle"),
    "bfly": ("xor i32 %lane, %by", "sle"),
    "idx": ("or i32 %least, %rest", "sle"),
}


def shuffle(how: str) -> WarpOperation:
    """The value of another thread; its own where there is none in its segment."""
    source, compare = SHUFFLES[how]
    text = f"""
define internal i32 @tj.shuffle.{how}(ptr %warp, i32 %lane, i32 %by, i32 %clamp) {{
  %limit = and i32 %clamp, 31
  %shifted = lshr i32 %clamp, 8
  %segment = and i32 %shifted, 31
  %free = xor i32 %segment, 31
  %least = and i32 %lane, %segment
  %reach = and i32 %limit, %free
  %most = or i32 %least, %reach
  %rest = and i32 %by, %free
  %source = {source}
  %is_inside = icmp {compare} i32 %source, %most
  %from = select i1 %is_inside, i32 %source, i32 %lane
  %word = mul i32 %from, {SLOT_WORDS}
  %at = getelementptr i32, ptr %warp, i32 %word
  %value = load i32, ptr %at
  ret i32 %value
}}
"""
    return WarpOperation(f"tj.shuffle.{how}", "i32", slice(1, 2), slice(2, 4), text)


# By type: an element from its word, elements in a word, and k.
ELEMENTS: Final = {
    "bf16": (
        """%value = and i32 %low, -65536
  %element = bitcast i32 %value to float""",
        2,
        16,
    ),
    "f16": (
        """%high = lshr i32 %low, 16
  %short = trunc i32 %high to i16
  %value = bitcast i16 %short to half
  %element = fpext half %value to float""",
        2,
        16,
    ),
    "tf32": (
        """%value = and i32 %bits, -8192
  %element = bitcast i32 %value to float""",
        1,
        8,
    ),
}
FOUR: Final = "{ float, float, float, float }"


def mma(kind: str) -> WarpOperation:
    """16 by 8 elements of a matmul: A by rows in 4 words, B by columns in 2, C in 4."""
    decode, together, k = ELEMENTS[kind]
    part = 4 * together  # of k, in one word of each thread
    text = f"""
define internal float @tj.element(ptr %warp, i32 %lane, i32 %word, i32 %index) {{
  %first = mul i32 %lane, {SLOT_WORDS}
  %place = add i32 %first, %word
  %at = getelementptr i32, ptr %warp, i32 %place
  %bits = load i32, ptr %at
  %is_low = icmp eq i32 %index, 0
  %shift = select i1 %is_low, i32 16, i32 0
  %low = shl i32 %bits, %shift
  {decode}
  ret float %element
}}
define internal float @tj.dot(ptr %warp, i32 %row, i32 %column, float %start) {{
  %row.lane = and i32 %row, 7
  %row.word = lshr i32 %row, 3
  br label %head
head:
  %k = phi i32 [0, %0], [%next, %head]
  %sum = phi float [%start, %0], [%more, %head]
  %part = udiv i32 %k, {part}
  %inside = urem i32 %k, {part}
  %thread = udiv i32 %inside, {together}
  %index = urem i32 %inside, {together}
  %a.first = shl i32 %row.lane, 2
  %a.lane = add i32 %a.first, %thread
  %a.part = shl i32 %part, 1
  %a.word = add i32 %a.part, %row.word
  %a = call float @tj.element(ptr %warp, i32 %a.lane, i32 %a.word, i32 %index)
  %b.first = shl i32 %column, 2
  %b.lane = add i32 %b.first, %thread
  %b.word = add i32 %part, 4
  %b = call float @tj.element(ptr %warp, i32 %b.lane, i32 %b.word, i32 %index)
  %product = fmul float %a, %b
  %more = fadd float %sum, %product
  %next = add i32 %k, 1
  %is_left = icmp ult i32 %next, {k}
  br i1 %is_left, label %head, label %done
done:
  ret float %more
}}
define internal {FOUR} @tj.mma(ptr %warp, i32 %lane) {{
  %row = lshr i32 %lane, 2
  %quarter = and i32 %lane, 3
  %column = shl i32 %quarter, 1
  %slot = mul i32 %lane, {SLOT_WORDS}
  {"".join(result_of_mma(number) for number in range(4))}
  ret {FOUR} %all3
}}
"""
    text = text.replace("@tj.", f"@tj.{kind}.")
    return WarpOperation(f"tj.{kind}.mma", FOUR, slice(0, 10), slice(0, 0), text)


def result_of_mma(number: int) -> str:
    """Text of one of a thread's four results."""
    before = f"%all{number - 1}" if number else "poison"
    return f"""
  %row{number} = add i32 %row, {8 * (number // 2)}
  %column{number} = add i32 %column, {number % 2}
  %word{number} = add i32 %slot, {6 + number}
  %at{number} = getelementptr i32, ptr %warp, i32 %word{number}
  %c{number} = load float, ptr %at{number}
  %d{number} = call float @tj.dot(ptr %warp, i32 %row{number}, i32 %column{number},
                                  float %c{number})
  %all{number} = insertvalue {FOUR} {before}, float %d{number}, {number}"""


def ldmatrix(count: str, transposed: str | None) -> WarpOperation:
    """Matrices of 8 by 8 elements of 16 bits, as `mma` takes them.

    Each thread gives the place of a row: the first eight those of the first matrix.
    """
    number = int(count)
    kind = "i32" if number == 1 else f"{{ {', '.join(['i32'] * number)} }}"
    name = f"tj.ldmatrix.x{count}{transposed or ''}"
    rows = ["%element", "%element.next"] if transposed else ["%row", "%row"]
    columns = ["%row", "%row"] if transposed else ["%element", "%element.next"]
    text = f"""
define internal {kind} @{name}(ptr %warp, i32 %lane) {{
  %row = lshr i32 %lane, 2
  %quarter = and i32 %lane, 3
  %element = shl i32 %quarter, 1
  %element.next = or i32 %element, 1
"""
    for at in range(number):
        for part, row, column in zip("ab", rows, columns, strict=True):
            x = f"{part}{at}"
            text += f"""
  %lane.{x} = add i32 {row}, {8 * at}
  %slot.{x} = mul i32 %lane.{x}, {SLOT_WORDS}
  %slot.at.{x} = getelementptr i32, ptr %warp, i32 %slot.{x}
  %start.{x} = load ptr, ptr %slot.at.{x}
  %at.{x} = getelementptr i16, ptr %start.{x}, i32 {column}
  %short.{x} = load i16, ptr %at.{x}
  %{x} = zext i16 %short.{x} to i32"""
        text += f"""
  %high{at} = shl i32 %b{at}, 16
  %word{at} = or i32 %a{at}, %high{at}
"""
        before = f"%all{at - 1}" if at else "poison"
        if number > 1:
            text += f"  %all{at} = insertvalue {kind} {before}, i32 %word{at}, {at}"
    result = f"%all{number - 1}" if number > 1 else "%word0"
    text += f"\n  ret {kind} {result}\n}}\n"
    return WarpOperation(name, kind, slice(0, 1), slice(0, 0), text)


OPERATIONS: Final[dict[str, Callable[..., WarpOperation]]] = {
    r"llvm\.nvvm\.shfl\.sync\.(up|down|bfly|idx)\.[if]32": shuffle,
    r"llvm\.nvvm\.mma\.m16n8k16\.row\.col\.(bf16)": mma,
    r"llvm\.nvvm\.mma\.m16n8k16\.row\.col\.(f)32\.f32": lambda _: mma("f16"),
    r"llvm\.nvvm\.mma\.m16n8k8\.row\.col\.(tf32)": mma,
    r"llvm\.nvvm\.ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.b16\.p[03]": (
        ldmatrix
    ),
}
