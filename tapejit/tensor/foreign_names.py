"""Names from TensorFlow, PyTorch, JAX and NumPy, and how tapejit spells them.

None of these is an attribute of tapejit. Asking for one raises AttributeError, and
`hint` gives the package's `__getattr__` the spelling to put into the message.

The data structure is one table from the foreign name to a line of Python, sometimes
two ("... or ..."). The tests run every line, with `x` and `y` as tensors, `v` a
Variable, `a` an array, `f` a function and `tape` a tape that is recording, so no
suggestion can go stale.

Start reading at `SPELLINGS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SPELLINGS: Final[dict[str, str]] = {
    # Making tensors and variables
    "as_tensor": "tj.asarray(a)",
    "asanyarray": "tj.asarray(a)",
    "ascontiguousarray": "tj.asarray(a)",
    "convert_to_tensor": "tj.asarray(a)",
    "device_put": "tj.asarray(a)",
    "fill": "tj.full((2, 3), 1.0)",
    "from_numpy": "tj.asarray(a)",
    "get_variable": "tj.Variable(a)",
    "identity": "tj.eye(3)",
    "is_tensor": "isinstance(x, tj.Tensor)",
    "ndarray": "tj.Tensor",
    "Parameter": "tj.Variable(a)",
    "placeholder": "tj.TensorSpec([None, 3])",
    "range": "tj.arange(3)",
    "tensor": "tj.asarray(a)",
    "randint": "tj.random.integers(0, 10, (2, 3))",
    "rand": "tj.random.uniform((2, 3))",
    "randn": "tj.random.normal((2, 3))",
    # Dtypes
    "bool_": "tj.bool",
    "cast": "x.astype(tj.float32)",
    "cdouble": "tj.complex128",
    "cfloat": "tj.complex64",
    "double": "tj.float64",
    "float": "tj.float32",
    "half": "tj.float16",
    "int": "tj.int32",
    "long": "tj.int64",
    # Reductions
    "add_n": "sum([x, y])",
    "reduce_all": "tj.all(x, axis=0)",
    "reduce_any": "tj.any(x, axis=0)",
    "reduce_logsumexp": "tj.logsumexp(x, axis=0)",
    "reduce_max": "tj.max(x, axis=0)",
    "reduce_mean": "tj.mean(x, axis=0)",
    "reduce_min": "tj.min(x, axis=0)",
    "reduce_prod": "tj.prod(x, axis=0)",
    "reduce_sum": "tj.sum(x, axis=0)",
    "reduce_std": "tj.std(x, axis=0)",
    "reduce_variance": "tj.var(x, axis=0)",
    "unsorted_segment_max": "tj.segment_max(x, [0, 2], num_segments=3)",
    "unsorted_segment_mean": "tj.segment_mean(x, [0, 2], num_segments=3)",
    "unsorted_segment_min": "tj.segment_min(x, [0, 2], num_segments=3)",
    "unsorted_segment_prod": "tj.segment_prod(x, [0, 2], num_segments=3)",
    "unsorted_segment_sum": "tj.segment_sum(x, [0, 2], num_segments=3)",
    # Scans and sorting
    "foldr": "tj.foldl(lambda total, row: total + row, tj.flip(x, axis=0))",
    "bucketize": "tj.searchsorted(x[0], y)",
    "topk": "tj.top_k(x, 1)",
    "unique": "tj.unique_values(x)",
    # Arithmetic and functions of elements
    "around": "tj.round(x)",
    "clamp": "tj.clip(x, 0, 1)",
    "div": "tj.divide(x, y)",
    "expit": "tj.sigmoid(x)",
    "div_no_nan": "tj.divide_no_nan(x, y)",
    "fabs": "tj.abs(x)",
    "floordiv": "tj.floor_divide(x, y)",
    "floormod": "tj.remainder(x, y)",
    "logistic": "tj.sigmoid(x)",
    "mul": "tj.multiply(x, y)",
    "neg": "tj.negative(x)",
    "rint": "tj.round(x)",
    "sgn": "tj.sign(x)",
    "squared_difference": "tj.square(x - y)",
    "sub": "tj.subtract(x, y)",
    "truediv": "tj.divide(x, y)",
    # Special functions and draws
    "betainc": "tj.special.betainc(2.0, 3.0, x / 5)",
    "betaln": "tj.special.betaln(x, y)",
    "digamma": "tj.special.digamma(x)",
    "erfc": "tj.special.erfc(x)",
    "erfinv": "tj.special.erfinv(x / 5)",
    "gammaln": "tj.special.gammaln(x)",
    "igamma": "tj.special.gammainc(x, y)",
    "igammac": "tj.special.gammaincc(x, y)",
    "lbeta": "tj.special.betaln(x, y)",
    "lgamma": "tj.special.gammaln(x)",
    "logit": "tj.special.logit(x / 5)",
    "multinomial": "tj.random.categorical(x, (9, 1))",
    "ndtri": "tj.special.ndtri(x / 5)",
    "polygamma": "tj.special.polygamma(1, x)",
    "xlog1py": "tj.special.xlog1py(x, y)",
    "zeta": "tj.special.zeta(x + 1, y)",
    # Comparison
    "eq": "tj.equal(x, y)",
    "ge": "tj.greater_equal(x, y)",
    "gt": "tj.greater(x, y)",
    "le": "tj.less_equal(x, y)",
    "lt": "tj.less(x, y)",
    "ne": "tj.not_equal(x, y)",
    # Shapes, joining, indexing
    "batch_gather": "tj.take(x, [[0], [1]], batch_dims=1)",
    "boolean_mask": "x[x > 0]",
    "cat": "tj.concat([x, y], axis=0)",
    "flatten": "x.flatten()",
    "gather": "tj.take(x, [0, 1], axis=0)",
    "index_add": "tj.scatter_add(x, [0], y[:1])",
    "index_put": "x.at[0].set(y[0])",
    "index_select": "tj.take(x, [0, 1], axis=0)",
    "masked_select": "x[x > 0]",
    "ndim": "x.ndim",
    "numel": "x.size",
    "permute": "tj.permute_dims(x, (1, 0))",
    "rank": "x.ndim",
    "reverse": "tj.flip(x, axis=0)",
    "shape": "x.shape",
    "size": "x.size",
    "tensor_scatter_nd_add": "x.at[[0]].add(y[:1])",
    "tensor_scatter_nd_max": "x.at[[0]].max(y[:1])",
    "tensor_scatter_nd_min": "x.at[[0]].min(y[:1])",
    "tensor_scatter_nd_sub": "x.at[[0]].subtract(y[:1])",
    "tensor_scatter_nd_update": "x.at[[0]].set(y[:1])",
    "unsqueeze": "tj.expand_dims(x, axis=0)",
    "view": "tj.reshape(x, (-1,))",
    # Products
    "bmm": "x @ y",
    "linear": "x @ y + v",
    "mm": "x @ y",
    "mv": "x @ y[0]",
    "norm": "tj.linalg.norm(x)",
    "vector_norm": "tj.linalg.vector_norm(x)",
    # Neural networks
    "dropout": "tj.nn.dropout(x, 0.5)",
    "elu": "tj.nn.elu(x)",
    "gelu": "tj.nn.gelu(x)",
    "layer_norm": "tj.nn.layer_norm(x)",
    "leaky_relu": "tj.nn.leaky_relu(x)",
    "log_softmax": "tj.nn.log_softmax(x)",
    "logsigmoid": "tj.nn.log_sigmoid(x)",
    "relu": "tj.nn.relu(x)",
    "selu": "tj.nn.selu(x)",
    "silu": "tj.nn.silu(x)",
    "softmax": "tj.nn.softmax(x)",
    "softplus": "tj.nn.softplus(x)",
    # Training
    "clip_grad_norm_": "tj.clip_by_global_norm([x, y], 1.0)",
    "clip_grad_value_": "tj.clip_by_value(x, -1, 1)",
    "optim": "tj.optimizers.Adam()",
    "manual_seed": "tj.random.set_seed(0)",
    # Derivatives and structures
    "autograd": "with tj.GradientTape() as tape: f(x)",
    "backward": "tape.gradient(y, v)",
    "detach": "tj.stop_gradient(x)",
    "gradients": "tape.gradient(y, v)",
    "jacfwd": "tj.jacobian(f)",
    "jacrev": "tj.jacobian(f)",
    "jit": "tj.function(f)",
    "Module": "class Model: weights = tj.Variable(0.0)",
    "nest": "tj.tree.map(f, [x, y])",
    "no_grad": "with tape.stop_recording(): f(x)",
    "requires_grad": "tape.watch(x)",
    "stop_recording": "with tape.stop_recording(): f(x)",
    "tree_flatten": "tj.tree.flatten([x, y])",
    "tree_map": "tj.tree.map(f, [x, y])",
    "tree_util": "tj.tree.map(f, [x, y])",
}


# Of tj.random; the same names as above in the lines.
RANDOM: Final[dict[str, str]] = {
    "default_rng": "tj.random.Generator(0)",
    "key_data": "tj.random.key(0)",
    "manual_seed": "tj.random.set_seed(0)",
    "PRNGKey": "tj.random.key(0)",
    "rand": "tj.random.uniform((2, 3))",
    "randint": "tj.random.integers(0, 10, (2, 3))",
    "randn": "tj.random.normal((2, 3))",
    "random": "tj.random.uniform((2, 3))",
    "random_integers": "tj.random.integers(0, 10, (2, 3))",
    "random_sample": "tj.random.uniform((2, 3))",
    "randperm": "tj.random.permutation(5)",
    "RandomState": "tj.random.Generator(0)",
    "seed": "tj.random.set_seed(0)",
    "standard_normal": "tj.random.normal((2, 3))",
    "stateless_normal": "tj.random.normal((2, 3), key=tj.random.key(0))",
    "stateless_uniform": "tj.random.uniform((2, 3), key=tj.random.key(0))",
}

# Of tensors and variables.
ATTRIBUTES: Final[dict[str, str]] = {
    "backward": "tape.gradient(y, v)",
    "block_until_ready": "x  # values are there",
    "bool": "x.astype(tj.bool)",
    "clamp": "tj.clip(x, 0, 1)",
    "clone": "x.copy()",
    "contiguous": "x  # rows may lie anyhow",
    "cpu": "x  # there is one device, the CPU",
    "cuda": "x  # there is one device, the CPU",
    "detach": "tj.stop_gradient(x)",
    "dim": "x.ndim",
    "double": "x.astype(tj.float64)",
    "expand": "tj.broadcast_to(x, (3, 2, 2))",
    "float": "x.astype(tj.float32)",
    "gather": "tj.take(x, [0, 1], axis=0)",
    "get_shape": "x.shape",
    "grad": "tape.gradient(y, v)",
    "half": "x.astype(tj.float16)",
    "index_select": "tj.take(x, [0, 1], axis=0)",
    "int": "x.astype(tj.int32)",
    "long": "x.astype(tj.int64)",
    "masked_fill": "tj.where(x > 0, 0.0, x)",
    "matmul": "x @ y",
    "mm": "x @ y",
    "mul": "x * y",
    "norm": "tj.linalg.norm(x)",
    "numel": "x.size",
    "permute": "tj.permute_dims(x, (1, 0))",
    "pow": "x**2",
    "requires_grad": "tape.watch(x)",
    "requires_grad_": "tape.watch(x)",
    "set_shape": "tj.reshape(x, (2, 2))",
    "softmax": "tj.nn.softmax(x)",
    "sub": "x - y",
    "t": "x.T",
    "topk": "tj.top_k(x, 1)",
    "type": "x.astype(tj.float32)",
    "unsqueeze": "tj.expand_dims(x, axis=0)",
    "view": "tj.reshape(x, (-1,))",
    "zero_": "v.assign(tj.zeros_like(v))",
}


def attribute_error(
    owner: str, name: str, spellings: Mapping[str, str]
) -> AttributeError:
    """The error of a name that is not there, with the spelling if it is known."""
    spelling = spellings.get(name)
    tail = f"; write {spelling}" if spelling else ""
    return AttributeError(f"{owner} has no attribute {name!r}{tail}", name=name)


def hint(name: str) -> str | None:
    """What to write for a name that other libraries have, None if it is unknown.

    >>> hint("reduce_mean")
    'write tj.mean(x, axis=0)'
    """
    spelling = SPELLINGS.get(name)
    return None if spelling is None else f"write {spelling}"
