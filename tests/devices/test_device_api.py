"""Devices as users see them: where tensors are, how they get there, what is refused."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from elsewhere import run_interpreter

import tapejit as tj
from tapejit.runtime.cuda.driver import DeviceError

GPU = "cuda:0"


@pytest.fixture(autouse=True)
def _emulated() -> Iterator[None]:
    with tj.config.override(cuda="emulated"):
        yield


def on_gpu(value: Any, dtype: Any = None) -> tj.Tensor:
    return tj.asarray(value, dtype=dtype, device=GPU)


def assert_on(x: Any, device: str, value: Any) -> None:
    assert x.device == device
    wanted = np.asarray(value)
    assert x.shape == wanted.shape
    np.testing.assert_array_equal(np.asarray(x), wanted)


# Devices


def test_devices_are_listed() -> None:
    assert tj.devices() == ("cpu", GPU)
    assert tj.__array_namespace_info__().devices() == ("cpu", GPU)


@pytest.mark.parametrize("name", ["tpu", "gpu:0", "/GPU:0", "cuda:x", "", "cuda:-1"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="there is no device") as caught:
        tj.device(name)
    if "gpu" in name.lower():
        assert 'write "cuda:0"' in str(caught.value)


def test_a_device_is_named_by_a_text() -> None:
    with pytest.raises(TypeError, match="a device is a text, got int"):
        tj.device(0)


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match="there is no cuda:7: 1 device is there"):
        tj.zeros(3, device="cuda:7")


def test_cuda_is_the_first_gpu() -> None:
    assert tj.device("cuda") == GPU
    assert tj.zeros(1, device="cuda").device == GPU


def test_what_is_missing_is_said() -> None:
    code = (
        "import tapejit as tj\n"
        "try:\n    tj.zeros(3, device='cuda:0')\n"
        "except RuntimeError as error:\n    print(error)"
    )
    out = run_interpreter("-c", code)
    assert "not installed" in out.stdout or "no GPU" in out.stdout
    assert "help" in out.stdout


# Where new tensors go

MAKERS: dict[str, Callable[..., tj.Tensor]] = {
    "asarray": lambda **on: tj.asarray([1.0, 2.0], **on),
    "zeros": lambda **on: tj.zeros((2, 3), **on),
    "ones": lambda **on: tj.ones(2, dtype="int8", **on),
    "full": lambda **on: tj.full((2,), 7, **on),
    "arange": lambda **on: tj.arange(5, **on),
    "linspace": lambda **on: tj.linspace(0, 1, 5, **on),
    "eye": lambda **on: tj.eye(3, **on),
    "empty": lambda **on: tj.empty(3, **on),
    "zeros_like": lambda **on: tj.zeros_like(np.ones(3), **on),
    "fftfreq": lambda **on: tj.fft.fftfreq(4, **on),
    "a number": lambda **on: tj.asarray(3, **on),
    "no elements": lambda **on: tj.zeros((0, 3), **on),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_creation_functions_take_a_device(make: Callable[..., tj.Tensor]) -> None:
    wanted = make()
    assert wanted.device == "cpu"
    assert_on(make(device=GPU), GPU, wanted)
    with tj.device(GPU):
        assert_on(make(), GPU, wanted)
        assert_on(make(device="cpu"), "cpu", wanted)
    assert make().device == "cpu"


def test_blocks_are_nested_and_left_by_exceptions() -> None:
    with tj.device(GPU):
        with tj.device("cpu"):
            assert tj.zeros(1).device == "cpu"
        assert tj.zeros(1).device == GPU
        with pytest.raises(KeyError), tj.device("cpu"):
            raise KeyError
        assert tj.zeros(1).device == GPU
        assert tj.__array_namespace_info__().default_device() == GPU
    assert tj.zeros(1).device == "cpu"


def test_a_block_is_for_its_thread_and_the_tasks_started_in_it() -> None:
    found = []

    def look() -> None:
        found.append(tj.zeros(1).device)

    async def task() -> None:
        look()

    async def tasks() -> None:
        with tj.device(GPU):
            inside = asyncio.create_task(task())
        await inside
        look()

    with tj.device(GPU):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        contextvars.copy_context().run(look)
    asyncio.run(tasks())
    assert found == ["cpu", GPU, GPU, "cpu"]


def test_what_is_like_a_tensor_is_where_that_is() -> None:
    x = on_gpu([1.0, 2.0])
    assert_on(tj.ones_like(x), GPU, [1, 1])
    assert_on(tj.zeros_like(x, device="cpu"), "cpu", [0, 0])
    with tj.device(GPU):
        assert tj.zeros_like(x.to("cpu")).device == "cpu"


def test_an_array_may_change_once_a_tensor_is_made_of_it() -> None:
    given = np.ones(3)
    x = tj.asarray(given, device=GPU)
    given[:] = 2
    assert_on(x, GPU, [1, 1, 1])


DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
    *("uint64", "float16", "float32", "float64", "complex64", "complex128"),
    "bfloat16",
]
SHAPES = [(), (3,), (0,), (2, 0), (2, 3), (1, 1, 2)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_go_there_and_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    given = (rng.standard_normal(shape) * 3).astype(kind)
    x = tj.asarray(given).to(GPU)
    assert_on(x, GPU, given)
    assert (x.dtype, x.ndim, x.size, x.nbytes) == (
        *(given.dtype, given.ndim, given.size, given.nbytes),
    )
    assert_on(x.to("cpu"), "cpu", given)
    assert x.to(GPU) is x


def test_special_values_keep_their_bits() -> None:
    given = np.array([np.nan, -0.0, np.inf, -np.inf, 1e-45], np.float32)
    found = tj.asarray(given).to(GPU).numpy()
    np.testing.assert_array_equal(found.view(np.uint32), given.view(np.uint32))


# Tensors as Python objects


def test_a_tensor_shows_its_values_and_its_device() -> None:
    x = on_gpu([1.0, 2.0])
    assert repr(x) == "<tj.Tensor f32[2] on cuda:0 [1. 2.]>"
    assert str(x) == "[1. 2.]"
    assert f"{x[0]:.2f}" == "1.00"
    assert "on cuda:0" in x._repr_html_()
    with tj.device(GPU):
        v = tj.Variable(2.0, name="v")
    assert repr(v) == "<tj.Variable 'v' f32[] on cuda:0 2.0>"


def test_what_python_asks_for_is_fetched() -> None:
    x = on_gpu([[1, 2], [3, 4]])
    assert (int(x[0, 1]), float(x[1, 1]), bool(x[0, 0] == 1)) == (2, 4.0, True)
    assert (x.tolist(), x.sum().item(), len(x)) == ([[1, 2], [3, 4]], 10, 2)
    assert [row.tolist() for row in x] == x.tolist()
    assert "abc"[x[0, 0]] == "b"
    assert 3 in x
    array = np.asarray(x)
    assert not array.flags.writeable
    copied = x.numpy()
    copied[:] = 0
    assert x[0, 0] == 1


def test_copies_and_pickles_stay_on_the_device() -> None:
    x = on_gpu([1.0, 2.0])
    for again in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert_on(again, GPU, [1, 2])
    with tj.device(GPU):
        v = tj.Variable([1.0], name="v", trainable=False)
    for other in (copy.deepcopy(v), pickle.loads(pickle.dumps(v))):
        assert_on(other, GPU, [1])
        assert (other.name, other.trainable) == ("v", False)
        other.assign([5.0])
    assert_on(v, GPU, [1])


def test_checkpoints_load_on_any_device(tmp_path: Any) -> None:
    with tj.device(GPU):
        there = {"v": tj.Variable([1.0, 2.0]), "x": tj.ones(2)}
    here = {"v": tj.Variable([0.0, 0.0]), "x": tj.zeros(2)}
    tj.save(tmp_path / "there", there)
    tj.load(tmp_path / "there", into=here)
    assert_on(here["v"], "cpu", [1, 2])
    here["v"].assign([3.0, 4.0])
    tj.save(tmp_path / "here", here)
    loaded = tj.load(tmp_path / "here", into=there)
    assert_on(there["v"], GPU, [3, 4])
    assert_on(loaded["x"], GPU, [0, 0])


def test_numpys_functions_run_on_the_device() -> None:
    x = on_gpu([1.0, 2.0])
    assert np.sin(x).device == GPU
    assert (2.0 * x + np.float64(1)).device == GPU
    assert np.concatenate([x, x]).device == GPU


def test_the_array_apis_names() -> None:
    x = on_gpu([1.0])
    assert x.to_device("cpu").device == "cpu"
    assert tj.astype(x, tj.float64, device="cpu").device == "cpu"
    assert x.__dlpack_device__() == (1, 0)  # the memory of the CPU


# Operations

NUMBERS: list[Any] = [2, 2.5, True, np.float64(2), np.int64(3), np.float32(2)]


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_numbers_go_along(number: Any) -> None:
    host = np.array([1.0, 4.0], np.float32)
    x, y = on_gpu(host), tj.asarray(host)
    for found, wanted in (
        (x * number, y * number),
        (number - x, number - y),
        (tj.maximum(x, number), tj.maximum(y, number)),
        (tj.where(x > number, x, number), tj.where(y > number, y, number)),
    ):
        assert_on(found, GPU, wanted)
        assert found.dtype == wanted.dtype


def test_lists_go_along() -> None:
    x = on_gpu([[1.0, 2.0], [3.0, 4.0]])
    assert_on(tj.add(x, [10.0, 20.0]), GPU, [[11, 22], [13, 24]])
    assert_on(x[[1, 0]], GPU, [[3, 4], [1, 2]])
    assert_on(tj.take(x, [1], axis=1), GPU, [[2], [4]])


ROWS, KEPT = np.array([2, 0]), np.array([True, False, True])
LARGE = np.tile(ROWS, 5000)  # no constant of a Graph
INDEXED: dict[str, Callable[[tj.Tensor], Any]] = {
    "rows": lambda x: x[ROWS],
    "a list and an array": lambda x: x[[0, 1], ROWS],
    "a mask": lambda x: x[KEPT],
    "a mask of all axes": lambda x: x[np.eye(3) > 0],
    "a list of bools": lambda x: x[[True, False, True]],
    "many": lambda x: x[LARGE],
    "many bools": lambda x: tj.tile(x[0], 4500)[np.tile(KEPT, 4500)],
    "take": lambda x: tj.take(x, ROWS, axis=1),
    "along": lambda x: tj.take_along_axis(x, ROWS[:, None], axis=0),
    "changed": lambda x: x.at[ROWS, 1].set(7.0),
    "added": lambda x: x.at[ROWS].add(x[1]),
    "scattered": lambda x: tj.scatter_add(x, ROWS, tj.ones_like(x[:2])),
}


@pytest.mark.parametrize("index", INDEXED.values(), ids=INDEXED)
def test_indices_go_along(index: Callable[[tj.Tensor], Any]) -> None:
    host = np.arange(9, dtype=np.float32).reshape(3, 3)
    wanted = index(tj.asarray(host))
    for run in (index, tj.function(index)):
        assert_on(run(on_gpu(host)), GPU, wanted)


def test_parts_of_a_variable_are_named_by_arrays() -> None:
    with tj.device(GPU):
        v = tj.Variable([1.0, 2.0, 3.0])
    v[ROWS].assign(on_gpu([5.0, 6.0]))
    with tj.GradientTape() as tape:
        y = tj.sum(v[KEPT] ** 2)
    assert_on(v, GPU, [6, 2, 5])
    assert_on(tape.gradient(y, v), GPU, [12, 0, 10])


MIXED: dict[str, Callable[[tj.Tensor], Any]] = {
    "a tensor": lambda x: x + tj.ones(2),
    "a tensor on the left": lambda x: tj.ones(2) * x,
    "an array": lambda x: x - np.ones(2, np.float32),
    "an array on the left": lambda x: np.ones(2, np.float32) / x,
    "a variable": lambda x: x + tj.Variable([1.0, 2.0]),
    "one number in a tensor": lambda x: x * tj.asarray(2.0),
    "a result": lambda x: x * (tj.ones(2) + tj.ones(2)),
    "an index": lambda x: tj.take(x, tj.asarray([0, 1])),
    "pieces": lambda x: tj.concat([x, tj.ones(2)]),
    "another dtype": lambda x: x + tj.ones(2, dtype="float64"),
    "a condition": lambda x: tj.where(tj.asarray([True, False]), x, x),
}


@pytest.mark.parametrize("mix", MIXED.values(), ids=MIXED)
def test_devices_do_not_mix(mix: Callable[[tj.Tensor], Any]) -> None:
    with pytest.raises(ValueError, match="on two devices, cuda:0 and cpu") as caught:
        mix(on_gpu([1.0, 2.0]))
    text = str(caught.value)
    for part in ("[2] on cuda:0", " on cpu", '.to("cuda:0")', "test_device_api.py:"):
        assert part in text


def test_an_index_out_of_range_is_an_error_of_its_line() -> None:
    x = on_gpu([1.0, 2.0])
    with pytest.raises(IndexError, match="index 5 is out of range") as caught:
        tj.take(x, on_gpu([0, 5]))
    assert "tj.take(x, on_gpu([0, 5]))" in str(caught.value)
    assert_on(x + 1, GPU, [2, 3])


def test_shapes_that_do_not_fit_are_told_as_on_the_cpu() -> None:
    with pytest.raises(tj.ShapeError) as here:
        tj.ones((2, 3)) + tj.ones(2)
    with pytest.raises(tj.ShapeError) as there:
        tj.ones((2, 3), device=GPU) + tj.ones(2, device=GPU)
    assert here.value.message == there.value.message


def test_what_has_no_kernel_is_an_error_or_done_by_the_host() -> None:
    x = on_gpu([[2.0, 0.0], [0.0, 4.0]])
    with pytest.raises(tj.UnsupportedError, match="a GPU cannot do this") as caught:
        tj.linalg.eigh(x)
    assert "tj.linalg.eigh(x)" in str(caught.value)
    assert "soft_placement=True" in str(caught.value)
    with tj.config.override(soft_placement=True):
        assert_on(tj.linalg.eigh(x)[0], GPU, [2, 4])


def test_arrays_without_elements() -> None:
    x = tj.zeros((0, 3), device=GPU)
    assert_on(x * 2 + 1, GPU, np.zeros((0, 3)))
    assert_on(tj.sum(x, axis=0), GPU, [0, 0, 0])
    assert_on(tj.concat([x, tj.ones((1, 3), device=GPU)]), GPU, [[1, 1, 1]])


def test_numerics_are_checked_there_too() -> None:
    x = on_gpu([1.0, 0.0])
    with (
        tj.config.override(check_numerics=True),
        pytest.raises(tj.NonFiniteError, match="the result is -inf"),
    ):
        tj.log(x)


def test_no_memory_is_a_memory_error_that_tells_the_pool() -> None:
    limit = tj.memory_info(GPU).limit
    x = tj.broadcast_to(on_gpu(1.0), (1 << 10,))
    with pytest.raises(MemoryError, match=r"cuda:0 may use .* MB") as caught:
        tj.broadcast_to(x, (limit >> 11, 1 << 10))
    assert "where  test_device_api.py" in str(caught.value)


def test_memory_is_told_and_goes_back() -> None:
    before = tj.memory_info(GPU)
    x = tj.zeros(1000, device=GPU)
    during = tj.memory_info(GPU)
    assert during.used - before.used == 4000
    assert during.peak >= during.used
    assert 0 < during.used < during.limit <= during.total
    del x
    assert tj.memory_info(GPU).used == before.used
    with pytest.raises(ValueError, match="the memory of the CPU"):
        tj.memory_info("cpu")


# Derivatives


def losses(x: Any) -> Any:
    return tj.sum(tj.tanh(x) * x + 3 * x)


def both(function: Callable[[tj.Tensor], Any]) -> tuple[Any, Any]:
    host = np.linspace(-1, 2, 6, dtype=np.float32).reshape(2, 3)
    return function(on_gpu(host)), function(tj.asarray(host))


def gradient(x: tj.Tensor) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = losses(x)
    return tape.gradient(y, x)


def second(x: tj.Tensor) -> Any:
    with tj.GradientTape() as outer:
        outer.watch(x)
        y = tj.sum(gradient(x) ** 2)
    return outer.gradient(y, x)


def jacobian(x: tj.Tensor) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = x * x + 1
    return tape.jacobian(y, x)


def of_rows(x: tj.Tensor) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.exp(x) * x
    return tape.batch_jacobian(y, x)


def of_a_linear_function(x: tj.Tensor) -> Any:
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = 2 * x
    return tape.gradient(y, x), tape.jacobian(y, x)


def unconnected(x: tj.Tensor) -> Any:
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.ones(3)
    return tape.gradient(y, x, unconnected_gradients="zero")


def forward(x: tj.Tensor) -> Any:
    with tj.ForwardAccumulator(x, tj.ones_like(x)) as accumulator:
        y = losses(x)
    return accumulator.jvp(y)


def own_rule(x: tj.Tensor) -> Any:
    @tj.custom_gradient
    def clipped(x: tj.Tensor) -> Any:
        return tj.exp(x), lambda g: g * tj.where(x > 0, 1.0, 0.5)

    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.sum(clipped(x))
    return tape.gradient(y, x)


DERIVATIVES: dict[str, Callable[[tj.Tensor], Any]] = {
    "gradient": gradient,
    "second": second,
    "jacobian": jacobian,
    "of rows": of_rows,
    "of a linear function": of_a_linear_function,
    "unconnected": unconnected,
    "forward": forward,
    "own rule": own_rule,
    "jvp": lambda x: tj.jvp(losses, (x,), (tj.ones_like(x),)),
    "vjp": lambda x: tj.vjp(tj.exp, x)[1](tj.ones_like(x)),
    "hvp": lambda x: tj.hvp(losses, (x,), (tj.ones_like(x),)),
    "vmap": lambda x: tj.vmap(losses)(x),
    "grad of vmap": lambda x: tj.grad(lambda y: tj.sum(tj.vmap(losses)(y)))(x),
    "vmap of grad": lambda x: tj.vmap(tj.grad(losses))(x),
    "hessian": lambda x: tj.hessian(losses)(x),
}


@pytest.mark.parametrize("function", DERIVATIVES.values(), ids=DERIVATIVES)
def test_derivatives_are_those_of_the_cpu(function: Callable[..., Any]) -> None:
    found, wanted = map(tj.tree.leaves, both(function))
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        assert x.device == GPU
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-5, atol=1e-6)


def test_a_gradient_goes_back_to_where_its_source_is() -> None:
    x = tj.asarray([1.0, 2.0, 3.0])
    with tj.GradientTape(persistent=True) as tape:
        tape.watch(x)
        there = (x * x).to(GPU)
        tape.watch(there)
        back = tj.sum(there * there * 0.5).to("cpu") * 2
    found = tape.gradient(back, {"x": x, "there": there})
    assert_on(found["x"], "cpu", 4 * np.array([1.0, 8, 27]))
    assert_on(found["there"], GPU, [2, 8, 18])
    del tape
    tangent = tj.jvp(lambda x: (x * x).to(GPU), (x,), (tj.ones(3),))[1]
    assert_on(tangent, GPU, [2, 4, 6])


def test_second_derivatives_pass_through_a_move() -> None:
    x = tj.asarray([1.0, 2.0])
    with tj.GradientTape() as outer:
        outer.watch(x)
        with tj.GradientTape() as inner:
            inner.watch(x)
            y = tj.sum(x.to(GPU) ** 3)
        first = inner.gradient(y, x)
    assert_on(outer.gradient(first, x), "cpu", [6, 12])


# Variables


def test_variables_are_where_they_are_made() -> None:
    with tj.device(GPU):
        v, w = tj.Variable([1.0, 2.0]), tj.Variable(np.ones(2, np.float32))
    u = tj.Variable(on_gpu([3.0, 4.0]))
    assert v.device == w.device == u.device == GPU
    assert tj.Variable([1.0]).device == "cpu"
    assert_on(v.assign([5.0, 6.0]), GPU, [5, 6])
    assert_on(v.assign_add(np.ones(2, np.float32)), GPU, [6, 7])
    assert_on(v.assign_sub(u), GPU, [3, 3])
    assert_on(v.assign(7 * w), GPU, [7, 7])
    with pytest.raises(ValueError, match="is on cuda:0, the value on cpu"):
        v.assign(tj.ones(2))


def test_a_value_that_was_read_stays() -> None:
    with tj.device(GPU):
        v = tj.Variable([1.0, 2.0])
    before = v.value()
    v.assign_add([1.0, 1.0])
    assert_on(before, GPU, [1, 2])


def test_gradients_of_variables_lie_with_them() -> None:
    with tj.device(GPU):
        w, b = tj.Variable([1.0, 2.0]), tj.Variable(3.0)
    x = on_gpu([0.5, 4.0])
    with tj.GradientTape() as tape:
        y = tj.sum((w * x + b) ** 2)
    found = tape.gradient(y, [w, b])
    assert [g.device for g in found] == [GPU, GPU]
    np.testing.assert_allclose(found[0], [3.5, 88])
    with tj.GradientTape() as tape:
        y = tj.sum(w)
    assert_on(tape.gradient(y, w), GPU, [1, 1])


def test_parts_of_variables_are_assigned() -> None:
    with tj.config.override(soft_placement=True), tj.device(GPU):
        v = tj.Variable([1.0, 2.0, 3.0])
        v[1:].assign([7.0, 8.0])
        v[0].assign_add(1.0)
        v.scatter_add([0, 0], [1.0, 1.0])
    assert_on(v, GPU, [4, 7, 8])


# Random numbers


def test_draws_are_those_of_the_cpu() -> None:
    wanted = tj.random.Generator(7).normal((3,))
    with tj.device(GPU):
        assert_on(tj.random.Generator(7).normal((3,)), GPU, wanted)
    mean = on_gpu([0.0, 0.0, 0.0])
    with tj.config.override(soft_placement=True):
        assert_on(tj.random.Generator(7).normal((3,), mean=mean), GPU, wanted)


# Arrays of other libraries


def test_dlpack_shares_the_memory_of_the_emulated_device() -> None:
    x = on_gpu([[1.0, 2.0], [3.0, 4.0]]) * 2
    array = np.from_dlpack(x)
    np.testing.assert_array_equal(array, [[2, 4], [6, 8]])
    assert not array.flags.writeable
    again = np.from_dlpack(x)
    assert array.ctypes.data == again.ctypes.data
    del x, again
    np.testing.assert_array_equal(array, [[2, 4], [6, 8]])


def test_a_capsule_that_nobody_takes_lets_go() -> None:
    from tapejit.tensor import exchange

    x = on_gpu([1.0])
    known = len(exchange._lent)
    capsule = x.__dlpack__(max_version=(1, 0))
    assert len(exchange._lent) == known + 1
    del capsule
    assert len(exchange._lent) == known
    array = np.from_dlpack(x)
    assert len(exchange._lent) == known + 1
    del array
    assert len(exchange._lent) == known


def test_our_own_tensors_are_taken_as_they_are() -> None:
    x = on_gpu([1.0])
    assert tj.from_dlpack(x) is x
    assert tj.from_dlpack(x, device="cpu").device == "cpu"
    assert_on(tj.from_dlpack(np.ones(2), device=GPU), GPU, [1, 1])
