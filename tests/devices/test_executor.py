"""The executor: kernels of GPUs give on this CPU what NumPy says, in every order."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from devices import kernels
from tapejit.base.errors import ArgumentError, UnsupportedError
from tapejit.runtime.cuda.driver import DeviceError
from tapejit.runtime.cuda.executor import ORDERS, Executor

RNG = np.random.default_rng(0)


@cache
def executor_of(text: str) -> Executor:
    return Executor(text)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# Results


@pytest.mark.parametrize("order", ORDERS)
def test_an_elementwise_kernel_stops_at_the_last_element(order: str) -> None:
    x, y, out = numbers(1000), numbers(1000), np.full(1024, 7, np.float32)
    executor = executor_of(kernels.ELEMENTWISE)
    executor.launch(
        "elementwise", 8, 128, [x, y, out, 1000], order=order, watch=True, seed=3
    )
    wanted = x.astype(np.float64) * x + y
    np.testing.assert_array_equal(out[:1000], wanted.astype(np.float32))
    assert (out[1000:] == 7).all()


@pytest.mark.parametrize("order", ORDERS)
def test_a_sum_in_shared_memory_has_the_same_bits_in_all_orders(order: str) -> None:
    x, out = numbers(4, 256), np.zeros(4, np.float32)
    block_sum = executor_of(kernels.BLOCK_SUM)
    block_sum.launch("block_sum", 4, 128, [x, out], order=order, watch=True)
    halves = x.reshape(4, 2, 128)
    for half in (64, 32, 16, 8, 4, 2, 1):
        halves = halves[..., :half] + halves[..., half:]
    np.testing.assert_array_equal(out, halves[:, 0, 0] + halves[:, 1, 0])


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_exchange_pairs(order: str) -> None:
    x, out = numbers(3, 32), np.zeros((3, 32), np.float32)
    executor = executor_of(kernels.WARP_SUM)
    executor.launch("warp_sum", 1, 96, [x, out], order=order, watch=True)
    wanted = x
    for distance in (1, 2, 4, 8, 16):
        wanted = wanted + wanted[:, np.arange(32) ^ distance]
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(
    ("how", "by", "clamp", "source"),
    [
        ("up", 3, 0, lambda t: t - 3 if t % 32 >= 3 else t),
        ("down", 5, 31, lambda t: t + 5 if t % 32 + 5 < 32 else t),
        ("bfly", 8, 31, lambda t: t ^ 8),
        ("idx", 9, 31, lambda t: t // 32 * 32 + 9),
        # In segments of 8 threads: 24 << 8 keeps the upper two bits of a number.
        ("down", 2, 24 << 8 | 31, lambda t: t + 2 if t % 8 + 2 < 8 else t),
        ("up", 2, 24 << 8, lambda t: t - 2 if t % 8 >= 2 else t),
        ("idx", 11, 24 << 8 | 31, lambda t: t // 8 * 8 + 3),
    ],
)
def test_each_kind_of_shuffle(how: str, by: int, clamp: int, source: object) -> None:
    assert callable(source)
    out = np.zeros(64, np.int32)
    executor_of(kernels.shuffle(how, by, clamp)).launch("shuffle", 1, 64, [out])
    assert out.tolist() == [source(t) for t in range(64)]


@pytest.mark.parametrize("kind", kernels.MMAS)
@pytest.mark.parametrize("order", ["up", "random"])
def test_mma_fed_by_ldmatrix_is_a_matmul(kind: str, order: str) -> None:
    dtype = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}[kind]
    a, b = numbers(16, 32).astype(dtype), numbers(8, 32).astype(dtype)
    out = np.zeros((16, 8), np.float32)
    executor = executor_of(kernels.mma(kind, 32))
    executor.launch("mma", 1, 32, [a, b, out], order=order, watch=True)
    wanted = np.zeros((16, 8), np.float32)
    for k in range(32):  # products are exact, sums are rounded one after the other
        wanted += a[:, k, None].astype(np.float32) * b[None, :, k].astype(np.float32)
    np.testing.assert_array_equal(out, wanted)


def test_mma_of_tf32_has_ten_bits_of_each_number() -> None:
    a, b, out = numbers(16, 8), numbers(8, 8), np.zeros((16, 8), np.float32)
    executor_of(kernels.mma_tf32()).launch("mma", 1, 32, [a, b, out], watch=True)
    short_a, short_b = (
        (x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b)
    )
    wanted = np.zeros((16, 8), np.float32)
    for k in range(8):
        wanted += short_a[:, k, None] * short_b[None, :, k]
    np.testing.assert_array_equal(out, wanted)
    assert np.abs(out - a @ b.T).max() > 1e-5


def test_ldmatrix_can_transpose() -> None:
    x, out = np.arange(64, dtype=np.int16).reshape(8, 8), np.zeros((8, 8), np.int16)
    executor_of(kernels.TRANSPOSE).launch("transpose", 1, 32, [x, out], watch=True)
    np.testing.assert_array_equal(out, x.T)


def test_updates_are_atomic() -> None:
    out = np.zeros(1, np.int32)
    executor_of(kernels.ATOMIC).launch("atomic", 5, 64, [out], watch=True)
    assert out[0] == 5 * 64 * 63 // 2


def test_threads_have_memory_of_their_own_and_constants() -> None:
    out = np.zeros(8, np.float32)
    executor_of(kernels.OWN_MEMORY).launch("own_memory", 1, 8, [out], watch=True)
    assert out.tolist() == [-1, 2, 4, 8] * 2


@pytest.mark.parametrize("order", ORDERS)
def test_own_memory_is_kept_while_a_thread_waits(order: str) -> None:
    text = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.bar.warp.sync(i32)
define ptx_kernel void @k(ptr %out, i32 %low) {
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %own = alloca [4 x i32], align 16
  br label %loop
loop:
  %k = phi i32 [0, %entry], [%next, %loop]
  %at = getelementptr i32, ptr %own, i32 %k
  %value = add i32 %thread, %k
  store i32 %value, ptr %at, align 4
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
  %next = add i32 %k, 1
  %more = icmp slt i32 %next, 4
  br i1 %more, label %loop, label %done
done:
  %which = and i32 %low, 3
  %from = getelementptr i32, ptr %own, i32 %which
  %found = load i32, ptr %from, align 4
  %to = getelementptr i32, ptr %out, i32 %thread
  store i32 %found, ptr %to, align 4
  ret void
}"""
    out = np.zeros(64, np.int32)
    executor_of(text).launch("k", 1, 64, [out, np.int32(3)], order=order, watch=True)
    assert out.tolist() == [thread + 3 for thread in range(64)]


def test_numbers_are_given_as_the_kernel_has_them() -> None:
    text = """
define ptx_kernel void @k(ptr %out, i32 %a, float %b, double %c, half %d) {
  %at = getelementptr double, ptr %out, i32 %a
  %b2 = fpext float %b to double
  %d2 = fpext half %d to double
  %bc = fmul double %b2, %c
  %bcd = fadd double %bc, %d2
  store double %bcd, ptr %at
  ret void
}"""
    out = np.zeros(3)
    given = [out, np.int32(1), np.float32(2), np.float64(3.5), np.float16(0.25)]
    executor = Executor(text)
    executor.launch("k", 1, 1, given)
    assert out.tolist() == [0, 7.25, 0]
    with pytest.raises(ArgumentError, match="k takes int32 there, got int64"):
        executor.launch("k", 1, 1, [out, 1, *given[2:]])
    with pytest.raises(ArgumentError, match="k takes 5 arguments, got 1"):
        executor.launch("k", 1, 1, [out])


def test_halves_are_widened_without_a_library() -> None:
    out, x = np.zeros(1), np.zeros(1, np.float16)
    executor = Executor(
        """
define ptx_kernel void @k(ptr %out, ptr %x) {
  %half = load half, ptr %x
  %wide = fpext half %half to double
  store double %wide, ptr %out
  ret void
}"""
    )
    for bits in [*range(0, 1 << 16, 97), 0x7C00, 0xFC00, 0x7E00, 1, 0x8000]:
        x.view(np.uint16)[0] = bits
        executor.launch("k", 1, 1, [out, x])
        np.testing.assert_array_equal(out, x.astype(np.float64))
        assert np.signbit(out) == np.signbit(x)


# Faults


@pytest.mark.parametrize(
    ("number", "orders"),
    [
        (0, ("up", "first ahead", "random")),  # sums begin before all is there
        (1, ("up", "first ahead", "random")),  # sums of one round are not there
    ],
)
def test_a_missing_barrier_gives_another_result_in_some_order(
    number: int, orders: tuple[str, ...]
) -> None:
    x, right = numbers(4, 256), np.zeros(4, np.float32)
    block_sum = executor_of(kernels.BLOCK_SUM)
    block_sum.launch("block_sum", 4, 128, [x, right])
    executor = executor_of(kernels.without_barrier(kernels.BLOCK_SUM, number))
    different = set()
    for order in ORDERS:
        out = np.zeros(4, np.float32)
        executor.launch("block_sum", 4, 128, [x, out], order=order)
        if not np.array_equal(out, right):
            different.add(order)
    assert different == set(orders)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier_is_a_race_in_every_order(number: int, order: str) -> None:
    x, out = numbers(4, 256), np.zeros(4, np.float32)
    executor = executor_of(kernels.without_barrier(kernels.BLOCK_SUM, number))
    with pytest.raises(DeviceError, match=r'race: .* of @"row sums", and nothing'):
        executor.launch("block_sum", 4, 128, [x, out], order=order, watch=True)


def test_shared_memory_is_poisoned_for_each_block() -> None:
    text = kernels.BLOCK_SUM.replace("store float %1, ptr addrspace(3) %mine", "")
    x, out = numbers(4, 256), np.zeros(4, np.float32)
    Executor(text).launch("block_sum", 4, 128, [x, out])
    assert np.isnan(out).all()


def test_who_waits_where_others_do_not_come_is_told() -> None:
    executor = executor_of(kernels.DIVERGED)
    with pytest.raises(DeviceError, match="wait where others do not come") as caught:
        executor.launch("diverged", 2, 64, [np.zeros(1)])
    assert "32 (the first is 32) are over" in caught.value.message
    assert "32 (the first is 0) wait at call void @llvm.nvvm" in caught.value.message
    executor.launch("diverged", 2, 32, [np.zeros(1)])  # and it runs where they do


@pytest.mark.parametrize("order", ORDERS)
def test_an_access_outside_of_memory_ends_the_launch(order: str) -> None:
    executor = executor_of(kernels.ELEMENTWISE)
    room = numbers(300)
    x, y, out = room[:100], room[100:199], room[200:]
    with pytest.raises(DeviceError) as caught:
        executor.launch("elementwise", 1, 128, [x, y, out, 100], order=order)
    message = caught.value.message
    assert message.startswith("illegal address: thread 99 of block 0 of elementwise")
    assert message.endswith("%b = load float, ptr %y.at, align 4")


def test_a_misaligned_access_ends_the_launch() -> None:
    body = """  %at = getelementptr float, ptr %x, i32 %first
  %four = load <4 x float>, ptr %at, align 16
  store <4 x float> %four, ptr %x, align 4"""
    executor = Executor(kernels.kernel("k", "ptr %x, i32 %first", body))
    room = numbers(32)
    x = room[-(room.ctypes.data // 4) % 4 :][:16]
    executor.launch("k", 1, 1, [x, np.int32(4)])
    np.testing.assert_array_equal(x[:4], x[4:8])
    executor.launch("k", 1, 1, [x[1:], np.int32(3)])  # a store may be anywhere
    with pytest.raises(
        DeviceError, match=r"misaligned address: thread 0 .* of 16: %fo"
    ):
        executor.launch("k", 1, 1, [x, np.int32(1)])


def test_an_array_of_shared_memory_ends_where_it_ends() -> None:
    one, other = '@"row sums"', "@other"
    declared = "{} = internal addrspace(3) global [{} x float] undef, align 16\n"
    text = kernels.BLOCK_SUM.replace(
        declared.format(one, 128), declared.format(one, 120) + declared.format(other, 9)
    )
    with pytest.raises(DeviceError, match="illegal address: thread 120 of block 0"):
        Executor(text).launch(
            "block_sum", 1, 128, [numbers(256), np.zeros(1, np.float32)]
        )


def test_blocks_that_write_one_place_race() -> None:
    text = kernels.DECLARED + kernels.kernel(
        "meet",
        "ptr %out",
        f"""  {kernels.BLOCK}
  %at = getelementptr i8, ptr %out, i32 %block
  store i16 3, ptr %at, align 1""",
    )
    executor = Executor(text)
    out = np.zeros(8, np.int8)
    executor.launch("meet", 1, 1, [out], watch=True)
    with pytest.raises(DeviceError, match=r"race: blocks \(0, 1\) of meet"):
        executor.launch("meet", 2, 1, [out], watch=True)


@pytest.mark.parametrize("barrier", [kernels.WARP_BARRIER, ""])
def test_a_barrier_of_a_warp_orders_its_threads_alone(barrier: str) -> None:
    text = kernels.DECLARED + kernels.kernel(
        "turn",
        "ptr %out, i32 %by",
        f"""  {kernels.THREAD}
  %mine = getelementptr i32, ptr %out, i32 %thread
  store i32 %thread, ptr %mine
  {barrier}
  %other = xor i32 %thread, %by
  %at = getelementptr i32, ptr %out, i32 %other
  %found = load i32, ptr %at""",
    )
    executor = Executor(text)
    out = np.zeros(64, np.int32)
    executor.launch("turn", 1, 64, [out, np.int32(0)], watch=True)
    for distance in (1, 32):
        arguments = [out, np.int32(distance)]
        if barrier and distance < 32:
            executor.launch("turn", 1, 64, arguments, watch=True)
            continue
        with pytest.raises(DeviceError, match="race: threads"):
            executor.launch("turn", 1, 64, arguments, watch=True)


def test_a_log_of_many_accesses_grows_and_has_the_last_ones() -> None:
    text = kernels.DECLARED + kernels.kernel(
        "write",
        "ptr %out, i32 %last",
        f"""  {kernels.THREAD}
  {kernels.BLOCK}
  %first = shl i32 %block, 10
  %i = add i32 %first, %thread
  %is_inside = icmp ult i32 %i, %last
  %where = select i1 %is_inside, i32 %i, i32 %last
  %at = getelementptr i32, ptr %out, i32 %where
  store i32 %i, ptr %at""",
    )
    out = np.zeros(1 << 16, np.int32)
    executor = Executor(text)
    executor.launch("write", 64, 1024, [out, np.int32(len(out) - 1)], watch=True)
    with pytest.raises(DeviceError, match=r"race: threads \(1022, 1023\) of block 63"):
        executor.launch("write", 64, 1024, [out, np.int32(len(out) - 2)], watch=True)


@pytest.mark.parametrize(
    "line",
    [
        "%a = call i32 @llvm.nvvm.read.ptx.sreg.tid.y()",
        "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 1)",
        "call void @llvm.memset.p0.i64(ptr %out, i8 0, i64 4, i1 false)",
        "%a = load atomic i32, ptr %out acquire, align 4",
        "%a = cmpxchg ptr %out, i32 0, i32 1 seq_cst seq_cst",
        "%a = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 7, i32 0, i32 1, i32 31)",
        "store { i32, i32 } zeroinitializer, ptr %out",
    ],
)
def test_what_the_executor_does_not_know_is_refused(line: str) -> None:
    declared = (
        f"{kernels.DECLARED}\ndeclare i32 @llvm.nvvm.read.ptx.sreg.tid.y()\n"
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
    )
    with pytest.raises(UnsupportedError, match="an emulated GPU"):
        Executor(declared + kernels.kernel("k", "ptr %out", f"  {line}"))


def test_a_function_of_the_module_may_do_what_a_kernel_may() -> None:
    helper = f"""define internal float @other(ptr %out) {{
  {kernels.THREAD}
  %mine = getelementptr float, ptr %out, i32 %thread
  %x = load float, ptr %mine
  {kernels.BARRIER}
  %far = xor i32 %thread, 32
  %at = getelementptr float, ptr %out, i32 %far
  store float %x, ptr %at
  ret float %x
}}
"""
    body = "  %x = call float @other(ptr %out)"
    executor = Executor(
        kernels.DECLARED + helper + kernels.kernel("k", "ptr %out", body)
    )
    out = np.arange(64, dtype=np.float32)
    executor.launch("k", 1, 64, [out], watch=True)
    np.testing.assert_array_equal(out, np.roll(np.arange(64), 32))
    with pytest.raises(DeviceError, match="illegal address: thread 63"):
        executor.launch("k", 1, 64, [out[:63]], order="down")


def test_wrong_launches_are_errors() -> None:
    block_sum = executor_of(kernels.BLOCK_SUM)
    given = [numbers(256), np.zeros(1, np.float32)]
    with pytest.raises(ArgumentError, match="no kernel is 'sum'") as caught:
        block_sum.launch("sum", 1, 32, given)
    assert caught.value.help == "there are block_sum"
    with pytest.raises(ArgumentError, match="1 to 1024 threads, got 2048"):
        block_sum.launch("block_sum", 1, 2048, given)
    with pytest.raises(ArgumentError, match="0 blocks"):
        block_sum.launch("block_sum", 0, 32, given)
    with pytest.raises(ArgumentError, match="no order is 'left'"):
        block_sum.launch("block_sum", 1, 32, given, order="left")
