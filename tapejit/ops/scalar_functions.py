"""LLVM text of a scalar function as a lane expression, and its elementwise record.

A compiler gives text for `f(double, double, ...)`. Where it is arithmetic, functions
that lanes have, comparisons and branches without loops, `LaneProgram` takes it step by
step: each instruction is a function of the lane algebra, and where branches meet, the
values are selected, because lanes compute all of them. So a user's function is fused,
vectorized and put on every target as other records are.

Arithmetic is in the dtype of the operands, numbers of the text follow it. A comparison
with a number that float32 does not have is still the comparison with that number.

`scalar_record` makes the record. Its name has a digest of what it computes and of its
derivatives, so Graphs with other functions have other digests, in memory and on disk.

Start reading at `LaneProgram`, then `scalar_record`.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tapejit.base.dims import Size
from tapejit.base.errors import ArgumentTypeError
from tapejit.base.types import TensorType
from tapejit.ir.node import UNLISTED, Node, Op, Rule, register_unlisted
from tapejit.ops.elementwise import check_kind, deriv_jvp, deriv_vjp, lift
from tapejit.ops.precision import in_double
from tapejit.ops.shapes import broadcast_shapes, same_dtype, tensor

Operand = Any  # the name of a value in the text, or a number
Edge = tuple[str, str]

# What C and LLVM call the functions that lanes have.
SAME: Final = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2
expm1 floor fmod hypot log log10 log1p log2 pow sin sinh sqrt tan tanh trunc
"""
FUNCTIONS: Final[dict[str, str]] = {
    **{name: name for name in SAME.split()},
    "fabs": "abs",
    "lgamma": "gammaln",
    "nearbyint": "round_half_even",
    "rint": "round_half_even",
    "roundeven": "round_half_even",
}
ARITHMETIC: Final = {
    "fadd": "add",
    "fsub": "sub",
    "fmul": "mul",
    "fdiv": "div",
    "frem": "fmod",
    "fneg": "negative",
}
# Of an ordered comparison; unordered ones are the contrary of another.
ORDERED: Final = {"oeq": "eq", "olt": "lt", "ole": "le", "ogt": "gt", "oge": "ge"}
CONTRARY: Final = {"une": "oeq", "uge": "olt", "ugt": "ole", "ule": "ogt", "ult": "oge"}
FLIPPED: Final = {"eq": "eq", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
NAME: Final = r'%(?:"[^"]*"|[-\w.$]+)'
NUMBER: Final = r"[-+]?(?:0x[0-9A-Fa-f]+|\d[\d.]*(?:e[-+]?\d+)?|inf|nan)"
VALUE: Final = rf"({NAME}|{NUMBER}|true|false|undef|poison)"
FLAGS: Final = r"(?:(?:fast|nnan|ninf|nsz|arcp|contract|afn|reassoc|nneg|exact) )*"
# How many instructions an element takes; about 20 for any other function.
OF_LANES: Final = frozenset({"atan2", "hypot"})  # a number is no operand of these
SHORT: Final = "abs add both choose contrary either mul negative sub"
COSTS: Final = dict.fromkeys([*SHORT.split(), *FLIPPED], 1)


class NotStraight(Exception):
    """What lanes cannot do: a loop, memory, integers; the text says what."""


class LaneStep(NamedTuple):
    """One value: a function of the lane algebra, or of `OWN`, and its operands."""

    name: str
    function: str
    operands: tuple[Operand, ...]


def compare(m: Any, symbol: str, x: Any, y: Any) -> Any:
    """A comparison; with a number as if lanes had all its digits."""
    if isinstance(x, float):
        return compare(m, FLIPPED[symbol], y, x)
    if isinstance(y, float) and x.dtype is not None and x.dtype.itemsize < 8:
        near = float(x.dtype.type(y))
        if near > y:
            symbol = {"le": "lt", "gt": "ge"}.get(symbol, symbol)
        elif near < y:
            symbol = {"lt": "le", "ge": "gt"}.get(symbol, symbol)
        if near != y and symbol == "eq":
            return m.lt(m.abs(x), 0.0)  # of none
        y = near
    return m.call(symbol, x, y)


def select(m: Any, condition: Any, x: Any, y: Any) -> Any:
    """One or the other, where the condition may be known."""
    if isinstance(condition, bool):
        return x if condition else y
    if isinstance(x, bool) or isinstance(y, bool):
        chosen = both(m, condition, x)
        return either(m, chosen, both(m, contrary(m, condition), y))
    return m.select(condition, x, y)


def both(m: Any, x: Any, y: Any) -> Any:
    """And."""
    if isinstance(x, bool):
        return y if x else False
    if isinstance(y, bool):
        return x if y else False
    return m.and_(x, y)


def either(m: Any, x: Any, y: Any) -> Any:
    """Or."""
    if isinstance(x, bool):
        return True if x else y
    if isinstance(y, bool):
        return True if y else x
    return m.or_(x, y)


def contrary(m: Any, x: Any) -> Any:
    """Not."""
    return not x if isinstance(x, bool) else m.invert(x)


def larger(m: Any, x: Any, y: Any) -> Any:
    """C's fmax: the number, where the other one is none."""
    return m.select(m.isnan(x), y, m.select(m.isnan(y), x, m.maximum(x, y)))


def smaller(m: Any, x: Any, y: Any) -> Any:
    """C's fmin."""
    return m.select(m.isnan(x), y, m.select(m.isnan(y), x, m.minimum(x, y)))


OWN: Final[dict[str, Callable[..., Any]]] = {
    **{
        symbol: lambda m, x, y, symbol=symbol: compare(m, symbol, x, y)
        for symbol in FLIPPED
    },
    "choose": select,
    "both": both,
    "either": either,
    "contrary": contrary,
    "differ": lambda m, x, y: either(m, x, y) if x is y else m.xor(x, y),
    "fmax": larger,
    "fmin": smaller,
    "maxnum": larger,
    "minnum": smaller,
    "fma": lambda m, x, y, z: x * y + z,
    "fmuladd": lambda m, x, y, z: x * y + z,
    "unordered": lambda m, x, y: either(m, is_nan(m, x), is_nan(m, y)),
}


CALLED: Final = frozenset({"fma", "fmax", "fmin", "fmuladd", "maxnum", "minnum"})


def is_nan(m: Any, x: Any) -> Any:
    """Whether a lane or a number is NaN."""
    return x != x if isinstance(x, float) else m.isnan(x)


def as_lane(m: Any, x: Any, like: Any) -> Any:
    """A number in every lane."""
    return m.select(m.eq(like, like), x, x) if isinstance(x, float) else x


# The text


class TextBlock(NamedTuple):
    """Instructions that run one after the other, and what may follow."""

    name: str
    lines: list[str]

    @property
    def follows(self) -> list[str]:
        """The blocks that can be next."""
        return re.findall(rf"label ({NAME})", self.lines[-1])


def blocks_of(text: str, name: str) -> tuple[list[str], dict[str, TextBlock]]:
    """The parameters that are floats and the blocks of a function, by name."""
    quoted = re.escape(name)
    found = re.search(rf'^define [^\n]*@"?{quoted}"?\(([^\n]*)\)[^\n]*{{\n', text, re.M)
    if found is None:
        raise NotStraight("no function")
    body = text[found.end() : text.index("\n}", found.end())]
    parameters = re.findall(rf"double[^,]*? ({NAME})", found.group(1))
    blocks: dict[str, TextBlock] = {}
    lines: list[str] = []
    for line in body.split("\n"):
        label = re.match(r'("[^"]*"|[-\w.$]+):', line)
        if label is not None:
            lines = []
            blocks[f"%{label.group(1)}"] = TextBlock(f"%{label.group(1)}", lines)
        elif line.strip():
            if not blocks:
                blocks["%"] = TextBlock("%", lines)
            lines.append(line.strip())
    return parameters, blocks


def in_order(blocks: Mapping[str, TextBlock]) -> list[TextBlock]:
    """The blocks, each behind those that lead to it."""
    waiting = dict.fromkeys(blocks, 0)
    for block in blocks.values():
        for following in block.follows:
            waiting[following] += 1
    ready = [next(iter(blocks))]
    found = []
    while ready:
        block = blocks[ready.pop()]
        found.append(block)
        for following in block.follows:
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    if len(found) < len(blocks):
        raise NotStraight("a loop")
    return found


class LaneProgram:
    """A scalar function as steps of the lane algebra; called as a record's `scalar`.

    >>> text = '''define i32 @f(ptr %retptr, ptr %excinfo, double %x) {
    ... entry:
    ...   %is.less = fcmp olt double %x, 0.000000e+00
    ...   br i1 %is.less, label %end, label %far
    ... far:
    ...   %y = call double @llvm.sqrt.f64(double %x)
    ...   br label %end
    ... end:
    ...   %out = phi double [ %y, %far ], [ 0.000000e+00, %entry ]
    ...   store double %out, ptr %retptr, align 8
    ...   ret i32 0
    ... }'''
    >>> for step in LaneProgram(text, "f").steps:
    ...     print(step.name, "=", step.function, *step.operands)
    v1 = lt v0 0.0
    v3 = sqrt v0
    v5 = choose v1 0.0 v3
    """

    def __init__(self, text: str, name: str) -> None:
        parameters, blocks = blocks_of(text, name)
        self.steps: list[LaneStep] = []
        self.names: dict[str, Operand] = {}
        self.reached: dict[Edge | str, Operand] = {}
        self.leads: dict[str, list[str]] = {each: [] for each in blocks}
        self.result: Operand = None
        self.arity = len(parameters)
        for at, each in enumerate(parameters):
            self.names[each] = f"v{at}"
        self.count = self.arity
        for block in in_order(blocks):
            self.enter(block.name)
            for line in block.lines:
                self.read(block.name, line)
        if self.result is None:
            raise NotStraight("no result")
        self.steps = self.needed()

    def __call__(self, m: Any, *lanes: Any) -> Any:
        values: dict[str, Any] = {f"v{at}": x for at, x in enumerate(lanes)}
        for name, function, operands in self.steps:
            given = [values[x] if isinstance(x, str) else x for x in operands]
            if function in OF_LANES:
                given = [as_lane(m, x, lanes[0]) for x in given]
            own = OWN.get(function)
            found = m.call(function, *given) if own is None else own(m, *given)
            values[name] = found
        return as_lane(m, values.get(self.result, self.result), lanes[0])

    def needed(self) -> list[LaneStep]:
        """The steps that lead to the result: not each condition is asked for."""
        wanted, found = {self.result}, []
        for step in reversed(self.steps):
            if step.name in wanted:
                wanted.update(step.operands)
                found.append(step)
        return found[::-1]

    @property
    def text(self) -> str:
        """What it computes; equal functions have equal texts."""
        return f"{self.arity} {self.steps} {self.result}"

    @property
    def cost(self) -> float:
        """About how many instructions an element takes."""
        return float(sum(COSTS.get(step.function, 20) for step in self.steps))

    # One line of the text

    def add(self, function: str, *operands: Operand) -> str:
        """A new value."""
        self.steps.append(LaneStep(f"v{self.count}", function, operands))
        self.count += 1
        return self.steps[-1].name

    def value(self, text: str) -> Operand:
        """An operand in the text: the name of a value, or a number."""
        if text.startswith("%"):
            if text not in self.names:
                raise NotStraight(f"the value {text}")
            return self.names[text]
        if text in ("true", "false"):
            return text == "true"
        if text in ("undef", "poison"):
            return 0.0
        if text.startswith("0x"):
            (found,) = struct.unpack("<d", int(text, 16).to_bytes(8, "little"))
            return float(found)
        return float(text)

    def enter(self, name: str) -> None:
        """Note on which condition a block runs."""
        edges = [self.reached[before, name] for before in self.leads[name]]
        condition: Operand = not edges
        for edge in edges:
            condition = self.known(either, "either", condition, edge)
        self.reached[name] = condition

    def known(
        self, function: Callable[..., Any], name: str, *operands: Operand
    ) -> Operand:
        """A condition; no step where it is known already."""
        if any(isinstance(x, bool) for x in operands):
            return function(None, *operands)
        return self.add(name, *operands)

    def read(self, block: str, line: str) -> None:
        """One instruction."""
        line = re.sub(r"(, ![.\w]+ !\d+)+$", "", line)  # how likely it is, say
        found = re.match(
            rf"({NAME}) = (?:(?:tail|musttail|notail) )?(\w+) {FLAGS}", line
        )
        if found is not None:
            target, kind = found.groups()
            rest = line[found.end() :]
            self.names[target] = self.computed(block, kind, rest)
        elif line.startswith("br "):
            self.branch(block, line)
        elif line.startswith("store double"):
            self.store(block, line)
        elif line != "ret i32 0":
            raise NotStraight(line)

    def branch(self, block: str, line: str) -> None:
        condition = self.reached[block]
        following = re.findall(rf"label ({NAME})", line)
        asked = re.match(rf"br i1 {VALUE}", line)
        ways: list[Operand] = [True]
        if asked is not None:
            is_so = self.value(asked.group(1))
            ways = [is_so, self.known(contrary, "contrary", is_so)]
        for name, way in zip(following, ways, strict=True):
            if block in self.leads[name]:
                raise NotStraight("two ways from one block to another")
            self.leads[name].append(block)
            self.reached[block, name] = self.known(both, "both", condition, way)

    def store(self, block: str, line: str) -> None:
        """The result, of those runs that come to this block."""
        found = re.match(rf"store double {VALUE}, ptr %retptr", line)
        if found is None:
            raise NotStraight(line)
        value = self.value(found.group(1))
        if self.result is not None:
            value = self.add("choose", self.reached[block], value, self.result)
        self.result = value

    def computed(self, block: str, kind: str, rest: str) -> Operand:
        """The value of an instruction."""
        if kind == "phi":
            return self.met(block, rest)
        if kind == "call":
            return self.called(rest)
        operands = [self.value(x) for x in re.findall(rf"(?<![\w.]){VALUE}", rest)]
        if kind in ARITHMETIC and rest.startswith("double "):
            return self.add(ARITHMETIC[kind], *operands)
        if kind == "fcmp":
            symbol, *_ = rest.split()
            return self.compared(symbol, *operands)
        if kind == "select" and re.search(r", (?:double|i1) ", rest):
            return self.add("choose", *operands)
        if kind in ("and", "or", "xor") and rest.startswith("i1 "):
            return self.logic(kind, *operands)
        if kind in ("uitofp", "zext") and rest.startswith("i1 "):
            return self.add("choose", operands[0], 1.0, 0.0)
        if kind == "fptosi" and rest.endswith(("i64", "i32")):
            return self.add("trunc", *operands)
        if kind in ("sitofp", "freeze") and not rest.startswith("i1 "):
            return operands[0]
        raise NotStraight(f"{kind} {rest}")

    def logic(self, kind: str, x: Operand, y: Operand) -> Operand:
        if kind == "xor":
            if isinstance(y, bool):
                return self.known(contrary, "contrary", x) if y else x
            return self.add("differ", x, y)
        if kind == "and":
            return self.known(both, "both", x, y)
        return self.known(either, "either", x, y)

    def compared(self, symbol: str, x: Operand, y: Operand) -> Operand:
        if symbol in ORDERED:
            return self.add(ORDERED[symbol], x, y)
        if symbol in CONTRARY:
            return self.add("contrary", self.compared(CONTRARY[symbol], x, y))
        if symbol == "uno":
            return self.add("unordered", x, y)
        if symbol == "ord":
            return self.add("contrary", self.add("unordered", x, y))
        less, more = (self.compared(each, x, y) for each in ("olt", "ogt"))
        differ = self.add("either", less, more)
        return differ if symbol == "one" else self.add("contrary", differ)

    def called(self, rest: str) -> Operand:
        found = re.match(r'[^@]*double @"?([\w.]+)"?\((.*?)\)', rest)
        if found is None:
            raise NotStraight(f"a call: {rest}")
        name = found.group(1).removeprefix("llvm.").partition(".")[0]
        given = re.findall(rf"(double|i32) (?:\w+ )*{VALUE}", found.group(2))
        operands = [self.value(x) for _, x in given]
        if name == "powi" and isinstance(operands[1], float):
            return self.power(operands[0], int(operands[1]))
        if name in CALLED:
            return self.add(name, *operands)
        if name not in FUNCTIONS:
            raise NotStraight(f"the function {name}")
        return self.add(FUNCTIONS[name], *operands)

    def power(self, x: Operand, exponent: int) -> Operand:
        """A whole power, by squaring."""
        power, square, left = None, x, abs(exponent)
        while left:
            if left & 1:
                power = square if power is None else self.add("mul", power, square)
            left >>= 1
            if left:
                square = self.add("mul", square, square)
        if power is None:
            return 1.0
        return power if exponent > 0 else self.add("div", 1.0, power)

    def met(self, block: str, rest: str) -> Operand:
        """What comes from the block before, of those that lead here."""
        pairs = re.findall(rf"\[ {VALUE}, ({NAME}) \]", rest)
        if not rest.startswith(("double", "i1")):
            raise NotStraight(f"phi {rest}")
        (first, _), *others = pairs
        found = self.value(first)
        for text, before in others:
            condition = self.reached[before, block]
            value = self.value(text)
            if isinstance(value, bool) and isinstance(found, bool):
                found = (
                    value
                    if value == found
                    else self.add("choose", condition, value, found)
                )
            else:
                found = self.add("choose", condition, value, found)
        return found


# The record


def scalar_record(
    name: str,
    program: LaneProgram | None,
    text: str,
    arity: int,
    loop: Callable[..., Any],
    deriv: Sequence[Rule | None],
    digests: Sequence[str],
) -> Op:
    """The record of a user's function of scalars; one for equal functions.

    text     of what it computes, where there is no `program`
    loop     performs it on arrays of doubles
    digests  of its derivatives
    """
    made_of = "\n".join([text if program is None else program.text, *digests])
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    plain = re.sub(r"\W", "_", name).strip("_").lower() or "function"
    full = f"numba_{plain}_{digest}"
    known = UNLISTED.get(full)
    if known is not None:
        return known

    def infer(*types: Any) -> TensorType:
        if len(types) != arity:
            raise ArgumentTypeError(f"takes {arity} operands, got {len(types)}")
        tensors = [tensor(x) for x in types]
        dtype = same_dtype(*tensors)
        check_kind(dtype, ("float",))
        return TensorType(dtype, broadcast_shapes(*tensors))

    def batch(size: Size, inputs: Sequence[Node], batched: Sequence[bool]) -> Node:
        ranks = [x.ndim - flag for x, flag in zip(inputs, batched, strict=True)]
        pairs = zip(inputs, batched, strict=True)
        return op(*[lift(x, max(ranks)) if flag else x for x, flag in pairs])

    op = Op(
        full,
        type_rule=infer,
        eval=in_double(loop),
        deriv=deriv,
        vjp=deriv_vjp(deriv),
        jvp=deriv_jvp(deriv),
        batch=batch,
        scalar=program,
        cost=None if program is None else program.cost,
    )
    return register_unlisted(op)
