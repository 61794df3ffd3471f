"""Functions of neural networks: activations, convolution, attention, losses.

They are functions, not layers: parameters are arguments, and a model is whatever holds
them. Apart from a few records (`tapejit/ops/activations.py`, `windows.py`) they are
compositions of tapejit's own functions, and differentiate, batch and trace like these.

`activations.py` has the nonlinearities, `normalization.py` means, variances and what
is scaled by them, `convolution.py` and `pooling.py` what slides a window over images
(arguments they share are in `windows.py`), `attention.py` attention, `losses.py` the
cross-entropies and errors, `categories.py` lookups by integers, `dropout.py` dropout,
and `precision.py` what all of them do with half-precision operands. Names that other
libraries use lead to the ones here.

Start reading at `activations.py`.
"""

from __future__ import annotations

from typing import Any, Final

from tapejit.array.elementwise import sigmoid, tanh
from tapejit.array.reductions import logsumexp
from tapejit.array.selection import one_hot
from tapejit.nn.functional.activations import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_swish,
    hard_tanh,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    mish,
    relu,
    relu6,
    selu,
    silu,
    softmax,
    softplus,
    softsign,
    swish,
)
from tapejit.nn.functional.attention import scaled_dot_product_attention
from tapejit.nn.functional.categories import embedding
from tapejit.nn.functional.convolution import (
    conv1d,
    conv2d,
    conv2d_transpose,
    conv3d,
    depthwise_conv2d,
)
from tapejit.nn.functional.dropout import dropout
from tapejit.nn.functional.losses import (
    absolute_error,
    categorical_hinge,
    hinge,
    huber,
    kl_divergence,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
    sparse_softmax_cross_entropy,
    squared_error,
    squared_hinge,
)
from tapejit.nn.functional.normalization import (
    batch_norm,
    layer_norm,
    moments,
    normalize,
    rms_norm,
    standardize,
)
from tapejit.nn.functional.pooling import avg_pool, max_pool

# From the name in another library to a line of Python. The tests run every line, with
# `x` a matrix, `v` a variable of its last size and `i` as many integers as it has rows.
SPELLINGS: Final[dict[str, str]] = {
    "avg_pool1d": "tj.nn.avg_pool(x[None], 2)",
    "avg_pool2d": "tj.nn.avg_pool(x[None, :, :, None], 2)",
    "avg_pool3d": "tj.nn.avg_pool(x[None, :, :, None, None], (2, 2, 1))",
    "batch_normalization": "tj.nn.batch_norm(x, *tj.nn.moments(x, axis=0))",
    "bce_with_logits": "tj.nn.sigmoid_cross_entropy(x, tj.ones_like(x))",
    "BCEWithLogitsLoss": "tj.nn.sigmoid_cross_entropy(x, tj.ones_like(x))",
    "bias_add": "x + v",
    "binary_cross_entropy_with_logits": (
        "tj.nn.sigmoid_cross_entropy(x, tj.ones_like(x))"
    ),
    "binary_crossentropy": "tj.nn.sigmoid_cross_entropy(x, tj.ones_like(x))",
    "BinaryCrossentropy": "tj.nn.sigmoid_cross_entropy(x, tj.ones_like(x))",
    "categorical_crossentropy": "tj.nn.softmax_cross_entropy(x, tj.nn.softmax(x))",
    "CategoricalCrossentropy": "tj.nn.softmax_cross_entropy(x, tj.nn.softmax(x))",
    "conv_transpose2d": (
        "tj.nn.conv2d_transpose(x[None, :, :, None], tj.ones((2, 2, 1, 1)))"
    ),
    "cross_entropy": "tj.nn.sparse_softmax_cross_entropy(x, i)",
    "CrossEntropyLoss": "tj.nn.sparse_softmax_cross_entropy(x, i)",
    "dot_product_attention": "tj.nn.scaled_dot_product_attention(x, x, x)",
    "embedding_lookup": "tj.nn.embedding(x, i)",
    "hard_silu": "tj.nn.hard_swish(x)",
    "hardsigmoid": "tj.nn.hard_sigmoid(x)",
    "hardswish": "tj.nn.hard_swish(x)",
    "hardtanh": "tj.nn.hard_tanh(x)",
    "hinge_loss": "tj.nn.hinge(x, tj.sign(x))",
    "huber_loss": "tj.nn.huber(x, x + 1)",
    "HuberLoss": "tj.nn.huber(x, x + 1)",
    "interpolate": "tj.image.resize(x[:, :, None], (4, 4))",
    "kl_div": "tj.nn.kl_divergence(x, tj.nn.softmax(x))",
    "kld": "tj.nn.kl_divergence(x, tj.nn.softmax(x))",
    "KLDivergence": "tj.nn.kl_divergence(x, tj.nn.softmax(x))",
    "KLDivLoss": "tj.nn.kl_divergence(x, tj.nn.softmax(x))",
    "kullback_leibler_divergence": "tj.nn.kl_divergence(x, tj.nn.softmax(x))",
    "l1_loss": "tj.nn.absolute_error(x, x + 1)",
    "L1Loss": "tj.nn.absolute_error(x, x + 1)",
    "l2_loss": "tj.sum(tj.square(x)) / 2",
    "l2_normalize": "tj.nn.normalize(x)",
    "linear": "x @ x + v",
    "logsigmoid": "tj.nn.log_sigmoid(x)",
    "mae": "tj.nn.absolute_error(x, x + 1)",
    "max_pool1d": "tj.nn.max_pool(x[None], 2)",
    "max_pool2d": "tj.nn.max_pool(x[None, :, :, None], 2)",
    "max_pool3d": "tj.nn.max_pool(x[None, :, :, None, None], (2, 2, 1))",
    "mean_absolute_error": "tj.nn.absolute_error(x, x + 1)",
    "mean_squared_error": "tj.nn.squared_error(x, x + 1)",
    "MeanAbsoluteError": "tj.nn.absolute_error(x, x + 1)",
    "MeanSquaredError": "tj.nn.squared_error(x, x + 1)",
    "mse": "tj.nn.squared_error(x, x + 1)",
    "mse_loss": "tj.nn.squared_error(x, x + 1)",
    "MSELoss": "tj.nn.squared_error(x, x + 1)",
    "nll_loss": "tj.nn.sparse_softmax_cross_entropy(x, i)",
    "prelu": "tj.nn.leaky_relu(x, v)",
    "sigmoid_cross_entropy_with_logits": (
        "tj.nn.sigmoid_cross_entropy(x, tj.ones_like(x))"
    ),
    "smooth_l1_loss": "tj.nn.huber(x, x + 1)",
    "SmoothL1Loss": "tj.nn.huber(x, x + 1)",
    "soft_sign": "tj.nn.softsign(x)",
    "softmax_cross_entropy_with_logits": (
        "tj.nn.softmax_cross_entropy(x, tj.nn.softmax(x))"
    ),
    "softmin": "tj.nn.softmax(-x)",
    "sparse_categorical_crossentropy": "tj.nn.sparse_softmax_cross_entropy(x, i)",
    "sparse_softmax_cross_entropy_with_logits": (
        "tj.nn.sparse_softmax_cross_entropy(x, i)"
    ),
    "SparseCategoricalCrossentropy": "tj.nn.sparse_softmax_cross_entropy(x, i)",
}


def __getattr__(name: str) -> Any:
    spelling = SPELLINGS.get(name)
    tail = f"; write {spelling}" if spelling else ""
    raise AttributeError(f"tapejit.nn has no attribute {name!r}{tail}", name=name)


__all__ = [
    "absolute_error",
    "avg_pool",
    "batch_norm",
    "categorical_hinge",
    "celu",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "depthwise_conv2d",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_swish",
    "hard_tanh",
    "hinge",
    "huber",
    "kl_divergence",
    "layer_norm",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "max_pool",
    "mish",
    "moments",
    "normalize",
    "one_hot",
    "relu",
    "relu6",
    "rms_norm",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "sigmoid_cross_entropy",
    "silu",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "softsign",
    "sparse_softmax_cross_entropy",
    "squared_error",
    "squared_hinge",
    "standardize",
    "swish",
    "tanh",
]
