"""Symbolic sizes: what stands in a shape where the number is not known yet.

A `Dim` is a polynomial with integer coefficients over atoms. An atom is a name (an
unknown size) or an application of `//`, `%`, `max` or `min` to sizes. A monomial is a
sorted tuple of atoms, repeated for powers; a Dim keeps its monomials with their
coefficients, leading term first, and its printed form. The form is normal: sums and
products that are equal as polynomials have the same terms, so they print, compare and
hash alike, and whatever turns out constant is a plain `int`, never a Dim. Across `//`,
`%`, `max` and `min` it is as normal as a few exact rules make it: equal Dims always
have equal values, unequal Dims may happen to have them too.

An unknown stands for sizes from 2 on, because sizes 0 and 1 broadcast and slice
differently and are traced on their own: that is why `min(n, 1)` is 1. A name with a
leading underscore is a size that only the run can tell, such as how many elements a
mask keeps; it stands for sizes from 0 on. `binding.bind_shapes` checks this, once,
where the numbers enter. A quotient is undefined where its divisor is 0, so `n*m // n`
is `m`.

Start reading at `Dim`, then `_floordiv`, which holds the rules that need thought.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from math import gcd, inf, isinf, prod
from numbers import Integral
from typing import NamedTuple, NoReturn, TypeAlias


class Atom(NamedTuple):
    """What a polynomial is over: a name, or an operator applied to sizes.

    The first two fields decide every comparison: names come before applications, and
    no two atoms print alike.
    """

    is_application: bool
    text: str
    kind: str  # "name", "//", "%", "max" or "min"
    operands: tuple[Size, ...]
    low: float  # the value is proven to lie between these; an int or an infinity
    high: float


Monomial: TypeAlias = tuple[Atom, ...]
Terms: TypeAlias = Mapping[Monomial, int]


def _operator(apply: Callable[[Size, Size], Size]) -> Callable[[Dim, Size], Size]:
    """A method of Dim that leaves what is not a size to the other operand.

    A Tensor knows what to do with a Dim; a Dim knows nothing of Tensors.
    """

    def method(self: Dim, other: object) -> Size:
        size = _as_size(other)
        return NotImplemented if size is None else apply(self, size)

    return method


class Dim:
    """A symbolic size: an unknown, or an expression over unknowns.

    >>> n, m = Dim("n"), Dim("m")
    >>> print(2 * n + 1, n * m - 3, (n + 1) // 2, n % 4, dim_max(n, m), sep=";  ")
    2*n + 1;  m*n - 3;  (n + 1)//2;  n % 4;  max(m, n)
    >>> n + m - n == m, n - n, 6 * n * m // (2 * n)
    (True, 0, Dim('3*m'))
    """

    __slots__ = ("_terms", "_text")
    _terms: dict[Monomial, int]
    _text: str

    # NumPy's scalars and arrays leave operators with a Dim to the Dim.
    __array_ufunc__ = None

    def __init__(self, name: str) -> None:
        is_reserved = keyword.iskeyword(name) or name in ("max", "min")
        if is_reserved or not (name.isascii() and name.isidentifier()):
            raise ValueError(
                f"{name!r} cannot name a size: write an identifier such as 'n', "
                "or use parse_dim for an expression"
            )
        self._terms = {(Atom(False, name, "name", (), smallest_value(name), inf),): 1}
        self._text = name

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Dim({self._text!r})"

    def __eq__(self, other: object) -> bool:
        # Normal forms print alike exactly when they are alike.
        return self._text == other._text if isinstance(other, Dim) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Callable[[str], Size], tuple[str]]:
        return parse_dim, (self._text,)

    def __neg__(self) -> Size:
        return _multiply(-1, self)

    __add__ = _operator(lambda self, other: _add(self, other))
    __radd__ = _operator(lambda self, other: _add(other, self))
    __sub__ = _operator(lambda self, other: _add(self, -other))
    __rsub__ = _operator(lambda self, other: _add(other, -self))
    __mul__ = _operator(lambda self, other: _multiply(self, other))
    __rmul__ = _operator(lambda self, other: _multiply(other, self))
    __floordiv__ = _operator(lambda self, other: _floordiv(self, other))
    __rfloordiv__ = _operator(lambda self, other: _floordiv(other, self))
    __mod__ = _operator(lambda self, other: _mod(self, other))
    __rmod__ = _operator(lambda self, other: _mod(other, self))

    def __bool__(self) -> NoReturn:
        self._refuse("cannot be a condition")

    def __int__(self) -> NoReturn:
        self._refuse("cannot be turned into an int")

    def __index__(self) -> NoReturn:
        self._refuse("cannot be an index, a count or the end of a range")

    def __lt__(self, other: object) -> NoReturn:
        self._refuse(f"cannot be ordered against {other}")

    __le__ = __gt__ = __ge__ = __lt__

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"the size {self} is symbolic: it has no value before the shapes are known "
            f"and {what}. Give it one with evaluate(size, bindings), or choose between "
            "sizes with dim_max and dim_min"
        )


Size: TypeAlias = int | Dim
Shape: TypeAlias = tuple[Size, ...]


def dim_max(*sizes: Size) -> Size:
    """The largest of some sizes; those that provably never are alone are dropped.

    >>> n, m = Dim("n"), Dim("m")
    >>> dim_max(n, dim_max(m, n)), dim_max(n, 1), dim_max(n - 3, 0), dim_max(2, 3)
    (Dim('max(m, n)'), Dim('n'), Dim('max(n - 3, 0)'), 3)
    """
    return _extremum("max", sizes)


def dim_min(*sizes: Size) -> Size:
    """The smallest of some sizes; those that provably never are alone are dropped.

    >>> n, m = Dim("n"), Dim("m")
    >>> dim_min(n, m), dim_min(n, 1), dim_min(n // 2, n), dim_min(2, 3)
    (Dim('min(m, n)'), 1, Dim('n//2'), 2)
    """
    return _extremum("min", sizes)


def evaluate(size: Size, bindings: Mapping[str, int]) -> int:
    """The number a size is when its unknowns are bound.

    The values are trusted to be ones the unknowns stand for, see the module's text.

    >>> n = Dim("n")
    >>> evaluate((n + 1) // 2, {"n": 6}), evaluate(4, {})
    (3, 4)
    """

    def bound(name: str) -> int:
        if name not in bindings:
            raise KeyError(f"the size {size} needs {name}, bound are {dict(bindings)}")
        return operator.index(bindings[name])

    try:
        value = _replace(require_size(size), bound)
    except ZeroDivisionError as error:
        raise ZeroDivisionError(f"in the size {size}, {error}") from error
    assert isinstance(value, int)  # sizes over ints are ints
    return value


def substitute(size: Size, replacements: Mapping[str, Size]) -> Size:
    """The size with names replaced, all at once; names not mentioned stay.

    >>> n, m = Dim("n"), Dim("m")
    >>> substitute(n * m + n // 2, {"n": 2 * m, "m": n}), substitute(n + 1, {"n": 4})
    (Dim('2*m*n + m'), 5)
    """

    def replaced(name: str) -> Size:
        return require_size(replacements[name] if name in replacements else Dim(name))

    return _replace(require_size(size), replaced)


def free_names(size: Size) -> frozenset[str]:
    """The unknowns a size depends on.

    >>> sorted(free_names(dim_max(Dim("n") // 2, Dim("m")))), free_names(3)
    (['m', 'n'], frozenset())
    """
    names: set[str] = set()
    for atom in (atom for monomial in terms_of(size) for atom in monomial):
        names.update(*map(free_names, atom.operands))
        if atom.kind == "name":
            names.add(atom.text)
    return frozenset(names)


# Sizes as terms


def _as_size(value: object) -> Size | None:
    """The value as a size, None if it is none; NumPy's integers are Integral too."""
    if type(value) is int or isinstance(value, Dim):
        return value
    return int(value) if isinstance(value, Integral) else None


def require_size(value: object) -> Size:
    size = _as_size(value)
    if size is None:
        raise TypeError(f"a size is an int or a Dim, not {value!r}")
    return size


def smallest_value(name: str) -> int:
    """The smallest size an unknown of this name stands for."""
    return 0 if name.startswith("_") else 2


def terms_of(size: Size) -> Terms:
    return size._terms if isinstance(size, Dim) else {(): size} if size else {}


def _of_terms(terms: Terms) -> Size:
    """The only way from terms to a size: drops zeros, finds constants, sorts."""
    kept = [(monomial, c) for monomial, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    # Higher degree first, then by atom, the constant last. Division relies on this
    # being an order that multiplication by a monomial preserves.
    kept.sort(key=lambda term: (-len(term[0]), term[0]))
    dim = Dim.__new__(Dim)
    dim._terms = dict(kept)
    dim._text = _print_terms(dim._terms)
    return dim


def _print_terms(terms: Terms) -> str:
    text = ""
    for monomial, c in terms.items():
        is_bare = len(monomial) == 1 and (c == 1 or (c == -1 and text))
        factors = [a.text if is_bare else _parenthesised(a) for a in monomial]
        if abs(c) != 1 or not monomial:
            factors.insert(0, str(abs(c)))
        if text:
            text += " - " if c < 0 else " + "
        elif c < 0:
            text = "-"
        text += "*".join(factors)
    return text


def _parenthesised(atom: Atom) -> str:
    """As a factor or after a sign: m*n//2 would be (m*n)//2, and -n//2 be (-n)//2."""
    return f"({atom.text})" if atom.kind in ("//", "%") else atom.text


def _sole_atom(size: Size) -> Atom | None:
    """The atom that the size is, with nothing added or multiplied, else None."""
    match list(terms_of(size).items()):
        case [((Atom() as atom,), 1)]:
            return atom
    return None


def _add(left: Size, right: Size) -> Size:
    terms = dict(terms_of(left))
    for monomial, c in terms_of(right).items():
        terms[monomial] = terms.get(monomial, 0) + c
    return _of_terms(terms)


def _multiply(left: Size, right: Size) -> Size:
    terms: dict[Monomial, int] = {}
    for a, c in terms_of(left).items():
        for b, d in terms_of(right).items():
            monomial = tuple(sorted(a + b)) if a and b else a or b
            terms[monomial] = terms.get(monomial, 0) + c * d
    return _of_terms(terms)


def _replace(size: Size, value_of: Callable[[str], Size]) -> Size:
    """Compute the size anew with other values for its names."""
    total: Size = 0
    for monomial, c in terms_of(size).items():
        product: Size = c
        for atom in monomial:
            if atom.kind == "name":
                product = product * value_of(atom.text)
                continue
            operands = [_replace(operand, value_of) for operand in atom.operands]
            if atom.kind in ("max", "min"):
                product = product * _extremum(atom.kind, operands)
            else:
                divide = _floordiv if atom.kind == "//" else _mod
                product = product * divide(*operands)
        total = total + product
    return total


# Division


def _floordiv(x: Size, d: Size) -> Size:
    """Take out of x // d all that divides exactly; an atom is left of the rest.

    The rules, for integers, with g and e positive:
        (q*d + r) // d      = q + r // d
        (g*y + c) // (g*e)  = y // e            where 0 <= c < g
        (z // f + p) // e   = (z + p*f) // (f*e)
    """
    if d == 0:
        raise ZeroDivisionError(f"{x} // 0 has no value")
    if isinstance(x, int) and isinstance(d, int):
        return x // d
    if leading_term(d)[1] < 0:
        return _floordiv(-x, -d)
    q, r = _divide(x, d)
    if r == 0:
        return q
    g, y, e, _ = _cancel(r, d)
    if g != 1:
        return q + _floordiv(y, e)
    low, high = _quotient_bounds(y, e)
    if low == high:
        return q + int(low)
    inner = [
        term for term in terms_of(y).items() if [a.kind for a in term[0]] == ["//"]
    ]
    if len(inner) == 1 and inner[0][1] == 1 and _is_positive(e):
        z, f = inner[0][0][0].operands
        return q + _floordiv(z + (y - _of_terms(dict(inner))) * f, f * e)
    text = f"{_print_operand(y)}//{_print_operand(e)}"
    return q + _of_terms({(Atom(True, text, "//", (y, e), low, high),): 1})


def _mod(x: Size, d: Size) -> Size:
    """The remainder that belongs to `_floordiv`, by the same rules.

    (q*d + r) % d = r % d,  (g*y + c) % (g*e) = g*(y % e) + c  where 0 <= c < g.
    """
    if d == 0:
        raise ZeroDivisionError(f"{x} % 0 has no value")
    if isinstance(x, int) and isinstance(d, int):
        return x % d
    if leading_term(d)[1] < 0:
        return -_mod(-x, -d)
    _, r = _divide(x, d)
    if r == 0:
        return 0
    g, y, e, c = _cancel(r, d)
    if g != 1:
        return g * _mod(y, e) + c
    low, high = _quotient_bounds(y, e)
    if low == high:
        return y - int(low) * e
    low, high = (0, _bounds(e)[1] - 1) if _is_positive(e) else (-inf, inf)
    text = f"{_print_operand(y)} % {_print_operand(e)}"
    return _of_terms({(Atom(True, text, "%", (y, e), low, high),): 1})


def _print_operand(size: Size) -> str:
    if isinstance(size, int):
        return str(size) if size >= 0 else f"({size})"
    atom = _sole_atom(size)
    return f"({size})" if atom is None else _parenthesised(atom)


def leading_term(size: Size) -> tuple[Monomial, int]:
    return next(iter(terms_of(size).items()))


def _divide(x: Size, d: Size) -> tuple[Size, Size]:
    """q and r with x == q*d + r, by long division on leading terms.

    A divisor of one term takes from every term of x what it can, so r depends on x
    modulo d only. One of several terms must divide x without rest or takes nothing:
    a partial division is right too but reads badly, m//(m + n) as (-n)//(m + n) + 1.
    """
    lead, lead_coefficient = leading_term(d)
    q: Size = 0
    r = x
    while r != 0:
        step: dict[Monomial, int] = {}
        for monomial, c in terms_of(r).items():
            rest = list(monomial)
            if c // lead_coefficient and all(_take(atom, rest) for atom in lead):
                step[tuple(rest)] = c // lead_coefficient
        if not step:
            break
        q = q + _of_terms(step)
        r = r - _of_terms(step) * d
    return (q, r) if len(terms_of(d)) == 1 or r == 0 else (0, x)


def _take(atom: Atom, atoms: list[Atom]) -> bool:
    """Remove the atom once; whether it was there."""
    if atom not in atoms:
        return False
    atoms.remove(atom)
    return True


def _cancel(x: Size, d: Size) -> tuple[Size, Size, Size, int]:
    """g, y, e, c with x == g*y + c and d == g*e: the common factor of x and d.

    The constant of x need not share the factor where d is positive: rounding down
    takes care of what it has too much, c.
    """
    constant = terms_of(x).get((), 0)
    coefficients = [*terms_of(d).values(), *terms_of(x - constant).values()]
    if not _is_positive(d):
        coefficients.append(constant)
    content = gcd(*coefficients)
    c = constant % content

    shared = leading_term(d)[0]
    for monomial in (*terms_of(d), *terms_of(x)):
        atoms = list(monomial)
        shared = tuple(atom for atom in shared if _take(atom, atoms))
    if content == 1 and not shared:
        return 1, x, d, 0
    g = _of_terms({shared: content})
    return g, _divide(x - c, g)[0], _divide(d, g)[0], c


# Bounds: between which numbers a size is proven to lie


def _bounds(size: Size) -> tuple[float, float]:
    """Bounds by interval arithmetic on what the atoms have above their least values.

    Of m*n - n, each monomial on its own could be anything; with m = 2 + i, n = 2 + j
    it is i*j + 2*i + j + 2, which is at least 2.
    """
    low: float = 0
    high: float = 0
    for monomial, c in _above_least_values(size).items():
        spans = [(atom.low - _base(atom), atom.high - _base(atom)) for atom in monomial]
        ends: tuple[float, ...]
        if len(spans) == 1:
            ends = tuple(c * end for end in spans[0])
        elif any(start < 0 for start, _ in spans):
            ends = (-inf, inf)
        else:  # from all of them at 0; a constant has none
            ends = (0 if spans else c, c * prod(end for _, end in spans))
        low += min(ends)
        high += max(ends)
    return low, high


def _above_least_values(size: Size) -> Terms:
    """The terms of the size over its atoms less their least values, where known."""
    terms: dict[Monomial, int] = {}
    for monomial, c in terms_of(size).items():
        products: list[tuple[Monomial, int]] = [((), c)]
        for atom in monomial:
            above = [((*rest, atom), d) for rest, d in products]
            products = [(rest, d * _base(atom)) for rest, d in products] + above
        for rest, d in products:
            terms[rest] = terms.get(rest, 0) + d
    return {monomial: c for monomial, c in terms.items() if c}


def _base(atom: Atom) -> int:
    return 0 if isinf(atom.low) else int(atom.low)


def _is_positive(size: Size) -> bool:
    return _bounds(size)[0] > 0


def _quotient_bounds(x: Size, d: Size) -> tuple[float, float]:
    if not _is_positive(d):
        return -inf, inf

    def quotient(a: float, b: float) -> float:
        if isinf(b):
            return 0 if a >= 0 else -1
        return a if isinf(a) else a // b

    (low, high), (d_low, d_high) = _bounds(x), _bounds(d)
    return (
        min(quotient(low, d_low), quotient(low, d_high)),
        max(quotient(high, d_low), quotient(high, d_high)),
    )


def _is_at_least(left: Size, right: Size) -> bool:
    """Whether left >= right is proven, by one of three ways to write left - right.

    As it is; times the divisors, so that f*(x//f) = x - x % f lets x cancel, which
    proves n >= n//2; and with x % d = x - d*(x//d), which proves n >= n % 4.
    """
    difference = scaled = expanded = left - right
    scale = 1
    for monomial, c in terms_of(difference).items():
        atom = next((atom for atom in monomial if atom.kind in ("//", "%")), None)
        if atom is None:
            continue
        x, d = atom.operands
        rest = list(monomial)
        rest.remove(atom)
        factor = _of_terms({tuple(rest): c})
        term = _of_terms({monomial: c})
        if atom.kind == "%":
            expanded = expanded - term + factor * (x - d * (x // d))
        elif isinstance(d, int):
            scaled = (scaled - scale * term) * d + scale * factor * (x - x % d)
            scale *= d
    if _bounds(difference)[0] >= 0 or _bounds(expanded)[0] >= 0:
        return True
    return _bounds(scaled)[0] > -scale  # an integer above -1 is at least 0


def _extremum(which: str, sizes: Sequence[Size]) -> Size:
    if not sizes:
        raise TypeError(f"dim_{which} needs at least one size")
    choose = max if which == "max" else min
    numbers: list[int] = []
    symbolic: set[Dim] = set()
    for size in map(require_size, sizes):
        atom = _sole_atom(size)
        nested = atom.operands if atom is not None and atom.kind == which else (size,)
        numbers += [operand for operand in nested if isinstance(operand, int)]
        symbolic |= {operand for operand in nested if isinstance(operand, Dim)}

    def wins(left: Size, right: Size) -> bool:
        return _is_at_least(*((left, right) if which == "max" else (right, left)))

    candidates: list[Size] = [*sorted(symbolic, key=str)]
    candidates += [choose(numbers)] if numbers else []
    kept: list[Size] = []
    for size in candidates:
        if not any(wins(other, size) for other in kept):
            kept = [other for other in kept if not wins(size, other)] + [size]
    if len(kept) == 1:
        return kept[0]
    lows, highs = zip(*map(_bounds, kept), strict=True)
    text = f"{which}({', '.join(map(str, kept))})"
    atom = Atom(True, text, which, tuple(kept), choose(lows), choose(highs))
    return _of_terms({(atom,): 1})


# Reading


_BINARY: dict[type[ast.operator], Callable[[Size, Size], Size]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _floordiv,
    ast.Mod: _mod,
}


def parse_dim(text: str) -> Size:
    """Read a size as it is printed; a ValueError says what is not one.

    >>> parse_dim("(n + 1)//2 + 3"), parse_dim("max(2*n, m) - 0*n"), parse_dim("12")
    (Dim('(n + 1)//2 + 3'), Dim('max(2*n, m)'), 12)
    """
    try:
        # Python's grammar also knows comments, line breaks and strings.
        if not re.fullmatch(r"[\w+\-*/%(), ]+", text, re.ASCII):
            raise ValueError("it is empty or has a character that no size contains")
        return _read(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(
            f"{text!r} is not a size: {reason}. "
            "A size is made of names, integers, + - * // %, max(...) and min(...)"
        ) from error


def _read(node: ast.expr) -> Size:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return Dim(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_read(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_read(left), _read(right))
        case ast.Call(func=ast.Name(id="max" | "min" as which), keywords=[]) if (
            len(node.args) > 1
        ):
            return _extremum(which, [_read(argument) for argument in node.args])
        case _:
            raise ValueError(f"{ast.unparse(node)!r} does not belong in it")
