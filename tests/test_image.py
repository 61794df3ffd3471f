"""Images of other sizes: values by hand, derivatives, dtypes, modes, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from open_sizes import assert_same

import tapejit as tj

RNG = np.random.default_rng(41)
resize = tj.image.resize


def line(values: Any) -> Any:
    """A row of pixels."""
    return np.asarray(values, np.float64).reshape(1, -1, 1)


def test_numbers_by_hand() -> None:
    """What TensorFlow 2.21 gives for the same, half pixels and no smoothing."""
    found = resize(line([1, 3, 7]), (1, 6))[0, :, 0]
    assert found.tolist() == [1, 1.5, 2.5, 4, 6, 7]
    assert resize(line([1, 3, 7, 5]), (1, 2))[0, :, 0].tolist() == [2, 6]
    assert resize(line([1, 3, 7]), (1, 1))[0, :, 0].tolist() == [3]
    assert resize(line([1, 3, 7]), (1, 4), "nearest")[0, :, 0].tolist() == [1, 3, 3, 7]
    assert resize(line([1, 3, 7, 5]), (1, 2), "nearest")[0, :, 0].tolist() == [3, 5]
    assert resize(line([2]), (3, 2))[:, :, 0].tolist() == [[2, 2]] * 3
    square = np.array([[0.0, 4.0], [8.0, 20.0]])[..., None]
    assert resize(square, (3, 3))[:, :, 0].tolist() == [
        [0, 2, 4],
        [4, 8, 12],
        [8, 14, 20],
    ]


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(10, 4), (3, 7), (5, 6), (1, 1), (20, 120)])
def test_batches_are_images(size: Any, method: str) -> None:
    x = RNG.normal(size=(3, 5, 6, 2))
    found = resize(x, size, method)
    assert found.shape == (3, *size, 2)
    for image, one in zip(x, found, strict=True):
        np.testing.assert_array_equal(resize(image, size, method), one)
    turned = resize(np.swapaxes(x, 1, 2), size[::-1], method)
    np.testing.assert_allclose(np.swapaxes(turned, 1, 2), found, rtol=1e-12, atol=1e-14)
    mapped = tj.vmap(lambda image: resize(image, size, method))(x)
    np.testing.assert_array_equal(mapped, found)


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(6, 4), (2, 5), (60, 1)])
def test_derivatives(size: Any, method: str) -> None:
    x = RNG.normal(size=(3, 4, 2))
    tj.testing.check_grads(lambda x: resize(x, size, method), (x,), order=2)
    # A constant image stays one, so all shares of a new pixel add up to 1.
    slope = tj.grad(lambda x: tj.sum(resize(x, size, method)))(x)
    np.testing.assert_allclose(np.sum(slope), 2 * np.prod(size), rtol=1e-12)


def test_what_is_far_away_may_be_infinite() -> None:
    x = line([1, 2, np.inf, np.nan, 5, 6])
    found = resize(x, (1, 12))[0, :, 0].numpy()
    assert np.isfinite(found).tolist() == [True] * 3 + [False] * 6 + [True] * 3
    kept = resize(x, (1, 18))[0, 1::3, 0]  # the middles of the old ones
    np.testing.assert_array_equal(kept, x[0, :, 0])
    minus = np.full((1, 2, 1), complex(-0.0, -0.0))
    zeros = resize(minus, (1, 6)).numpy()[0, :2, 0]
    assert np.signbit([zeros.real, zeros.imag]).all()
    g = np.where(np.arange(12) == 0, np.nan, 1.0)
    slope = tj.grad(lambda x: tj.sum(resize(x, (1, 12)) * g.reshape(1, 12, 1)))(x)
    assert np.isfinite(slope).ravel().tolist() == [False] + [True] * 5


def test_dtypes() -> None:
    x = np.arange(12).reshape(2, 3, 2)
    assert resize(x.astype("uint8"), (4, 4), "nearest").dtype == tj.uint8
    assert resize(x.astype(bool), (4, 4), "nearest").dtype == tj.bool
    assert resize(x.astype("uint8"), (4, 4)).dtype == tj.float32
    assert resize(tj.asarray(x).astype("bfloat16"), (4, 4)).dtype == tj.bfloat16
    half = resize(tj.asarray(x).astype("float16"), (5, 4))
    exact = resize(tj.asarray(x).astype("float32"), (5, 4))
    np.testing.assert_array_equal(half, exact.astype("float16"))
    np.testing.assert_array_equal(resize(x * 1j, (3, 3)), resize(x * 1.0, (3, 3)) * 1j)


def test_the_ratio_of_the_sides_is_kept() -> None:
    x = tj.ones((2, 10, 20, 1))
    assert resize(x, (5, 5), preserve_aspect_ratio=True).shape == (2, 3, 5, 1)
    assert resize(x, (40, 30), preserve_aspect_ratio=True).shape == (2, 15, 30, 1)
    assert resize(x, (1, 1), "nearest", True).shape == (2, 1, 1, 1)


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_open_sizes_are_one_trace(method: str) -> None:
    def body(x: Any) -> Any:
        twice = (2 * x.shape[1], 7)
        loss = lambda x: tj.sum(tj.square(resize(x, twice, method)))
        return resize(x, twice, method), tj.grad(loss)(x)

    function = tj.function(input_signature=[tj.TensorSpec([None, None, None, 2])])(body)
    for shape in ((2, 3, 4, 2), (3, 5, 6, 2), (4, 2, 9, 2)):
        x = tj.asarray(RNG.normal(size=shape).astype(np.float32))
        assert_same(function(x), body(x))
    assert function.trace_count == 1


def test_errors_say_what_to_write() -> None:
    x = tj.ones((4, 4, 1))
    with pytest.raises(tj.ShapeError, match=r"got f32\[4,4\]"):
        resize(x[:, :, 0], (2, 2))
    with pytest.raises(tj.ShapeError, match="no pixels"):
        resize(x[:0], (2, 2))
    with pytest.raises(tj.ArgumentError, match="'bilinear', 'nearest', got 'bicubic'"):
        resize(x, (2, 2), "bicubic")
    with pytest.raises(tj.UnsupportedError, match=r"tj\.nn\.avg_pool"):
        resize(x, (2, 2), antialias=True)
    with pytest.raises(tj.ArgumentTypeError, match="new height and width, got 2"):
        resize(x, 2)
    with pytest.raises(tj.ArgumentError, match="new height and width"):
        resize(x, (2, 2, 1))
    with pytest.raises(tj.ArgumentError, match="at least one pixel"):
        resize(x, (2, 0))
