"""A transformer's block: 8 sequences of 128 with 256 features, 8 heads, all gradients.

Layer norm, attention, a projection, layer norm, a network four times as wide with the
exact gelu, each half added to what came in; the value is the mean of the squares of
what comes out, the gradients those of all 12 parameters, in float32. Torch's users call
its `scaled_dot_product_attention` and `layer_norm`; the others write the formulas, and
tapejit's compiler has to see an attention in theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import adjoints
from benchmarks.case import Array, Case, Leads
from benchmarks.gradients import Objective, peers_of

BATCH, TIME, SIZE, HEADS, WIDER, EPSILON = 8, 128, 256, 8, 4, 1e-5

Attend = Callable[[Any, Any, Any, Any], Any]
"""From the package and queries, keys and values of each head to what they attend to."""


def split_heads(m: Any, x: Any) -> Any:
    """Batch, time, features to batch, head, time, features of the head."""
    batch, time, size = x.shape
    return m.permute_dims(
        m.reshape(x, (batch, time, HEADS, size // HEADS)), (0, 2, 1, 3)
    )


def join_heads(m: Any, x: Any) -> Any:
    """The inverse of `split_heads`."""
    batch, heads, time, size = x.shape
    return m.reshape(m.permute_dims(x, (0, 2, 1, 3)), (batch, time, heads * size))


def attend(m: Any, q: Any, k: Any, v: Any) -> Any:
    """By hand, as tapejit and JAX write it."""
    scores = q @ m.matrix_transpose(k) / float(np.sqrt(SIZE // HEADS))
    return m.nn.softmax(scores) @ v


def attend_in_torch(m: Any, q: Any, k: Any, v: Any) -> Any:
    """Torch's own."""
    return m.nn.scaled_dot_product_attention(q, k, v)


def attend_in_tensorflow(m: Any, q: Any, k: Any, v: Any) -> Any:
    """TensorFlow's product transposes as it goes."""
    import tensorflow as tf

    scores = tf.matmul(q, k, transpose_b=True) / float(np.sqrt(SIZE // HEADS))
    return tf.matmul(m.nn.softmax(scores), v)


def attention(m: Any, attend: Attend, x: Any, wq: Any, wk: Any, wv: Any) -> Any:
    """Three projections, and what each head attends to."""
    q, k, v = (split_heads(m, x @ w) for w in (wq, wk, wv))
    return join_heads(m, attend(m, q, k, v))


def norm(m: Any, x: Any, scale: Any, shift: Any) -> Any:
    """The formula of a layer norm."""
    centred = x - m.mean(x, axis=-1, keepdims=True)
    variance = m.mean(centred * centred, axis=-1, keepdims=True)
    return centred / m.sqrt(variance + EPSILON) * scale + shift


def norm_in_tapejit(tj: Any, x: Any, scale: Any, shift: Any) -> Any:
    """tapejit's function."""
    return tj.nn.layer_norm(x, scale, shift, epsilon=EPSILON)


def norm_in_torch(m: Any, x: Any, scale: Any, shift: Any) -> Any:
    """Torch's function."""
    return m.nn.layer_norm(x, (SIZE,), scale, shift, EPSILON)


def block(attend: Attend, norm: Callable[..., Any], **gelu: bool) -> Objective:
    """The objective of a package; `gelu` are the options of its exact gelu."""

    def objective(m: Any, *arrays: Any) -> Any:
        scale_1, shift_1, wq, wk, wv, wo, scale_2, shift_2, w1, b1, w2, b2, x = arrays
        normed = norm(m, x, scale_1, shift_1)
        x = x + attention(m, attend, normed, wq, wk, wv) @ wo
        normed = norm(m, x, scale_2, shift_2)
        y = x + m.nn.gelu(normed @ w1 + b1, **gelu) @ w2 + b2
        return m.mean(y * y)

    return objective


def make_inputs(rng: np.random.Generator) -> tuple[Array, ...]:
    """Parameters as in training, and a batch."""

    def normal(*shape: int, spread: float = 1.0, centre: float = 0.0) -> Array:
        return (centre + spread * rng.standard_normal(shape)).astype(np.float32)

    def matrix(rows: int, columns: int) -> Array:
        return normal(rows, columns, spread=rows**-0.5)

    def scale_and_shift() -> tuple[Array, Array]:
        return normal(SIZE, spread=0.1, centre=1.0), normal(SIZE, spread=0.1)

    return (
        *scale_and_shift(),
        *(matrix(SIZE, SIZE) for _ in range(4)),
        *scale_and_shift(),
        matrix(SIZE, WIDER * SIZE),
        normal(WIDER * SIZE, spread=0.1),
        matrix(WIDER * SIZE, SIZE),
        normal(SIZE, spread=0.1),
        normal(BATCH, TIME, SIZE),
    )


def reference(*arrays: Array) -> Sequence[Array]:
    """The adjoint, layer by layer."""
    wide = adjoints.widened(arrays)
    scale_1, shift_1, wq, wk, wv, wo, scale_2, shift_2, w1, b1, w2, b2, x = wide
    normed, pull_norm_1 = adjoints.layer_norm(x, scale_1, shift_1, EPSILON)
    projected = [adjoints.dense(normed, w) for w in (wq, wk, wv)]
    attended, pull_attention = adjoints.attention(*(y for y, _ in projected), HEADS)
    shown, pull_wo = adjoints.dense(attended, wo)
    middle = x + shown
    normed, pull_norm_2 = adjoints.layer_norm(middle, scale_2, shift_2, EPSILON)
    before, pull_w1 = adjoints.dense(normed, w1, b1)
    bent, pull_gelu = adjoints.gelu(before)
    added, pull_w2 = adjoints.dense(bent, w2, b2)
    y = middle + added

    by_y = 2 * y / y.size
    by_bent, by_w2, by_b2 = pull_w2(by_y)
    by_normed, by_w1, by_b1 = pull_w1(pull_gelu(by_bent))
    by_x, by_scale_2, by_shift_2 = pull_norm_2(by_normed)
    by_attended, by_wo = pull_wo(by_y + by_x)
    pulled = zip(projected, pull_attention(by_attended), strict=True)
    parts = [pull(g) for (_, pull), g in pulled]
    _, by_scale_1, by_shift_1 = pull_norm_1(sum(by_normed for by_normed, _ in parts))
    by_first = [by_scale_1, by_shift_1, *(by_w for _, by_w in parts), by_wo]
    by_second = [by_scale_2, by_shift_2, by_w1, by_b1, by_w2, by_b2]
    return [np.asarray(np.mean(y * y)), *by_first, *by_second]


CASES = (
    Case(
        name="attention",
        description="a transformer's block, 8 x 128 x 256, 8 heads: 12 gradients",
        unit="ms",
        make_inputs=make_inputs,
        reference=reference,
        builders=peers_of(
            block(attend, norm_in_tapejit),
            wrt=range(12),
            own={
                "jax": block(attend, norm, approximate=False),
                "torch": block(attend_in_torch, norm_in_torch),
                "tensorflow": block(attend_in_tensorflow, norm),
            },
        ),
        goals=(Leads(1.5),),
    ),
)
