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

from types import FunctionType
from typing import TYPE_CHECKING, Any

from tapejit.array.elementwise import sigmoid as sigmoid
from tapejit.array.elementwise import tanh as tanh
from tapejit.array.reductions import logsumexp as logsumexp
from tapejit.array.selection import one_hot as one_hot
from tapejit.base import public
from tapejit.nn.functional.activations import *
from tapejit.nn.functional.attention import *
from tapejit.nn.functional.categories import *
from tapejit.nn.functional.convolution import *
from tapejit.nn.functional.dropout import *
from tapejit.nn.functional.losses import *
from tapejit.nn.functional.normalization import *
from tapejit.nn.functional.pooling import *
from tapejit.tensor import foreign_names

if not TYPE_CHECKING:  # checkers know it from the imports
    __all__ = sorted(x for x, y in globals().items() if isinstance(y, FunctionType))
    public.publish(__all__, globals(), "tapejit.nn")

# From the name in another library to a line of Python. The tests run every line, with
# `x` a matrix, `v` a variable of its last size and `i` as many integers as it has rows.
SPELLINGS = foreign_names.by_name(
    {
        "tj.nn.avg_pool(x[None], 2)": "avg_pool1d",
        "tj.nn.avg_pool(x[None, :, :, None], 2)": "avg_pool2d",
        "tj.nn.avg_pool(x[None, :, :, None, None], (2, 2, 1))": "avg_pool3d",
        "tj.nn.batch_norm(x, *tj.nn.moments(x, axis=0))": "batch_normalization",
        "tj.nn.sigmoid_cross_entropy(x, tj.ones_like(x))": (
            "bce_with_logits BCEWithLogitsLoss binary_cross_entropy_with_logits "
            "binary_crossentropy BinaryCrossentropy sigmoid_cross_entropy_with_logits"
        ),
        "x + v": "bias_add",
        "tj.nn.softmax_cross_entropy(x, tj.nn.softmax(x))": (
            "categorical_crossentropy CategoricalCrossentropy "
            "softmax_cross_entropy_with_logits"
        ),
        "tj.nn.conv2d_transpose(x[None, :, :, None], tj.ones((2, 2, 1, 1)))": (
            "conv_transpose2d"
        ),
        "tj.nn.sparse_softmax_cross_entropy(x, i)": (
            "cross_entropy CrossEntropyLoss nll_loss sparse_categorical_crossentropy "
            "sparse_softmax_cross_entropy_with_logits SparseCategoricalCrossentropy"
        ),
        "tj.nn.scaled_dot_product_attention(x, x, x)": "dot_product_attention",
        "tj.nn.embedding(x, i)": "embedding_lookup",
        "tj.nn.hard_swish(x)": "hard_silu hardswish",
        "tj.nn.hard_sigmoid(x)": "hardsigmoid",
        "tj.nn.hard_tanh(x)": "hardtanh",
        "tj.nn.hinge(x, tj.sign(x))": "hinge_loss",
        "tj.nn.huber(x, x + 1)": "huber_loss HuberLoss smooth_l1_loss SmoothL1Loss",
        "tj.image.resize(x[:, :, None], (4, 4))": "interpolate",
        "tj.nn.kl_divergence(x, tj.nn.softmax(x))": (
            "kl_div kld KLDivergence KLDivLoss kullback_leibler_divergence"
        ),
        "tj.nn.absolute_error(x, x + 1)": (
            "l1_loss L1Loss mae mean_absolute_error MeanAbsoluteError"
        ),
        "tj.sum(tj.square(x)) / 2": "l2_loss",
        "tj.nn.normalize(x)": "l2_normalize",
        "x @ x + v": "linear",
        "tj.nn.log_sigmoid(x)": "logsigmoid",
        "tj.nn.max_pool(x[None], 2)": "max_pool1d",
        "tj.nn.max_pool(x[None, :, :, None], 2)": "max_pool2d",
        "tj.nn.max_pool(x[None, :, :, None, None], (2, 2, 1))": "max_pool3d",
        "tj.nn.squared_error(x, x + 1)": (
            "mean_squared_error MeanSquaredError mse mse_loss MSELoss"
        ),
        "tj.nn.leaky_relu(x, v)": "prelu",
        "tj.nn.softsign(x)": "soft_sign",
        "tj.nn.softmax(-x)": "softmin",
    }
)


def __getattr__(name: str) -> Any:
    raise foreign_names.attribute_error("tapejit.nn", name, SPELLINGS)
