"""What this processor is and can do, in its own words: the answers to CPUID.

LLVM's name for a processor and its list of features are made of these numbers. Who only
has to know whether two processors are alike need not load LLVM for it: asking takes
0.1 ms instead of 50.

Start reading at `answers`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from typing import Final

from tapejit.targets.cpu.machine.linking import address_of, load_instructions

# ask(leaf, part, four words): CPUID, whose answer is in eax, ebx, ecx and edx.
_ASK: Final = bytes.fromhex(
    "53"  # push rbx
    "4989d0"  # mov r8, rdx
    "89f8"  # mov eax, edi
    "89f1"  # mov ecx, esi
    "0fa2"  # cpuid
    "418900"  # mov [r8], eax
    "41895804"  # mov [r8 + 4], ebx
    "41894808"  # mov [r8 + 8], ecx
    "4189500c"  # mov [r8 + 12], edx
    "5b"  # pop rbx
    "c3"  # ret
)
# What the system saves of a thread's registers; without it vectors cannot be used.
_SAVED: Final = bytes.fromhex(
    "31c9"  # xor ecx, ecx
    "0f01d0"  # xgetbv
    "48c1e220"  # shl rdx, 32
    "4809d0"  # or rax, rdx
    "c3"  # ret
)
# In ecx of leaf 1.
_CAN_BE_ASKED: Final = 1 << 27  # there is xgetbv
_FUSES: Final = 1 << 12 | 1 << 28  # fused multiply-adds, and the vectors they are for
_VECTORS_SAVED: Final = 0b110

# Every leaf that LLVM looks at, the part of it, and which of eax, ebx, ecx and edx it
# uses. What differs between the cores of one processor (ebx of leaf 1) is none of them.
LEAVES: Final = (
    (0x0, 0, "abcd"),
    (0x1, 0, "acd"),
    (0x7, 0, "abcd"),
    (0x7, 1, "abcd"),
    (0xD, 1, "a"),
    (0x14, 0, "b"),
    (0x19, 0, "b"),
    (0x1E, 1, "a"),
    (0x24, 0, "b"),
    (0x80000000, 0, "abcd"),
    (0x80000001, 0, "cd"),
    (0x80000008, 0, "b"),
)


@functools.cache
def identity() -> str | None:
    """Equal for processors for which LLVM makes equal code; None: only LLVM can tell.

    >>> identity() is None or identity() == identity.__wrapped__()
    True
    """
    found = answers()
    if found is None:
        return None
    texts = {name: [f"{word:x}" for word in words] for name, words in found.items()}
    return " ".join(f"{name}:{','.join(words)}" for name, words in texts.items())


@functools.cache
def has_fused_multiply_add() -> bool:
    """Whether x * y + z, rounded once, is an instruction of this processor.

    Asked of the processor that is there, whatever the setting `cpu` says: code that is
    limited by it does the same in other instructions.

    >>> has_fused_multiply_add() in (True, False)
    True
    """
    found = answers()
    if found is not None:
        _, features, _ = found.get("1.0", [0, 0, 0])
        (saved,) = found.get("saved", [0])
        return features & _FUSES == _FUSES and saved & _VECTORS_SAVED == _VECTORS_SAVED
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686", "x86"):
        return True  # they have had it from the beginning
    from llvmlite import binding

    return bool(binding.get_host_cpu_features().get("fma"))


def answers() -> dict[str, list[int]] | None:
    """What the processor answers, by leaf and part; None where it cannot be asked.

    >>> found = answers()
    >>> found is None or "0.0" in found
    True
    """
    memory = load_instructions(_ASK.ljust(64, b"\xcc") + _SAVED)
    if memory is None:
        return None
    place = address_of(memory)
    ask = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(
        place
    )
    answer = (ctypes.c_uint32 * 4)()
    last = {}
    for base in (0, 0x80000000):
        ask(base, 0, ctypes.addressof(answer))
        last[base] = answer[0]
    found: dict[str, list[int]] = {}
    can_be_asked = False
    for leaf, part, registers in LEAVES:
        if leaf > last[leaf & 0x80000000]:  # what it would answer means nothing
            continue
        ask(leaf, part, ctypes.addressof(answer))
        words = [answer["abcd".index(register)] for register in registers]
        found[f"{leaf:x}.{part}"] = words
        if leaf == 1:
            can_be_asked = bool(answer[2] & _CAN_BE_ASKED)
    if can_be_asked:
        found["saved"] = [ctypes.CFUNCTYPE(ctypes.c_uint64)(place + 64)()]
    return found


def cores() -> int:
    """How many processors this process may use.

    >>> cores() > 0
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
