"""The statements that random programs are made of, by family, and motifs of several.

A family looks at what there is, writes a statement and says whether it did. A motif
writes some that belong together: it is what programs are known to be made of, such as
a layer whose product several others use.

Start reading at `FAMILIES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tapejit.base.types import is_float

from .arguments import ALL, COMMON, LARGE, SIGNED, UNSIGNED

if TYPE_CHECKING:
    from .writer import Writer

Family = Callable[["Writer"], Any]

UNARY = (
    *[f"tj.{name}({{x}})" for name in (
        "tanh", "sin", "cos", "exp", "expm1", "sigmoid", "abs", "negative", "square",
        "sign", "floor", "ceil", "round", "trunc", "erf", "isnan", "isfinite", "atan",
        "nn.relu", "nn.gelu", "nn.silu", "nn.softplus", "nn.log_sigmoid", "asinh",
        "reciprocal", "sinh", "cosh", "cbrt", "exp2", "signbit", "positive", "nn.elu",
        "nan_to_num", "sinc", "tan", "rad2deg", "isinf", "nn.hard_tanh", "conj",
    )],
    *[f"tj.{name}(tj.abs({{x}}) + 0.25)" for name in (
        "log", "log1p", "sqrt", "log2", "log10", "rsqrt", "acosh",
    )],
    "tj.sqrt({x} * {x} + 1)", "tj.log({x} * {x} + 0.5)", "{x} ** 2", "{x} ** 3",
    "tj.clip({x}, -0.5, 0.5)", "tj.stop_gradient({x}) * {x}", "1 / ({x} * {x} + 1)",
    "{x} * 0.5", "2 - {x}", "{x} + np.float64(0.7)", "{x} % 3", "{x} // 2", "-{x}",
    "tj.log({x})", "tj.sqrt({x})", "tj.log1p({x})", "{x} ** 0.5", "~{x}", "{x} << 1",
    "tj.real({x})", "tj.imag({x})", "tj.angle({x})", "{x} >> 1", "tj.asin({x} / 8)",
    "tj.xlogy(tj.abs({x}), tj.abs({x}))", "tj.special.xlog1py({x}, {x} * {x} - 1)",
)  # fmt: skip

BINARY = (
    "{x} + {y}", "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} * {y}", "{x} / {y}",
    "{x} / ({y} * {y} + 1)", "tj.maximum({x}, {y})", "tj.minimum({x}, {y})",
    "tj.where({x} > {y}, {x}, {y})", "tj.where({x} > 0, {x}, {y} * 0.5)",
    "tj.hypot({x}, {y})", "tj.atan2({x}, {y})", "tj.logaddexp({x}, {y})",
    "tj.xlogy({x}, {y})", "tj.special.xlog1py({x}, {y})", "{x} % {y}", "{x} // {y}",
    # The sign of a NaN is nobody's promise.
    "(tj.abs({x}) + 0.5) ** {y}", "tj.copysign({x}, tj.nan_to_num({y}))",
    "tj.fmod({x}, {y})",
    "tj.divide({x}, {y})", "{x} > {y}", "{x} <= {y}", "{x} == {y}", "{x} != {y}",
    "tj.logical_and({x}, {y})", "{x} & {y}", "{x} | {y}", "{x} ^ {y}", "{x} ** {y}",
    "tj.logical_xor({x}, {y})", "tj.heaviside({x}, {y})", "{x} * {y} + {x}",
    "tj.where({x} == {y}, {x} * 2, {y})", "{x} - tj.stop_gradient({y})",
)  # fmt: skip

REDUCTIONS = (
    "sum", "sum", "sum", "mean", "mean", "var", "std", "prod", "prod", "max", "max",
    "min", "logsumexp", "any", "all", "count_nonzero", "ptp", "nansum", "nanmax",
)  # fmt: skip

POSITIONS = (
    "argmax", "argmin", "cumulative_sum", "cumulative_prod", "sort", "argsort", "diff",
    "nn.softmax", "nn.log_softmax", "logcumsumexp",
)  # fmt: skip


def unary(at: Writer) -> Any:
    x = at.pick_float() if at.choice.random() < 0.8 else at.pick()
    text = at.choice.choice(UNARY).format(x=x)
    return x and at.write(text, x, inner=at.choice.random() < 0.06)


def binary(at: Writer) -> Any:
    x = at.pick_float() if at.choice.random() < 0.7 else at.pick()
    if not x:
        return False
    y = at.partner(x)
    text = at.choice.choice(BINARY).format(x=x, y=y)
    return at.write(text, x, y, inner=at.choice.random() < 0.06)


def reduction(at: Writer) -> Any:
    x = at.pick(lambda x: x.ndim > 0)
    if not x:
        return False
    name, axes = at.choice.choice(REDUCTIONS), at.axes(at.values[x].ndim)
    axis: Any = at.choice.choice((axes, axes, None, *axes))
    if name.startswith("nan") and isinstance(axis, tuple):
        axis = None
    keepdims = ", keepdims=True" if at.choice.random() < 0.4 else ""
    return at.write(f"tj.{name}({x}, axis={axis}{keepdims})", x)


def positional(at: Writer) -> Any:
    """What goes along one axis."""
    x = at.pick(lambda x: x.ndim > 0)
    if not x:
        return False
    axis = at.choice.randrange(at.values[x].ndim)
    return at.write(f"tj.{at.choice.choice(POSITIONS)}({x}, axis={axis})", x)


def movement(at: Writer) -> Any:
    x = at.pick()
    if not x:
        return False
    shape = at.values[x].shape
    order = tuple(at.choice.sample(range(len(shape)), len(shape)))
    place = at.choice.randint(0, len(shape))
    first = at.choice.choice((2, 3, *at.sizes))
    table = [
        f"tj.permute_dims({x}, {order})",
        f"tj.reshape({x}, ({math.prod(shape)},))",
        f"tj.reshape({x}, {shape[::-1]})",
        f"tj.expand_dims({x}, axis={place})",
        f"tj.flip({x}, axis={at.axes(len(shape))})",
        f"tj.broadcast_to({x}, {(first, *shape)})",
        f"tj.tile({x}, {tuple(at.choice.choice((1, 1, 2)) for _ in shape)})",
    ]
    if shape:
        axis = at.choice.randrange(len(shape))
        table += [
            f"tj.roll({x}, {at.choice.randint(-3, 3)}, axis={axis})",
            f"tj.repeat({x}, 2, axis={axis})",
        ]
    if len(shape) > 1:
        table += [f"tj.tril({x})", f"tj.triu({x}, k=1)", f"tj.matrix_transpose({x})"]
        table += [f"tj.trace({x}[..., :2, :2])"]
    return at.write(at.choice.choice(table), x)


def key_of(at: Writer, shape: tuple[int, ...]) -> str:
    """A basic index, as text."""
    parts = []
    for size in shape:
        kind = at.choice.random()
        if kind < 0.35:
            parts.append(":")
        elif kind < 0.5 and size:
            parts.append(str(at.choice.randrange(-size, size)))
        else:
            ends = [at.choice.randint(0, size), at.choice.randint(0, size)]
            start, stop = map(str, sorted(ends))
            step = at.choice.choice(("", ":2", ":3"))
            parts.append(
                at.choice.choice((f"{start}:{stop}{step}", "::-1", "1:", "::2"))
            )
    if at.choice.random() < 0.1:
        parts.insert(at.choice.randint(0, len(parts)), "None")
    return ", ".join(parts)


def part(at: Writer) -> Any:
    """A slice, or something done where the slice is."""
    x = at.pick(lambda x: x.ndim > 0)
    if not x:
        return False
    key = key_of(at, at.values[x].shape)
    if at.choice.random() < 0.6:
        return at.write(f"{x}[{key}]", x)
    method = at.choice.choice(("set", "add", "multiply", "max", "min"))
    value = at.choice.choice(("2", f"{x}[{key}] * 2", "0"))
    return at.write(f"{x}.at[{key}].{method}({value})", x)


def joint(at: Writer) -> Any:
    """A concatenation, a stack, padding."""
    x = at.pick(lambda x: x.ndim > 0)
    if not x:
        return False
    shape = at.values[x].shape
    axis = at.choice.randrange(len(shape))
    rest = [*shape[:axis], *shape[axis + 1 :]]
    dtype = at.values[x].dtype

    def fits(y: Any) -> bool:
        alike = y.ndim == len(shape) and y.dtype == dtype
        return alike and [*y.shape[:axis], *y.shape[axis + 1 :]] == rest

    y = at.pick(fits) or x
    widths = [(at.choice.randint(0, 2), at.choice.randint(0, 3)) for _ in shape]
    table = [
        f"tj.concat([{x}, {y}, {x}], axis={axis})",
        f"tj.concat([{x}, {y}], axis={axis})",
        f"tj.stack([{x}, {x}], axis={axis})",
        f"tj.pad({x}, {widths})",
        f"tj.pad({x}, {widths}, constant_values=1)",
    ]
    return at.write(at.choice.choice(table), x, y)


def gathering(at: Writer) -> Any:
    """Elements at positions, or something done there."""
    x = at.pick(lambda x: any(x.shape))
    if not x:
        return False
    shape = at.values[x].shape
    axis = at.choice.choice([k for k, size in enumerate(shape) if size])
    places = [
        at.choice.randrange(shape[axis]) for _ in range(at.choice.choice((1, 3, 9)))
    ]
    front = ":, " * axis
    indices = f"np.array({places})"
    found = at.pick(lambda y: y.dtype.kind in "iu" and y.ndim == 1)
    uses = [x]
    if found and at.choice.random() < 0.5:
        indices = f"tj.astype({found} % {shape[axis]}, 'int32')"
        uses.append(found)
    table = [
        f"tj.take({x}, {indices}, axis={axis})",
        f"{x}[{front}{indices}]",
        f"{x}.at[{front}{indices}].add(0.5 * {x}[{front}{indices}])",
        f"{x}.at[{front}{indices}].set(1)",
        f"{x}.at[{front}{indices}].max({x}[{front}{indices}] + 1)",
        f"tj.one_hot({indices}, {shape[axis]})",
        f"tj.take_along_axis({x}, tj.argsort({x}, axis={axis}), axis={axis})",
        f"tj.top_k({x}, {at.choice.randint(1, shape[axis])}, axis={axis}).values",
        f"tj.top_k({x}, 1, axis={axis}, mode='smallest').indices",
        f"tj.searchsorted(tj.linspace(-2, 2, 9), {x}, side='right')",
        f"tj.histogram({x}, bins=5, range=(-2, 3))[0]",
    ]
    return at.write(at.choice.choice(table), *uses)


def product(at: Writer) -> Any:
    x = at.pick(lambda x: x.ndim > 0 and x.dtype.kind != "b")
    if not x:
        return False
    shape, dtype = at.values[x].shape, at.values[x].dtype

    def fits(y: Any) -> bool:
        if not y.ndim or y.dtype != dtype:
            return False
        inner = y.shape[0] if y.ndim == 1 else y.shape[-2]
        return bool(inner == shape[-1])

    y = at.pick(fits)
    table = [f"tj.outer({x}[..., 0].reshape((-1,))[:9], {x}.reshape((-1,))[:33])"]
    if len(shape) > 1:
        table += [f"{x} @ tj.matrix_transpose({x})", f"tj.matrix_transpose({x}) @ {x}"]
        table += [f"tj.einsum('...ij,...ij->...i', {x}, {x})"]
    if y:
        table += [f"{x} @ {y}"] * 6
    text = at.choice.choice(table)
    return at.write(text, x, *([y] if y and y in text.split() else []))


def matrices(at: Writer) -> Any:
    """A product of two tensors, each as it is or transposed, stacks broadcast."""
    x = at.pick_float(least=2)
    if not x:
        return False
    dtype = at.values[x].dtype
    turned = at.choice.random() < 0.4
    inner = at.values[x].shape[-2 if turned else -1]

    def fits(y: Any) -> bool:
        return y.dtype == dtype and y.ndim >= 2 and inner in y.shape[-2:]

    y = at.pick(fits) or x
    left = f"tj.matrix_transpose({x})" if turned else x
    right = y
    sides = [side for side in (-2, -1) if at.values[y].shape[side] == inner]
    if at.choice.choice(sides) == -1:
        right = f"tj.matrix_transpose({y})"
    return at.write(f"{left} @ {right}", x, y)


def conversion(at: Writer) -> Any:
    x = at.pick_float() if at.choice.random() < 0.6 else at.pick()
    dtypes = at.choice.choice((ALL, COMMON, UNSIGNED, UNSIGNED, SIGNED))
    return x and at.write(f"tj.astype({x}, '{at.choice.choice(dtypes)}')", x)


def comparison(at: Writer) -> Any:
    """Floats that are made of flags: there is no derivative on the way."""
    x = at.pick(lambda x: x.dtype.kind != "c")
    if not x:
        return False
    y = at.choice.choice(("0", at.partner(x)))
    sign = at.choice.choice((">", "<=", "=="))
    uses = [x] if y == "0" else [x, y]
    dtype = at.choice.choice(COMMON)
    return at.write(f"tj.astype({x} {sign} {y}, '{dtype}')", *uses)


def state(at: Writer) -> Any:
    """A variable, read or assigned."""
    if not at.variables:
        return False
    v = at.choice.choice(list(at.variables))
    kind = (at.variables[v].dtype, at.variables[v].shape)
    x = at.pick(lambda x: (x.dtype, x.shape) == kind)
    if not x or at.choice.random() < 0.4:
        y = at.pick(lambda x: x.dtype == kind[0])
        text = f"{v} * {y}" if y else f"{v} + 1"
        return at.write(text, *([y] if y else []))
    method = at.choice.choice(("assign", "assign_add", "assign_sub"))
    return at.perform(f"{v}.{method}({x})", x, changes=v)


def random_numbers(at: Writer) -> Any:
    shape = at.choice.choice(list(at.values.values())).shape if at.values else (3,)
    table = [
        f"draws.normal(shape={shape})",
        f"draws.uniform(shape={shape})",
        f"draws.uniform(shape={shape}) > 0.4",
        f"draws.integers(0, 9, shape={shape})",
    ]
    return at.write(at.choice.choice(table), changes="draws")


def number(at: Writer) -> Any:
    """A value asked for while tracing: the function runs as plain Python."""
    x = at.pick(lambda x: is_float(x.dtype))
    if not x or at.choice.random() < 0.6:
        return False
    return at.write(f"float(tj.sum({x}))", x)


# Motifs


def dtype_for(at: Writer) -> str:
    return at.choice.choice(("float32", "float32", "float32", "float64", "float16"))


def layer(at: Writer) -> None:
    """A product with a row added, which several others use."""
    n, k, m = at.size(), at.size(), at.size()
    front = at.choice.choice(((), (), (2,), (2, 2), (3,), (1,)))
    dtype = dtype_for(at)
    if math.prod(front) * max(n * k, n * m) > 40_000 or k * m > 40_000:
        n, front = at.choice.choice((2, 3, 7)), front[:1]
    a = at.new_argument(dtype, (*front, n, k))
    b = at.new_argument(dtype, (k, m))
    x = at.new_argument(dtype, (m,))
    p = at.write(f"{a} @ {b}", a, b)
    if not p:
        return
    q = at.write(f"{p} + {x}", p, x) if at.choice.random() < 0.7 else p
    uses = [
        "tj.tanh({q})", "tj.nn.relu({q})", "{q} * {q}", "tj.var({q})", "tj.sum({q})",
        "tj.mean({q}, axis=-1, keepdims=True)", "tj.max({q}, axis=-1)", "{q} * {x}",
        "tj.var({q}, axis=0)", "tj.sum({q}, axis=0)", "tj.nn.softmax({q})",
        "tj.matrix_transpose({q}) * 2", "tj.std({q}, axis=-1)", "tj.prod({q}, axis=0)",
        "tj.logsumexp({q}, axis=-1)", "tj.exp(-tj.abs({q}))", "{q}[..., ::2]",
    ]  # fmt: skip
    for text in at.choice.sample(uses, at.choice.randint(1, 3)):
        at.write(text.format(q=at.choice.choice((q, q, p)), x=x), q, p, x)


def rows_of_layer(at: Writer) -> None:
    """A layer of a few rows with statistics, whose bias also meets a stack of rows.

    Few rows make a product part of other loops, and long sums in them need memory.
    """
    front = at.choice.choice(((2, 2), (3, 2), (2, 3), (4,), (2, 1), (2, 2, 2), (1, 2)))
    k, m = at.choice.choice(LARGE), at.choice.choice(LARGE)
    dtype = at.choice.choice(("float32", "float32", "float32", "float64", "float16"))
    a = at.new_argument(dtype, (*front, k))
    b = at.new_argument(dtype, (k, m))
    x = at.new_argument(dtype, (m,))
    w = at.new_argument(dtype, (*front, m))
    product = f"{a} @ {b}" if at.choice.random() < 0.2 else f"{a} @ {b} + {x}"
    p = at.write(product, a, b, x)
    statistics = at.choice.choice(
        ("var({p})", "var({p})", "var({p}, axis=-1)", "std({p})", "mean({p} * {p})",
         "var({p}, axis=0)", "sum(tj.tanh({p}))", "logsumexp({p}, axis=-1)")
    )  # fmt: skip
    at.write(f"tj.{statistics.format(p=p)}", p)
    name = at.choice.choice(("prod", "prod", "sum", "max", "min", "logsumexp", "var"))
    axes = tuple(range(len(front)))
    if at.choice.random() < 0.25:
        axes = axes[:1]
    at.write(f"tj.{name}({x} * {w}, axis={axes})", x, w)


def normalization(at: Writer) -> None:
    x = at.pick_float(least=1)
    if not x:
        return
    axis = at.choice.choice((-1, 0, None))
    m = at.write(f"{x} - tj.mean({x}, axis={axis}, keepdims=True)", x)
    v = at.write(f"tj.mean({m} * {m}, axis={axis}, keepdims=True)", m) if m else ""
    if v:
        at.write(f"{m} / tj.sqrt({v} + 0.01)", m, v)


def attention(at: Writer) -> None:
    n, k = at.choice.choice((5, 16, 33)), at.choice.choice((4, 8, 17))
    dtype = dtype_for(at)
    q, key, v = (at.new_argument(dtype, (2, n, k)) for _ in range(3))
    s = at.write(f"tj.nn.softmax({q} @ tj.matrix_transpose({key}) / {k**0.5})", q, key)
    if s:
        at.write(f"{s} @ {v}", s, v)


def training(at: Writer) -> None:
    """A layer whose weights are variables, and an update of them."""
    n, k, m = at.choice.choice((4, 17, 40)), at.size(), at.choice.choice((3, 9, 33))
    x = at.new_argument("float32", (n, k))
    weights = at.new_variable("float32", (k, m))
    bias = at.new_variable("float32", (m,))
    p = at.write(f"tj.tanh({x} @ {weights} + {bias})", x)
    if p:
        u = at.write(f"tj.matrix_transpose({x}) @ {p}", x, p)
        at.perform(f"{weights}.assign_sub(0.1 * {u})", u, changes=weights)
        at.perform(f"{bias}.assign_sub(0.1 * tj.sum({p}, axis=0))", p, changes=bias)


def signal(at: Writer) -> None:
    """Complex arithmetic, and what is real of it."""
    dtype = at.choice.choice(("complex64", "complex64", "complex128"))
    shape = at.choice.choice(((at.size(),), (3, at.size()), at.shape(1)))
    if math.prod(shape) > 20_000:
        return
    z, w = at.new_argument(dtype, shape), at.new_argument(dtype, shape)
    p = at.write(f"{z} * {w}", z, w)
    uses = [
        # Not by z conj(z): with a fused multiply-add, as in NumPy's own loops on some
        # processors, its imaginary part is a rounding error in place of 0.
        "{p} / ({w} * {w} + 1)", "tj.conj({p}) + {w}", "tj.abs({p})",
        "tj.real({p}) * tj.imag({w})", "tj.sum({p} * {w}, axis=-1)", "tj.mean({p})",
        "tj.angle({p} + 4)", "{p} * tj.abs({w})", "{p} == {z}", "{p} - tj.real({z})",
        "tj.where(tj.abs({z}) > 1, {p}, {w})", "tj.flip({p}, axis=-1) * {z}",
        "{p}[..., ::2] * 2j", "tj.concat([{p}, {z}])", "tj.sum(tj.abs({p}) ** 2)",
        "tj.tanh({p}) * {w}", "tj.fft.fft({p}) * {w}", "{p} ** 2 / 3", "tj.isnan({p})",
    ]  # fmt: skip
    for text in at.choice.sample(uses, at.choice.randint(2, 4)) if p else ():
        at.write(text.format(p=at.choice.choice((p, p, z)), z=z, w=w), p, z, w)


def points(at: Writer) -> None:
    """Rows of a few numbers, which are taken apart and put together."""
    count, dtype = at.choice.randint(2, 5), at.choice.choice(COMMON)
    shape = (*at.choice.choice(((), (2,), (3,))), at.size(), count)
    x, y = at.new_argument(dtype, shape), at.new_argument(dtype, shape)
    first, last = (at.choice.randrange(count) for _ in range(2))
    p = at.write(f"{x}[..., {first}] * {y}[..., {last}] + {x}[..., -1]", x, y)
    if p:
        order = at.choice.choice((f"{p}, {y}[..., 0]", f"{x}[..., 1], {p}, {p}"))
        at.write(f"tj.stack([{order}], axis=-1)", p, x, y)
        at.write(f"tj.sum({x} * {y}, axis=-1) - {p}", p, x, y)


FAMILIES: dict[Family, int] = {
    unary: 8,
    binary: 9,
    reduction: 7,
    positional: 3,
    movement: 4,
    part: 4,
    joint: 2,
    gathering: 3,
    product: 4,
    conversion: 5,
    comparison: 3,
    state: 3,
    random_numbers: 1,
    number: 1,
}

PRODUCT_FAMILIES: dict[Family, int] = {
    matrices: 8,
    unary: 5,
    binary: 7,
    reduction: 2,
    movement: 2,
    part: 1,
    joint: 1,
    comparison: 1,
    conversion: 1,
    gathering: 1,
}

MOTIFS: dict[Family, int] = {
    layer: 4,
    rows_of_layer: 5,
    normalization: 2,
    attention: 1,
    training: 2,
    signal: 2,
    points: 2,
}
