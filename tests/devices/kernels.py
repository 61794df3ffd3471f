"""Kernels of GPUs in LLVM text, as small as each idea allows."""

from __future__ import annotations

DECLARED = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare void @llvm.nvvm.bar.warp.sync(i32)
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)
declare float @llvm.nvvm.shfl.sync.bfly.f32(i32, float, i32, i32)
declare float @llvm.fma.f32(float, float, float)
"""
BARRIER = "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"
WARP_BARRIER = "call void @llvm.nvvm.bar.warp.sync(i32 -1)"
THREAD = "%thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()"
BLOCK = "%block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()"


def kernel(name: str, parameters: str, body: str, *, threads: int = 1024) -> str:
    return (
        f"define ptx_kernel void @{name}({parameters}) "
        f'"nvvm.maxntid"="{threads}" {{\n{body}\n  ret void\n}}\n'
    )


# out[i] = x[i] * x[i] + y[i] for i < n
ELEMENTWISE = DECLARED + kernel(
    "elementwise",
    "ptr noalias %x, ptr noalias %y, ptr noalias %out, i64 %n",
    f"""  {THREAD}
  {BLOCK}
  %threads = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %first = mul i32 %block, %threads
  %short = add i32 %first, %thread
  %i = zext i32 %short to i64
  %is_inside = icmp slt i64 %i, %n
  br i1 %is_inside, label %inside, label %done
inside:
  %x.at = getelementptr float, ptr %x, i64 %i
  %y.at = getelementptr float, ptr %y, i64 %i
  %out.at = getelementptr float, ptr %out, i64 %i
  %a = load float, ptr %x.at
  %b = load float, ptr %y.at
  %c = call float @llvm.fma.f32(float %a, float %a, float %b)
  store float %c, ptr %out.at
  br label %done
done:""",
)

# out[block] = the sum of a block's 128 elements, halved in shared memory; unnamed
# values, and two rounds so that the second writes what the first reads.
BLOCK_SUM = (
    DECLARED
    + '@"row sums" = internal addrspace(3) global [128 x float] undef, align 16\n'
    + kernel(
        "block_sum",
        "ptr %x, ptr %out",
        f"""  {THREAD}
  {BLOCK}
  %first = mul i32 %block, 256
  br label %round
round:
  %r = phi i32 [0, %0], [%r.next, %rest]
  %total = phi float [0.0, %0], [%total.next, %rest]
  %part = mul i32 %r, 128
  %part.first = add i32 %first, %part
  %i = add i32 %part.first, %thread
  %x.at = getelementptr float, ptr %x, i32 %i
  %1 = load float, ptr %x.at
  %mine = getelementptr float, ptr addrspace(3) @"row sums", i32 %thread
  store float %1, ptr addrspace(3) %mine
  {BARRIER}
  br label %halve
halve:
  %half = phi i32 [64, %round], [%half.next, %after]
  %adds = icmp ult i32 %thread, %half
  br i1 %adds, label %add, label %after
add:
  %other = add i32 %thread, %half
  %other.at = getelementptr float, ptr addrspacecast
    (ptr addrspace(3) @"row sums" to ptr), i32 %other
  %2 = load float, ptr addrspace(3) %mine
  %3 = load float, ptr %other.at
  %4 = fadd float %2, %3
  store float %4, ptr addrspace(3) %mine
  br label %after
after:
  {BARRIER}
  %half.next = lshr i32 %half, 1
  %more = icmp ne i32 %half.next, 0
  br i1 %more, label %halve, label %rest
rest:
  %sum = load float, ptr addrspace(3) @"row sums"
  %total.next = fadd float %total, %sum
  {BARRIER}
  %r.next = add i32 %r, 1
  %again = icmp ult i32 %r.next, 2
  br i1 %again, label %round, label %done
done:
  %is_first = icmp eq i32 %thread, 0
  br i1 %is_first, label %tell, label %end
tell:
  %out.at = getelementptr float, ptr %out, i32 %block
  store float %total.next, ptr %out.at
  br label %end
end:""",
    )
)


# out[thread] = the sum of the 32 values of its warp, by exchanges of pairs.
WARP_SUM = DECLARED + kernel(
    "warp_sum",
    "ptr %x, ptr %out",
    "\n".join(
        [
            f"  {THREAD}",
            "  %x.at = getelementptr float, ptr %x, i32 %thread",
            "  %sum1 = load float, ptr %x.at",
            *(
                f"  %other{n} = call float @llvm.nvvm.shfl.sync.bfly.f32"
                f"(i32 -1, float %sum{n}, i32 {n}, i32 31)\n"
                f"  %sum{2 * n} = fadd float %sum{n}, %other{n}"
                for n in (1, 2, 4, 8, 16)
            ),
            "  %out.at = getelementptr float, ptr %out, i32 %thread",
            "  store float %sum32, ptr %out.at",
        ]
    ),
)


def shuffle(how: str, by: int, clamp: int) -> str:
    """out[thread] = what `shfl` gives of the threads' numbers."""
    name = f"llvm.nvvm.shfl.sync.{how}.i32"
    body = f"""  {THREAD}
  %r = call i32 @{name}(i32 -1, i32 %thread, i32 {by}, i32 {clamp})
  %at = getelementptr i32, ptr %out, i32 %thread
  store i32 %r, ptr %at"""
    declared = DECLARED
    if how != "bfly":
        declared += f"declare i32 @{name}(i32, i32, i32, i32)\n"
    return declared + kernel("shuffle", "ptr %out", body)


FOUR = "{ float, float, float, float }"
MMAS = {
    "bf16": ("llvm.nvvm.mma.m16n8k16.row.col.bf16", "i32"),
    "f16": ("llvm.nvvm.mma.m16n8k16.row.col.f32.f32", "<2 x half>"),
}


def mma(kind: str, k: int) -> str:
    """One warp: out[16, 8] = a[16, k] @ b[8, k].T, tiles of 16 in shared memory.

    Each thread copies 16 bytes of a and 8 of b; `ldmatrix` makes fragments of them.
    """
    name, register = MMAS[kind]
    words = [f"%a{n}" for n in range(4)] + [f"%b{n}" for n in range(2)]
    casts = "\n".join(f"  {x}.v = bitcast i32 {x} to {register}" for x in words)
    sums = ", ".join(f"float %c{n}" for n in range(4))
    given = ", ".join(f"{register} {x}.v" for x in words) + f", {sums}"
    lines = f"""  {THREAD}
  %g = lshr i32 %thread, 2
  %t = and i32 %thread, 3
  %a.row = lshr i32 %thread, 1
  %a.side = and i32 %thread, 1
  %a.column = shl i32 %a.side, 3
  %b.column = shl i32 %t, 2
  %a.into = shl i32 %thread, 3
  %b.into = shl i32 %thread, 2
  %a.to = getelementptr i16, ptr addrspace(3) @a_tile, i32 %a.into
  %b.to = getelementptr i16, ptr addrspace(3) @b_tile, i32 %b.into
  %low = and i32 %thread, 7
  %lane8 = lshr i32 %thread, 3
  %odd = and i32 %lane8, 1
  %odd8 = shl i32 %odd, 3
  %half = lshr i32 %thread, 4
  %half8 = shl i32 %half, 3
  %m.row = add i32 %low, %odd8
  %m.first = shl i32 %m.row, 4
  %m.place = add i32 %m.first, %half8
  %a.from = getelementptr i16, ptr addrspace(3) @a_tile, i32 %m.place
  %n.first = shl i32 %low, 4
  %n.place = add i32 %n.first, %odd8
  %b.from = getelementptr i16, ptr addrspace(3) @b_tile, i32 %n.place
  br label %loop
loop:
  %k0 = phi i32 [0, %0], [%k.next, %loop]
"""
    for n in range(4):
        lines += f"  %c{n} = phi float [0.0, %0], [%d{n}, %loop]\n"
    for x, row, kind_of in (("a", "%a.row", "<8 x i16>"), ("b", "%g", "<4 x i16>")):
        lines += f"""  %{x}.start = mul i32 {row}, {k}
  %{x}.k = add i32 %{x}.start, %k0
  %{x}.place = add i32 %{x}.k, %{x}.column
  %{x}.at = getelementptr i16, ptr %{x}, i32 %{x}.place
  %{x}.part = load {kind_of}, ptr %{x}.at, align 2
  store {kind_of} %{x}.part, ptr addrspace(3) %{x}.to, align 8
"""
    load = "@llvm.nvvm.ldmatrix.sync.aligned.m8n8"
    lines += f"""  {WARP_BARRIER}
  %as = call {{ i32, i32, i32, i32 }} {load}.x4.b16.p3(ptr addrspace(3) %a.from)
  %bs = call {{ i32, i32 }} {load}.x2.b16.p3(ptr addrspace(3) %b.from)
  {WARP_BARRIER}
"""
    for n in range(4):
        lines += f"  %a{n} = extractvalue {{ i32, i32, i32, i32 }} %as, {n}\n"
    for n in range(2):
        lines += f"  %b{n} = extractvalue {{ i32, i32 }} %bs, {n}\n"
    lines += f"{casts}\n  %d = call {FOUR} @{name}({given})\n"
    for n in range(4):
        lines += f"  %d{n} = extractvalue {FOUR} %d, {n}\n"
    lines += f"""  %k.next = add i32 %k0, 16
  %more = icmp slt i32 %k.next, {k}
  br i1 %more, label %loop, label %done
done:
  %column = shl i32 %t, 1
  %first = shl i32 %g, 3
"""
    for n in range(4):
        lines += f"""  %row{n} = add i32 %first, {64 * (n // 2)}
  %place{n} = add i32 %row{n}, {n % 2}
  %all{n} = add i32 %place{n}, %column
  %out{n} = getelementptr float, ptr %out, i32 %all{n}
  store float %d{n}, ptr %out{n}
"""
    types = ", ".join([register] * 6 + ["float"] * 4)
    return f"""{DECLARED}
declare {{ i32, i32, i32, i32 }} {load}.x4.b16.p3(ptr addrspace(3))
declare {{ i32, i32 }} {load}.x2.b16.p3(ptr addrspace(3))
declare {FOUR} @{name}({types})
@a_tile = internal addrspace(3) global [256 x i16] undef, align 16
@b_tile = internal addrspace(3) global [128 x i16] undef, align 16
""" + kernel("mma", "ptr %a, ptr %b, ptr %out", lines, threads=32)


TF32 = "llvm.nvvm.mma.m16n8k8.row.col.tf32"


def mma_tf32() -> str:
    """One warp: out[16, 8] = a[16, 8] @ b[8, 8].T, fragments from global memory."""
    lines = [f"  {THREAD}", "  %g = lshr i32 %thread, 2", "  %t = and i32 %thread, 3"]
    words = []
    for n, (base, row, column) in enumerate(
        [("a", n % 2 * 8, n // 2 * 4) for n in range(4)] + [("b", 0, 0), ("b", 0, 4)]
    ):
        words.append(f"i32 %w{n}")
        lines += [
            f"  %row{n} = add i32 %g, {row}",
            f"  %first{n} = shl i32 %row{n}, 3",
            f"  %column{n} = add i32 %t, {column}",
            f"  %place{n} = add i32 %first{n}, %column{n}",
            f"  %at{n} = getelementptr i32, ptr %{base}, i32 %place{n}",
            f"  %w{n} = load i32, ptr %at{n}",
        ]
    zeros = ["float 0.0"] * 4
    lines.append(f"  %d = call {FOUR} @{TF32}({', '.join([*words, *zeros])})")
    lines += ["  %two = shl i32 %t, 1"]
    for n in range(4):
        lines += [
            f"  %d{n} = extractvalue {FOUR} %d, {n}",
            f"  %to.row{n} = add i32 %g, {8 * (n // 2)}",
            f"  %to.first{n} = shl i32 %to.row{n}, 3",
            f"  %to.column{n} = add i32 %two, {n % 2}",
            f"  %to{n} = add i32 %to.first{n}, %to.column{n}",
            f"  %to.at{n} = getelementptr float, ptr %out, i32 %to{n}",
            f"  store float %d{n}, ptr %to.at{n}",
        ]
    declared = f"declare {FOUR} @{TF32}({', '.join(['i32'] * 6 + ['float'] * 4)})\n"
    body = "\n".join(lines)
    return DECLARED + declared + kernel("mma", "ptr %a, ptr %b, ptr %out", body)


# One warp: out is the transpose of the 8 by 8 elements of x.
LDMATRIX = "@llvm.nvvm.ldmatrix.sync.aligned.m8n8.x1.trans.b16.p3"
TRANSPOSE = f"""{DECLARED}
declare i32 {LDMATRIX}(ptr addrspace(3))
@tile = internal addrspace(3) global [64 x i16] undef, align 16
""" + kernel(
    "transpose",
    "ptr %x, ptr %out",
    f"""  {THREAD}
  %x.at = getelementptr i32, ptr %x, i32 %thread
  %two = load i32, ptr %x.at
  %to = getelementptr i32, ptr addrspace(3) @tile, i32 %thread
  store i32 %two, ptr addrspace(3) %to
  {WARP_BARRIER}
  %row = shl i32 %thread, 3
  %from = getelementptr i16, ptr addrspace(3) @tile, i32 %row
  %r = call i32 {LDMATRIX}(ptr addrspace(3) %from)
  %out.at = getelementptr i32, ptr %out, i32 %thread
  store i32 %r, ptr %out.at""",
    threads=32,
)


# Each thread of all blocks adds its number to one place.
ATOMIC = DECLARED + kernel(
    "atomic",
    "ptr %out",
    f"""  {THREAD}
  %old = atomicrmw add ptr %out, i32 %thread syncscope("device") monotonic""",
)

# A thread has an array of its own, and asks a table.
OWN_MEMORY = (
    "@table = internal constant [4 x float] "
    "[float 1.0, float 2.0, float 4.0, float 8.0]\n"
    + DECLARED
    + kernel(
        "own_memory",
        "ptr %out",
        f"""  {THREAD}
  %own = alloca [4 x float], align 16
  br label %loop
loop:
  %i = phi i32 [0, %0], [%i.next, %loop]
  %table.at = getelementptr float, ptr @table, i32 %i
  %entry = load float, ptr %table.at
  %own.at = getelementptr float, ptr %own, i32 %i
  store float %entry, ptr %own.at
  %i.next = add i32 %i, 1
  %more = icmp ult i32 %i.next, 4
  br i1 %more, label %loop, label %done
done:
  {BARRIER}
  %which = and i32 %thread, 3
  %mine = getelementptr float, ptr %own, i32 %which
  %found = load float, ptr %mine
  switch i32 %which, label %tell [
    i32 0, label %nothing
    i32 -1, label %nothing
  ]
nothing:
  br label %tell
tell:
  %told = phi float [%found, %done], [-1.0, %nothing]
  %out.at = getelementptr float, ptr %out, i32 %thread
  store float %told, ptr %out.at""",
    )
)

# Threads of the first half wait for the others, which do not come.
DIVERGED = DECLARED + kernel(
    "diverged",
    "ptr %out",
    f"""  {THREAD}
  %waits = icmp ult i32 %thread, 32
  br i1 %waits, label %wait, label %done
wait:
  {BARRIER}
  br label %done
done:""",
)

ALL = {
    "elementwise": ELEMENTWISE,
    "block_sum": BLOCK_SUM,
    "warp_sum": WARP_SUM,
    "bf16": mma("bf16", 32),
    "f16": mma("f16", 32),
    "tf32": mma_tf32(),
    "transpose": TRANSPOSE,
    "atomic": ATOMIC,
    "own_memory": OWN_MEMORY,
}


def without_barrier(text: str, number: int) -> str:
    """A module in which one barrier, by its number, is left out."""
    parts = text.split(BARRIER)
    before, after = parts[: number + 1], parts[number + 1 :]
    return BARRIER.join(before) + BARRIER.join(after)
