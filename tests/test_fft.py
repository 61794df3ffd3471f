"""`tj.fft` against NumPy's: values, lengths, norms, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.rewrite.pipeline import optimise

ONE_AXIS = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
SEVERAL = ["fftn", "ifftn", "rfftn", "irfftn"]
REAL_INPUT = {"rfft", "ihfft", "rfftn"}


def sample(name: str, shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(len(name) + sum(shape))
    x = rng.standard_normal(shape)
    if name not in REAL_INPUT:
        x = x + 1j * rng.standard_normal(shape)
        dtype = "complex128" if dtype == "float64" else "complex64"
    return x.astype(dtype)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 3, 5, 8])
@pytest.mark.parametrize("name", ONE_AXIS)
def test_one_axis_is_numpys(name: str, n: int | None, norm: Any) -> None:
    x = sample(name, (2, 5, 3))
    expected = getattr(np.fft, name)(x, n=n, axis=1, norm=norm)
    found = getattr(tj.fft, name)(tj.asarray(x), n=n, axis=1, norm=norm)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("axes", [None, (0, 1), (2, 0)])
@pytest.mark.parametrize("name", SEVERAL)
def test_several_axes_are_numpys(name: str, axes: Any) -> None:
    x = sample(name, (3, 4, 5))
    expected = getattr(np.fft, name)(x, axes=axes)
    found = getattr(tj.fft, name)(tj.asarray(x), axes=axes)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", SEVERAL)
def test_lengths_are_numpys(name: str) -> None:
    x = sample(name, (3, 4))
    expected = getattr(np.fft, name)(x, s=(4, 6), axes=(0, 1))
    found = getattr(tj.fft, name)(tj.asarray(x), s=(4, 6), axes=(0, 1))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", [*ONE_AXIS, *SEVERAL])
def test_gradients_to_second_order(name: str) -> None:
    x = sample(name, (4, 3))

    def energy(x: tj.Tensor) -> tj.Tensor:
        out = getattr(tj.fft, name)(x)
        return tj.sum(tj.abs(out) ** 3)

    tj.testing.check_grads(energy, [x])


@pytest.mark.parametrize("name", [*ONE_AXIS, *SEVERAL])
def test_float32_stays_single(name: str) -> None:
    x = sample(name, (4, 6), "float32")
    found = getattr(tj.fft, name)(tj.asarray(x))
    assert found.dtype.itemsize == (4 if found.dtype.kind == "f" else 8)
    np.testing.assert_allclose(
        found.numpy(), getattr(np.fft, name)(x), rtol=0, atol=1e-4
    )


def test_mapping_is_a_loop() -> None:
    x = tj.asarray(sample("fft", (3, 4)))
    rows = tj.stack([tj.fft.fft(row) for row in x])
    np.testing.assert_array_equal(tj.vmap(tj.fft.fft)(x).numpy(), rows.numpy())


@pytest.mark.parametrize("size", [4, 5])
def test_shifts_and_frequencies_are_numpys(size: int) -> None:
    x = np.arange(size * 3).reshape(size, 3)
    for name in ("fftshift", "ifftshift"):
        for axes in (None, 0, (1,)):
            found = getattr(tj.fft, name)(tj.asarray(x), axes=axes)
            expected = getattr(np.fft, name)(x, axes=axes)
            np.testing.assert_array_equal(found.numpy(), expected)
    for name in ("fftfreq", "rfftfreq"):
        found = getattr(tj.fft, name)(size, d=0.5)
        expected = getattr(np.fft, name)(size, 0.5).astype(np.float32)
        np.testing.assert_array_equal(found.numpy(), expected)


def test_numpys_functions_are_recorded() -> None:
    x = tj.asarray([1.0, 2.0, 3.0])
    with tj.GradientTape() as tape:
        tape.watch(x)
        y = tj.sum(tj.abs(np.fft.fft(x)) ** 2)
    np.testing.assert_allclose(
        tape.gradient(y, x).numpy(), [6.0, 12.0, 18.0], rtol=1e-6
    )


def test_bad_arguments_say_so() -> None:
    x = tj.ones(4)
    with pytest.raises(ValueError, match="norm is one of"):
        tj.fft.fft(x, norm="unit")
    with pytest.raises(ValueError, match="at least 1 point"):
        tj.fft.fft(x, n=0)
    with pytest.raises(TypeError, match="real tensors"):
        tj.fft.rfft(tj.asarray([1j]))
    with pytest.raises(tj.AxisError):
        tj.fft.fft(x, axis=1)
    with pytest.raises(ValueError, match="2 lengths for 1 axes"):
        tj.fft.fftn(x, s=(2, 2), axes=(0,))


# Large arrays: SciPy's transforms, and lines shared by threads


@pytest.mark.parametrize("length", [300, 301])
@pytest.mark.parametrize("name", ["rfft", "irfft", "hfft", "ihfft"])
def test_large_real_transforms_are_numpys(name: str, length: int) -> None:
    x = sample(name, (3, 200, 300))
    expected = getattr(np.fft, name)(x, n=length, axis=1)
    found = getattr(tj.fft, name)(tj.asarray(x), n=length, axis=1)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-14 * scale)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_complex_transforms_have_numpys_bits_with_any_threads(
    axis: int, dtype: str
) -> None:
    x = sample("fft", (30, 70, 90)).astype(dtype)
    expected = np.fft.fft(x, axis=axis), np.fft.ifft(x, axis=axis, norm="forward")
    for threads in (1, 3):
        with tj.set_num_threads(threads):
            found = tj.fft.fft(x, axis=axis), tj.fft.ifft(x, axis=axis, norm="forward")
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("length", [None, 9])
def test_gradients_of_real_transforms_are_real_transforms(length: int | None) -> None:
    def filtered(x: tj.Tensor) -> tj.Tensor:
        return tj.sum(tj.fft.irfft(tj.fft.rfft(x) * 2, n=length) ** 3)

    both = tj.function(tj.value_and_grad(filtered))
    both(tj.asarray(sample("rfft", (4, 10))))
    graph = optimise(both.graph(tj.asarray(sample("rfft", (4, 10)))))
    names = {node.op.name for node in graph.nodes}
    assert {"real_fourier", "inverse_real_fourier"} < names
    assert not {"fourier", "concat", "flip"} & names
