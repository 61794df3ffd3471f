"""Random bits from Philox4x32-10, and what they become.

The data structure is the state, one `uint32[6]` array: the key (2 words), then a
128-bit counter (4 words, least significant first). Block i of a state is the Philox
cipher of counter + i under the key: 4 random words that depend on nothing else, so
draws are pure functions of the state, any block can be computed alone, and vectorised
or parallel code has the same bits as this module.

States made here start with the low half of the counter at zero; key and high half, 128
bits together, name the stream and come from a hash. After 2**64 blocks a stream would
run into the one with the next high half: 584 years at a billion blocks per second.
Derived states (`split_state`, `fold_in`) are hashed under a changed key, so they share
nothing with what the parent itself draws.

A draw is `random_bits`, which counts the blocks, followed by one conversion of words:
`bits_to_uniform`, `bits_to_integers`, `bits_to_normal`, `permutation_from_bits`. All
conversions are integer arithmetic or exactly rounded operations: identical bits
everywhere.

Start reading at `philox4x32`, then `random_bits`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final, Literal, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tapejit.ops.quantile import normal_quantile

State = NDArray[np.uint32]
Words = NDArray[np.unsignedinteger[Any]]
Word = TypeVar("Word", int, NDArray[Any])

# The multipliers and key increments of Salmon et al., "Parallel random numbers: as easy
# as 1, 2, 3" (2011). The increments are the golden ratio and sqrt(3) - 1 in 32 bits.
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS: Final = (0x9E3779B9, 0xBB67AE85)
ROUNDS: Final = 10

# Uses of the cipher that must not meet, told apart by what is XORed into the key:
# the fractional parts of sqrt(2), sqrt(5), sqrt(7) and sqrt(11) in 64 bits.
SEEDING: Final = (0x6A09E667, 0xF3BCC908)
SPLITTING: Final = (0x3C6EF372, 0xFE94F82B)
FOLDING: Final = (0xA54FF53A, 0x5F1D36F1)
PROPOSING: Final = (0x510E527F, 0xADE682D1)

MASK32: Final = (1 << 32) - 1
MASK64: Final = (1 << 64) - 1
MASK128: Final = (1 << 128) - 1

# The arrays of one chunk fit the second-level cache.
CHUNK: Final = 1 << 13
# Below this, ints are faster than the 100 calls of NumPy that any chunk costs.
FEW_BLOCKS: Final = 16

# Significant bits of each float type: what a uniform number is made of.
SIGNIFICANT_BITS: Final = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def philox4x32(key: State, counter: State, blocks: int) -> State:
    """The blocks at counter, counter + 1, ... as `uint32[blocks, 4]`.

    The counter is a 128-bit number, least significant word first; adding the index of
    the block carries through all of it and wraps at the end.

    >>> zero = np.zeros(4, np.uint32)
    >>> [hex(word) for word in philox4x32(zero[:2], zero, 1)[0]]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    _check_words("key", key, 2)
    _check_words("counter", counter, 4)
    blocks = _count("blocks", blocks)
    first_key, first_counter = _to_int(key), _to_int(counter)
    out = np.empty((blocks, 4), np.uint32)
    if blocks <= FEW_BLOCKS:
        for row in range(blocks):
            out[row] = _encrypt(first_key, *_digits(first_counter + row))
        return out
    for start in range(0, blocks, CHUNK):
        chunk = out[start : start + CHUNK]
        low, high = _add_index((first_counter + start) & MASK128, len(chunk))
        digits = low & MASK32, low >> 32, high & MASK32, high >> 32
        for column, words in enumerate(_encrypt(first_key, *digits)):
            chunk[:, column] = words
    return out


def _encrypt(key: Any, x0: Word, x1: Word, x2: Word, x3: Word) -> Sequence[Word]:
    """The cipher of one counter in ints, or of many in arrays of 64 bits.

    The words hold 32 bits each and have room for their products.
    """
    key0, key1 = key & MASK32, key >> 32
    for _ in range(ROUNDS):
        product0, product2 = x0 * MULTIPLIERS[0], x2 * MULTIPLIERS[1]
        x0, x1 = (product2 >> 32) ^ x1 ^ key0, product2 & MASK32
        x2, x3 = (product0 >> 32) ^ x3 ^ key1, product0 & MASK32
        key0 = (key0 + KEY_INCREMENTS[0]) & MASK32
        key1 = (key1 + KEY_INCREMENTS[1]) & MASK32
    return x0, x1, x2, x3


def _add_index(counter: int, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Low and high 64 bits of counter, counter + 1, ..., count of them."""
    low, high = np.uint64(counter & MASK64), np.uint64(counter >> 64)
    sums = np.arange(count, dtype=np.uint64) + low
    return sums, high + (sums < low).astype(np.uint64)


def seed_state(seed: SupportsIndex) -> State:
    """The state of a seed, any integer from 0 on; every 64 bits of it are hashed in.

    Seeds below 2**64 have distinct states.

    >>> seed_state(0)
    array([3515254820, 3239784974,          0,          0, 3449426128,
           3227381335], dtype=uint32)
    """
    return _state_of(_absorb(np.array([*SEEDING, 0, 0], np.uint32), "seed", seed))


def advance(state: State, blocks: SupportsIndex) -> State:
    """The state after drawing this many blocks.

    >>> int(advance(seed_state(0), 5)[2])
    5
    """
    check_state(state)
    total = _to_int(state[2:]) + _count("blocks", blocks)
    out = state.copy()
    out[2:] = _digits(total)
    return out


def split_state(state: State, count: SupportsIndex) -> State:
    """States of `count` independent streams, one in each row of `uint32[count, 6]`.

    Row i depends on the state and on i, not on `count`. The state itself may go on
    drawing, and splitting it again after a draw gives other streams.

    >>> states = split_state(seed_state(0), 3)
    >>> states.shape, np.array_equal(states[:2], split_state(seed_state(0), 2))
    ((3, 6), True)
    """
    digest = _digest(state, SPLITTING)
    counter = np.array([0, 0, digest[2], digest[3]], np.uint32)
    return _state_of(philox4x32(digest[:2], counter, _count("count", count)))


def fold_in(state: State, data: SupportsIndex) -> State:
    """The state of an independent stream named by an integer from 0 on.

    >>> state = seed_state(0)
    >>> np.array_equal(fold_in(state, 1), fold_in(state, 2))
    False
    """
    return _state_of(_absorb(_digest(state, FOLDING), "data", data))


def _digest(state: State, purpose: tuple[int, int]) -> State:
    """Four words that name the state, counter included, for one purpose.

    Without it, splitting a state and splitting it one block later would be cuts of one
    sequence of streams and share all but the first.
    """
    check_state(state)
    key = state[:2] ^ np.array(purpose, np.uint32)
    digest: State = philox4x32(key, state[2:], 1)[0]
    return digest


def _absorb(digest: State, name: str, value: SupportsIndex) -> State:
    """Hash an integer into the digest, 64 bits at a time.

    For one digest this is injective below 2**64, since the cipher is a bijection.
    """
    rest = operator.index(value)
    if rest < 0:
        raise ValueError(f"{name} must be an integer from 0 on, not {rest}")
    while True:
        limb = [rest & MASK32, (rest >> 32) & MASK32]
        counter = np.array([*limb, digest[2], digest[3]], np.uint32)
        digest = philox4x32(digest[:2], counter, 1)[0]
        rest >>= 64
        if not rest:
            return digest


def _state_of(digest: State) -> State:
    """The states at the start of the streams that rows of four words name."""
    states = np.zeros((*digest.shape[:-1], 6), np.uint32)
    states[..., :2] = digest[..., :2]
    states[..., 4:] = digest[..., 2:]
    return states


def random_bits(
    state: State, shape: int | Sequence[int], bits: Literal[32, 64] = 32
) -> tuple[State, Words]:
    """Words of 32 or 64 random bits, and the state after them.

    The words of a block and the blocks follow each other in C order of the result; a
    64-bit word is two of them, the low half first. A draw takes whole blocks: what is
    left of the last one is dropped. A draw of size 0 takes none.

    >>> state, words = random_bits(seed_state(0), (2, 3))
    >>> words.shape, words.dtype, int(state[2])
    ((2, 3), dtype('uint32'), 2)
    """
    check_state(state)
    if bits not in (32, 64):
        raise ValueError(f"random words have 32 or 64 bits, not {bits}")
    lengths = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    sizes = tuple(_count("sizes in shape", length) for length in lengths)
    size = math.prod(sizes)
    blocks = -(-size * bits // 128)
    words: Words = philox4x32(state[:2], state[2:], blocks).reshape(-1)
    if bits == 64:
        # Little-endian by name, so that the low half is first on any machine.
        pairs = words.astype("<u4", copy=False).view("<u8")
        words = pairs.astype(np.uint64, copy=False)
    return advance(state, blocks), words[:size].reshape(sizes)


def further_words(words: Words, index: int) -> tuple[Words, Words]:
    """Two more words of 64 bits for each word, the pair at `index` of its own stream.

    For what needs a number of words that depends on them: a word is the key of a
    stream that has as many as wanted, whoever drew the word.

    >>> first, second = further_words(np.array([0, 1], np.uint64), 0)
    >>> first.dtype, len({*first.tolist(), *second.tolist()})
    (dtype('uint64'), 4)
    """
    low, high = PROPOSING
    key = words.astype(np.uint64) ^ np.uint64(low | high << 32)
    zero = np.zeros_like(key)
    digits = (zero + np.uint64(index & MASK32), zero + np.uint64(index >> 32))
    x0, x1, x2, x3 = _encrypt(key, *digits, zero, zero)
    return x0 | x1 << 32, x2 | x3 << 32


def word_bits(dtype: DTypeLike) -> Literal[32, 64]:
    """How many bits `bits_to_uniform` and `bits_to_normal` take for one float.

    >>> word_bits("float16"), word_bits("float64")
    (32, 64)
    """
    name = np.dtype(dtype).name
    if name not in SIGNIFICANT_BITS:
        known = ", ".join(SIGNIFICANT_BITS)
        raise TypeError(f"random floats are {known}; {name} is not one of them")
    return 64 if name == "float64" else 32


def bits_to_uniform(bits: Words, dtype: DTypeLike) -> NDArray[Any]:
    """Uniform floats in [0, 1): the top bits of each word, as many as the type holds.

    All multiples of 2**-24 (float32), 2**-53 (float64), 2**-11 (float16) or 2**-8
    (bfloat16) are equally likely, and the conversion is exact.

    >>> bits_to_uniform(np.array([0, 1 << 31, 0xFFFFFFFF], np.uint32), "float32")
    array([0.        , 0.5       , 0.99999994], dtype=float32)
    """
    dtype = np.dtype(dtype)
    _check_width(bits, dtype)
    digits, size = SIGNIFICANT_BITS[dtype.name], bits.itemsize
    # Below 2**53 a word is the same number in the signed type, whose conversion is a
    # vector instruction.
    numbers = (bits.reshape(-1) >> (8 * size - digits)).view(f"i{size}")
    uniform = numbers.astype(f"f{size}")
    uniform *= 2.0**-digits
    return uniform.astype(dtype, copy=False).reshape(bits.shape)


def bits_to_normal(bits: Words, dtype: DTypeLike) -> NDArray[Any]:
    """Standard normal floats: the quantile of each word's midpoint.

    Symmetric, finite, up to |z| = 6.33 from 32 bits and 9.15 from 64. float16 and
    bfloat16 are the float32 result, rounded once.

    >>> bits_to_normal(np.array([1 << 30, 3 << 30], np.uint32), "float16")
    array([-0.6743,  0.6743], dtype=float16)
    """
    dtype = np.dtype(dtype)
    _check_width(bits, dtype)
    return normal_quantile(bits).astype(dtype, copy=False)


def bits_to_integers(
    bits: Words, low: SupportsIndex, high: SupportsIndex, dtype: DTypeLike
) -> NDArray[Any]:
    """Uniform integers in [low, high): low + floor(word * (high - low) / 2**64).

    Takes words of 64 bits. The probability of each of r = high - low integers differs
    from 1/r by less than 2**-64: a relative bias below r / 2**64, so below 2**-32 for
    r < 2**32, and none where r is a power of two. `high` may be one past the largest
    value of the type: `low=-(2**63), high=2**63` is every int64.

    >>> bits_to_integers(np.array([0, 1 << 63, 2**64 - 1], np.uint64), -3, 4, "int32")
    array([-3,  0,  3], dtype=int32)
    """
    low, high, dtype = operator.index(low), operator.index(high), np.dtype(dtype)
    if dtype.kind not in "iu":
        raise TypeError(f"random integers need an integer type, not {dtype.name}")
    if bits.dtype != np.uint64:
        raise TypeError(
            f"random integers are made of words of uint64, not {bits.dtype}; "
            "draw them with random_bits(..., bits=64)"
        )
    if low >= high:
        raise ValueError(
            f"no integer is at least {low} and below {high}; high is excluded, "
            "so it must be greater than low"
        )
    limits = np.iinfo(dtype)
    if low < limits.min or high - 1 > limits.max:
        raise ValueError(
            f"{dtype.name} cannot hold all integers from {low} to {high - 1}; "
            f"it ends at {limits.min} and {limits.max}"
        )
    offsets = _scale_down(bits.reshape(-1), high - low)
    # Modulo 2**64 the sum is right for signed types too, and truncation keeps it so.
    numbers = offsets + np.uint64(low & MASK64)
    return numbers.astype(dtype).reshape(bits.shape)


def _scale_down(words: NDArray[Any], factor: int) -> NDArray[Any]:
    """floor(word * factor / 2**64), from products of halves that fit 64 bits."""
    if factor > MASK64:
        return words
    word_low, word_high = words & MASK32, words >> 32
    factor_low, factor_high = factor & MASK32, factor >> 32
    middle = word_high * factor_low + ((word_low * factor_low) >> 32)
    out = middle >> 32
    if factor_high:
        out += word_high * factor_high
        out += (word_low * factor_high + (middle & MASK32)) >> 32
    return out


def permutation_from_bits(bits: Words) -> NDArray[np.int64]:
    """A random order of the last axis: the stable order of 64-bit keys.

    Equal keys, which keep their places, occur with probability below n*n / 2**65.

    >>> permutation_from_bits(np.array([30, 10, 20], np.uint64))
    array([1, 2, 0])
    """
    if bits.dtype != np.uint64:
        raise TypeError(f"a permutation takes keys of uint64, not {bits.dtype}")
    return np.argsort(bits, axis=-1, kind="stable").astype(np.int64, copy=False)


def check_state(state: State) -> None:
    """Raise unless this is a state: a `uint32[6]` array.

    >>> check_state(np.zeros(4, np.uint32))
    Traceback (most recent call last):
    TypeError: a random state is a uint32 array of 6 words, not uint32 of shape (4,)
    """
    _check_words("random state", state, 6)


def _check_words(name: str, words: State, length: int) -> None:
    if words.dtype != np.uint32 or words.shape != (length,):
        raise TypeError(
            f"a {name} is a uint32 array of {length} words, "
            f"not {words.dtype} of shape {words.shape}"
        )


def _check_width(bits: Words, dtype: np.dtype[Any]) -> None:
    width = word_bits(dtype)
    if bits.dtype != np.dtype(f"u{width // 8}"):
        raise TypeError(
            f"{dtype.name} is made of words of uint{width}, not {bits.dtype}; "
            f"draw them with random_bits(..., bits={width})"
        )


def _count(name: str, value: SupportsIndex) -> int:
    count = operator.index(value)
    if count < 0:
        raise ValueError(f"{name} must not be negative, not {count}")
    return count


def _digits(value: int) -> tuple[int, int, int, int]:
    """The four 32-bit digits of an integer modulo 2**128, least significant first."""
    first, second, third, fourth = (
        (value >> shift) & MASK32 for shift in (0, 32, 64, 96)
    )
    return first, second, third, fourth


def _to_int(words: State) -> int:
    """The integer whose 32-bit digits these are, least significant first."""
    return sum(int(word) << (32 * at) for at, word in enumerate(words))
