"""GPU threads as coroutines: the LLVM text of kernels, made to run on a CPU.

A kernel becomes a coroutine that stops at barriers and at operations of its warp, and
asks before each access to memory that other threads see. Nothing else changes but
thread numbers and address spaces. It is the text as LLVM prints it that is rewritten,
so that it is the same however it was written.

Start reading at `as_coroutines`, then `CoroutineWriter`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, NoReturn

from llvmlite import binding

from tapejit.base.errors import UnsupportedError
from tapejit.runtime.cuda.scheduler import (
    AT_FAULT,
    DECLARED,
    FOR_BLOCK,
    FOR_WARP,
    SLOT_WORDS,
)
from tapejit.runtime.cuda.warp import WarpOperation, operation_of
from tapejit.targets.cpu.machine.host import host_machine

BORDER: Final = 64  # bytes behind an array of shared memory that are nobody's
HOSTS: Final = ("target ", "source_filename ")  # what is of one processor

NAME: Final = r'(?:"[^"]*"|[-\w.$]+)'
TYPE: Final = r"(?:<[^<>]*>|\{[^{}]*\}|\[[^\[\]]*\]|\w+)"
ALIGNED: Final = r", align (\d+)(?:, !.*)?$"
DEFINE: Final = re.compile(rf"define (.*?)@({NAME})\(.*\{{$")
VARIABLE: Final = re.compile(rf"(@{NAME}) = (.*?)\b(?:global|constant) ")
LABEL: Final = re.compile(rf"({NAME}):")
LOAD: Final = re.compile(
    rf"(%{NAME}) = load (?:volatile )?({TYPE}), ptr (.*?){ALIGNED}"
)
STORE: Final = re.compile(rf"store (?:volatile )?({TYPE}) .*, ptr (.*?){ALIGNED}")
UNKNOWN: Final = re.compile(rf"(?:%{NAME} = )?(?:load|store|atomicrmw|cmpxchg) ")
UPDATE: Final = re.compile(
    rf"(%{NAME}) = atomicrmw (?:volatile )?\w+ ptr (.*), ({TYPE}) \S+"
    rf'(?: syncscope\("\w+"\))? \w+{ALIGNED}'
)
CALL: Final = re.compile(
    rf"(?:(%{NAME}) = )?(?:tail |notail )?call .*?@({NAME})\((.*)\)(?: #\d+)?$"
)
POINTER: Final = re.compile(
    rf"(%{NAME}) = (?:alloca|(?:getelementptr|phi|select|freeze|bitcast)\b(.*))"
)

# What inlining leaves behind: what aliases what, and how long memory is in use.
INLINED: Final = re.compile(r"@llvm\.(?:lifetime|experimental\.noalias\.scope)\.")
SCOPES: Final = re.compile(r", !(?:alias\.scope|noalias) !\d+")
OWN: Final = re.compile(rf"(%{NAME}) = alloca (.*?)(?:, align \d+)?$")

# What a thread may ask for its place, and what answers.
REGISTERS: Final = {
    "tid.x": "add i32 %tj.thread, 0",
    "ctaid.x": "add i32 %tj.block, 0",
    "ntid.x": "load i32, ptr @tj.threads",
    "nctaid.x": "load i32, ptr @tj.blocks",
    "laneid": "add i32 %tj.lane, 0",
}
REGISTER: Final = "llvm.nvvm.read.ptx.sreg."
BARRIERS: Final = {
    "llvm.nvvm.barrier.cta.sync.aligned.all": "i32 0",
    "llvm.nvvm.bar.warp.sync": "i32 -1",
}
REFUSED: Final = re.compile(r"llvm\.(?:nvvm|masked|memset|memcpy|memmove)\.")

PLACE: Final = "i32 %tj.thread, i32 %tj.block"
# What a coroutine keeps has vectors in it, which are read as if they were aligned: 8
# halves, widened, take 32 bytes. `malloc` promises 16, so its address stands in front.
FRAME_ALIGN: Final = 64
ENTRY: Final = f"""
tj.entry:
  %tj.id = call token @llvm.coro.id(i32 {FRAME_ALIGN}, ptr null, ptr null, ptr null)
  %tj.size = call i64 @llvm.coro.size.i64()
  %tj.room = add i64 %tj.size, {2 * FRAME_ALIGN}
  %tj.raw = call ptr @malloc(i64 %tj.room)
  %tj.raw.at = ptrtoint ptr %tj.raw to i64
  %tj.beyond = add i64 %tj.raw.at, {2 * FRAME_ALIGN - 1}
  %tj.memory.at = and i64 %tj.beyond, {-FRAME_ALIGN}
  %tj.memory = inttoptr i64 %tj.memory.at to ptr
  %tj.front = getelementptr i8, ptr %tj.memory, i64 -8
  store ptr %tj.raw, ptr %tj.front
  %tj.handle = call ptr @llvm.coro.begin(token %tj.id, ptr %tj.memory)
  %tj.state.at = getelementptr i32, ptr @tj.state, i32 %tj.thread
  %tj.epoch.at = getelementptr i32, ptr @tj.warp_epochs, i32 %tj.thread
  %tj.lane = and i32 %tj.thread, 31
  %tj.first = sub i32 %tj.thread, %tj.lane
  %tj.warp.word = mul i32 %tj.first, {SLOT_WORDS}
  %tj.warp = getelementptr i32, ptr @tj.slots, i32 %tj.warp.word
  %tj.slot.word = mul i32 %tj.thread, {SLOT_WORDS}
  %tj.slot = getelementptr i32, ptr @tj.slots, i32 %tj.slot.word"""
FREED: Final = "  %tj.freed ="
EXIT: Final = f"""tj.fault:
  br label %tj.final
tj.over:
  br label %tj.final
tj.final:
  %tj.end = phi i32 [{AT_FAULT}, %tj.fault], [0, %tj.over]
  store i32 %tj.end, ptr %tj.state.at
  %tj.last = call i8 @llvm.coro.suspend(token none, i1 true)
  switch i8 %tj.last, label %tj.suspend [i8 0, label %tj.trap i8 1, label %tj.cleanup]
tj.trap:
  unreachable
tj.cleanup:
{FREED} call ptr @llvm.coro.free(token %tj.id, ptr %tj.handle)
  %tj.freed.front = getelementptr i8, ptr %tj.freed, i64 -8
  %tj.freed.raw = load ptr, ptr %tj.freed.front
  call void @free(ptr %tj.freed.raw)
  br label %tj.suspend
tj.suspend:
  call void @llvm.coro.end(ptr %tj.handle, i1 false, token none)
  ret ptr %tj.handle
}}"""


class StopSite(NamedTuple):
    """A place of a kernel where threads stop, or look at memory."""

    kernel: str
    text: str
    size: int = 0  # bytes at which it looks
    align: int = 1
    writes: bool = False
    is_atomic: bool = False


class ModuleVariable(NamedTuple):
    """A variable of a module: its bytes, and whether each block has its own."""

    name: str
    size: int
    is_shared: bool


class Coroutines(NamedTuple):
    """A module that runs on this CPU: `parameters` has the types of each kernel's."""

    text: str
    parameters: dict[str, list[str]]
    variables: list[ModuleVariable]
    sites: list[StopSite]


def as_coroutines(module: Any) -> Coroutines:
    """The text of a module whose kernels are coroutines, which the scheduler runs."""
    inline(module)
    functions = iter([x for x in module.functions if not x.is_declaration])
    kinds = {x.name: str(x.global_value_type) for x in module.global_variables}
    found = Coroutines("", {}, [], [])
    operations: dict[str, WarpOperation] = {}
    out = [DECLARED]
    lines = iter(str(module).splitlines())
    for line in lines:
        if match := DEFINE.match(line):
            body = list(iter(lambda: next(lines), "}"))
            function = next(functions)
            if "ptx_kernel" in match[1]:
                writer = CoroutineWriter(function, match[2], found.sites)
                out.append(writer.write(joined(body)))
                found.parameters[function.name] = writer.types
                operations |= writer.operations
        elif match := VARIABLE.match(line):
            kind = kinds[match[1][1:].strip('"')]
            is_shared = "addrspace(3)" in match[2]
            found.variables.append(ModuleVariable(match[1], size_of(kind), is_shared))
            if is_shared:
                whole = f"{{ {kind}, [{BORDER} x i8] }}"
                line = f"{match[1]} = internal global {whole} undef, align 16"
            out.append(without_spaces(line))
        elif not line.startswith(HOSTS) and "@llvm.nvvm." not in line:
            out.append(without_spaces(line))
    out += [x.function for x in operations.values()]
    return found._replace(text="\n".join([*out, *memory_of(found.variables)]))


def inline(module: Any) -> None:
    """Let kernels call no functions of their module: only kernels can stop.

    What can be in registers is there. The rest of a thread's own memory is allocated
    when it begins: memory on a stack that is used before a stop and behind it was found
    to be one for all threads.
    """
    for function in module.functions:
        if not function.is_declaration and "ptx_kernel" not in str(function):
            function.add_function_attribute("alwaysinline")
    passes = binding.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    options = binding.create_pipeline_tuning_options()
    passes.run(module, binding.create_pass_builder(host_machine(), options))


def memory_of(variables: list[ModuleVariable]) -> Iterator[str]:
    """Text that says where variables are, and fills those of a block with 0xFF."""
    places = ", ".join(f"ptr {x.name}" for x in variables)
    yield f"@tj.own = global [{len(variables)} x ptr] [{places}]"
    yield "define void @tj.poison() {"
    for x in variables:
        if x.is_shared:
            given = f"ptr {x.name}, i8 -1, i64 {x.size}, i1 0"
            yield f"call void @llvm.memset.p0.i64({given})"
    yield "ret void\n}"


def joined(body: list[str]) -> list[str]:
    """The lines of a function, those of a `switch` in one."""
    text = re.sub(r"\[\n([^\]]*)\n +\]", r"[\1]", without_spaces("\n".join(body)))
    lines = re.sub(r"\n(?= +i\d+ -?\d+, label)", " ", text).split("\n")
    return [line for line in lines if line]


class CoroutineWriter:
    """Writes one kernel as a coroutine, line by line."""

    def __init__(self, function: Any, name: str, sites: list[StopSite]) -> None:
        self.name, self.sites = name, sites
        self.types = [without_spaces(str(x.type)) for x in function.arguments]
        names = [x.name for x in function.arguments]
        unnamed = iter(range(len(names)))
        self.names = [f'%"{x}"' if x else f"%{next(unnamed)}" for x in names]
        self.first = str(names.count(""))  # the entry has the next number, or a name
        self.lines: list[str] = []
        self.block = self.first
        self.ends: dict[str, str] = {}  # what was a block ends as another one
        self.count = 0
        self.local: set[str] = set()  # pointers to a thread's own memory
        self.operations: dict[str, WarpOperation] = {}

    def write(self, body: list[str]) -> str:
        """The coroutine, and the function that makes it for one thread."""
        if label := LABEL.match(body[0]):
            self.first = self.block = label[1]
        else:
            body = [f"{self.first}:", *body]
        body = [SCOPES.sub("", x) for x in body if not INLINED.search(x)]
        self.find_local(body)
        own = [OWN.match(line.strip()) for line in body]
        body = [x for x, found in zip(body, own, strict=True) if not found]
        pieces = {found[1]: size_of(found[2]) for found in own if found}
        parameters = [f"{x} {y}" for x, y in zip(self.types, self.names, strict=True)]
        self.emit(
            f"define internal ptr @{self.name}({', '.join([*parameters, PLACE])}) "
            f"presplitcoroutine {{{ENTRY}",
            *(f"{x} = call ptr @malloc(i64 {n})" for x, n in pieces.items()),
        )
        self.stop(FOR_WARP, StopSite(self.name, "its start"))
        self.emit(f"br label %{self.first}")
        self.ends.clear()
        for line in body:
            self.instruction(line.strip())
        freed = "".join(f"  call void @free(ptr {x})\n" for x in pieces)
        self.emit(EXIT.replace(FREED, f"{freed}{FREED}"))
        phis = re.compile(rf"%({NAME}) \]")
        for at, line in enumerate(self.lines):
            if " = phi " in line:
                self.lines[at] = phis.sub(self.end_of, line)
        return "\n".join([*self.lines, self.start()])

    def start(self) -> str:
        """The function that reads the arguments of a launch and makes the coroutine."""
        lines = [f"define ptr @{starter(self.name)}(ptr %given, {PLACE}) {{"]
        for at, kind in enumerate(self.types):
            lines += [
                f"  %at{at} = getelementptr ptr, ptr %given, i32 {at}",
                f"  %from{at} = load ptr, ptr %at{at}",
                f"  %value{at} = load {kind}, ptr %from{at}",
            ]
        values = [f"{kind} %value{at}" for at, kind in enumerate(self.types)]
        made = f"  %made = call ptr @{self.name}({', '.join([*values, PLACE])})"
        return "\n".join([*lines, made, "  ret ptr %made\n}\n"])

    def emit(self, *lines: str) -> None:
        self.lines.extend(lines)

    def new(self) -> str:
        """A name that is not in use."""
        self.count += 1
        return f"tj.{self.count}"

    def end_of(self, found: re.Match[str]) -> str:
        return f"%{self.ends.get(found[1], found[1])} ]"

    def go_on_in(self, label: str) -> None:
        """The rest of the block is a block of another name."""
        self.emit(f"{label}:")
        self.ends[self.block] = label

    def number_of(self, site: StopSite) -> int:
        self.sites.append(site)
        return len(self.sites) - 1

    def find_local(self, body: list[str]) -> None:
        """Note which pointers are to memory that no other thread sees."""
        before = -1
        while before != len(self.local):
            before = len(self.local)
            for line in body:
                if not (found := POINTER.match(line.strip())):
                    continue
                sources = re.findall(rf"%{NAME}", found[2] or "")
                if found[2] is None or self.local.intersection(sources):
                    self.local.add(found[1])

    def instruction(self, line: str) -> None:
        """Write one line of the kernel, or what stands for it."""
        if label := LABEL.match(line):
            self.block = label[1]
        elif line == "ret void":
            line = "br label %tj.over"
        elif found := LOAD.match(line):
            self.touch(found[3], self.access(line, found[2], found[4]))
        elif found := STORE.match(line):
            self.touch(found[2], self.access(line, found[1], found[3], True))
        elif found := UPDATE.match(line):
            access = self.access(line, found[3], found[4], True)
            self.touch(found[2], access._replace(is_atomic=True))
        elif found := CALL.match(line):
            result, function, operands = found.groups()
            if self.intrinsic(line, result, function, operands):
                return
        elif UNKNOWN.match(line):
            self.refuse(line)
        if REFUSED.search(line):
            self.refuse(line)
        self.emit(line)

    def refuse(self, line: str) -> NoReturn:
        raise UnsupportedError(
            f"an emulated GPU cannot do this: {line}",
            help="teach it in tapejit/runtime/cuda/threads.py",
        )

    def intrinsic(self, line: str, result: str, name: str, operands: str) -> bool:
        """Write what stands for a call of the hardware; False if it is none."""
        register = REGISTERS.get(name.removeprefix(REGISTER))
        if register and name.startswith(REGISTER):
            self.emit(f"{result} = {register}")
        elif BARRIERS.get(name) == operands:
            is_block = "cta" in name
            self.stop(FOR_BLOCK if is_block else FOR_WARP, StopSite(self.name, line))
            if not is_block:
                old, now = self.new(), self.new()
                self.emit(
                    f"%{old} = load i32, ptr %tj.epoch.at",
                    f"%{now} = add i32 %{old}, 1",
                    f"store i32 %{now}, ptr %tj.epoch.at",
                )
        elif operation := operation_of(name):
            self.together(line, result, operation, list(split(operands)))
        else:
            return False
        return True

    def together(
        self, line: str, result: str, operation: WarpOperation, operands: list[str]
    ) -> None:
        """An operation of all threads of a warp."""
        if "shfl" in line and operands[0] != "i32 -1":
            self.refuse(line)  # it is not of the whole warp
        self.operations[operation.name] = operation
        if "ldmatrix" in line:
            self.touch_row(operands[0], line)
        for word, operand in enumerate(operands[operation.left]):
            at = self.new()
            self.emit(
                f"%{at} = getelementptr i32, ptr %tj.slot, i32 {word}",
                f"store {operand}, ptr %{at}",
            )
        self.stop(FOR_WARP, StopSite(self.name, line))
        given = ["ptr %tj.warp", "i32 %tj.lane", *operands[operation.passed]]
        call = f"call {operation.result} @{operation.name}({', '.join(given)})"
        if ".f32(" in line and "shfl" in line:
            bits = self.new()
            self.emit(f"%{bits} = {call}", f"{result} = bitcast i32 %{bits} to float")
        else:
            self.emit(f"{result} = {call}")
        self.stop(FOR_WARP, StopSite(self.name, line))  # until all have read the slots

    def stop(self, kind: int, site: StopSite) -> None:
        """Wait until the warp or the block goes on."""
        result, label = self.new(), self.new()
        self.emit(
            f"store i32 {4 * self.number_of(site) + kind}, ptr %tj.state.at",
            f"%{result} = call i8 @llvm.coro.suspend(token none, i1 false)",
            f"switch i8 %{result}, label %tj.suspend "
            f"[i8 0, label %{label} i8 1, label %tj.cleanup]",
        )
        self.go_on_in(label)

    def access(
        self, line: str, kind: str, align: str, writes: bool = False
    ) -> StopSite:
        return StopSite(self.name, line, size_of(kind), int(align), writes)

    def touch(self, pointer: str, site: StopSite) -> None:
        """Ask whether memory is alive and aligned, and leave if it is not."""
        if pointer in self.local:
            return
        answer, label = self.new(), self.new()
        self.emit(
            f"%{answer} = call i1 @tj.touch(ptr {pointer}, i64 {site.size}, "
            f"i64 {site.align - 1}, i32 %tj.thread, i32 {self.number_of(site)})",
            f"br i1 %{answer}, label %{label}, label %tj.fault",
        )
        self.go_on_in(label)

    def touch_row(self, operand: str, line: str) -> None:
        """Ask for a row of a matrix, if it is this thread that gives its place."""
        matrices = re.search(r"m8n8\.x(\d)", line)
        assert matrices is not None
        needed, asks, label = self.new(), self.new(), self.new()
        self.emit(
            f"%{needed} = icmp ult i32 %tj.lane, {8 * int(matrices[1])}",
            f"br i1 %{needed}, label %{asks}, label %{label}",
            f"{asks}:",
        )
        self.touch(operand.partition(" ")[2], StopSite(self.name, line, 16, 16))
        self.emit(f"br label %{label}")
        self.go_on_in(label)


def starter(name: str) -> str:
    """What the function that makes a kernel's coroutines is called."""
    plain = name.strip('"')
    return f'"{plain}.start"'


def without_spaces(text: str) -> str:
    """LLVM text in which all memory is in one address space.

    >>> without_spaces("ptr addrspacecast (ptr addrspace(3) @s to ptr)")
    'ptr bitcast (ptr @s to ptr)'
    """
    return re.sub(r" addrspace\(\d+\)", "", text).replace("addrspacecast", "bitcast")


def split(operands: str) -> Iterator[str]:
    """The operands of a call, each with its type alone.

    >>> list(split("i32 noundef -1, <2 x half> <half 1.0, half 2.0>"))
    ['i32 -1', '<2 x half> <half 1.0, half 2.0>']
    """
    depth, start = 0, 0
    for at, sign in enumerate(f"{operands},"):
        depth += (sign in "(<[{") - (sign in ")>]}")
        if sign == "," and not depth:
            yield re.sub(r" (?:noundef|nonnull|align \d+)\b", "", operands[start:at])
            start = at + 2


SIZES: Final = {"ptr": 8, "half": 2, "bfloat": 2, "float": 4, "double": 8}


def size_of(kind: str) -> int:
    """The bytes of an LLVM type in memory.

    >>> size_of("<4 x float>"), size_of("i1"), size_of("i64")
    (16, 1, 8)
    """
    if found := re.fullmatch(r"[<\[](\d+) x (.*)[>\]]", kind):
        return int(found[1]) * size_of(found[2])
    if found := re.fullmatch(r"i(\d+)", kind):
        return -(-int(found[1]) // 8)
    if kind not in SIZES:
        raise UnsupportedError(f"an emulated GPU has no memory of type {kind}")
    return SIZES[kind]
