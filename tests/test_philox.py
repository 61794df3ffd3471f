"""The generator's words, what they become, and whether they look random.

Exact properties are tested against transcriptions in Python integers and against
60-digit decimals. The statistical tests at the end use fixed seeds, so they always
give the same answer; a perfect generator would fail one of them for a fraction ALARM
of all seeds.
"""

import itertools
from collections.abc import Iterator
from decimal import Decimal, localcontext

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from tapejit.ops import philox, quantile

ALARM = 1e-6
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
WORD_TYPES = [np.uint32, np.uint64]

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)


def words32(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def words64(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def counter_words(counter: int) -> np.ndarray:
    return words32(*(counter >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)))


def draw(seed: int, shape: int | tuple[int, ...], bits: int = 32) -> np.ndarray:
    return philox.random_bits(philox.seed_state(seed), shape, bits)[1]


def uniforms(state: np.ndarray, size: int) -> np.ndarray:
    words = philox.random_bits(state, size, 64)[1]
    return philox.bits_to_uniform(words, np.float64)


# The cipher


def encrypt_one_block(key: tuple[int, int], counter: int) -> list[int]:
    """Philox4x32-10 as its paper states it, in Python integers."""
    k0, k1 = key
    c0, c1, c2, c3 = (counter >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96))
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


# Counter, key and block: the vectors published with Random123.
KNOWN_ANSWERS = """
00000000000000000000000000000000 0000000000000000 6627e8d5e169c58dbc57ac4c9b00dbd8
ffffffffffffffffffffffffffffffff ffffffffffffffff 408f276d41c83b0ea20bc7c66d5451fd
243f6a8885a308d313198a2e03707344 a4093822299f31d0 d16cfe0994fdcceb5001e42024126ea1
"""


@pytest.mark.parametrize("line", KNOWN_ANSWERS.strip().splitlines())
@pytest.mark.parametrize("blocks", [1, 100])
def test_known_answers(line: str, blocks: int) -> None:
    # Groups of eight digits, the first word first.
    counter, key, block = (
        np.frombuffer(bytes.fromhex(text), ">u4").astype(np.uint32)
        for text in line.split()
    )
    out = philox.philox4x32(key, counter, blocks)
    np.testing.assert_array_equal(out[0], block)


@given(key=st.tuples(u32, u32), counter=st.integers(0, 2**128 - 1))
@settings(max_examples=50, deadline=None)
def test_blocks_are_those_of_the_paper(key: tuple[int, int], counter: int) -> None:
    for blocks in (3, philox.FEW_BLOCKS + 3):
        expected = [encrypt_one_block(key, counter + row) for row in range(blocks)]
        out = philox.philox4x32(words32(*key), counter_words(counter), blocks)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("blocks", [4, 40])
@pytest.mark.parametrize("bits", [32, 64, 96, 128])
def test_the_block_index_carries_through_the_counter(bits: int, blocks: int) -> None:
    counter = 2**bits - 2
    out = philox.philox4x32(words32(1, 2), counter_words(counter), blocks)
    expected = [encrypt_one_block((1, 2), counter + row) for row in range(blocks)]
    np.testing.assert_array_equal(out, expected)


def test_chunks_join_without_a_seam() -> None:
    state = philox.seed_state(3)
    blocks = 2 * philox.CHUNK + 5
    whole = philox.philox4x32(state[:2], state[2:], blocks)
    for row in (0, philox.CHUNK - 1, philox.CHUNK, 2 * philox.CHUNK, blocks - 1):
        key = int(state[0]), int(state[1])
        counter = row + (int(state[4]) << 64) + (int(state[5]) << 96)
        assert whole[row].tolist() == encrypt_one_block(key, counter)


def test_the_cipher_refuses_what_is_not_a_key_or_a_counter() -> None:
    with pytest.raises(TypeError, match="key is a uint32 array of 2 words"):
        philox.philox4x32(np.zeros(2, np.int64), words32(0, 0, 0, 0), 1)
    with pytest.raises(TypeError, match="counter is a uint32 array of 4 words"):
        philox.philox4x32(words32(0, 0), words32(0, 0), 1)
    with pytest.raises(ValueError, match="blocks must not be negative"):
        philox.philox4x32(words32(0, 0), words32(0, 0, 0, 0), -1)


# States


def test_seeds_of_any_size_have_their_own_states() -> None:
    seeds = [*range(200), *(2**k + j for k in range(8, 400, 7) for j in (0, 1))]
    states = {philox.seed_state(seed).tobytes() for seed in seeds}
    assert len(states) == len(seeds)
    np.testing.assert_array_equal(philox.seed_state(np.uint64(7)), philox.seed_state(7))


def test_a_seed_must_be_a_natural_number() -> None:
    with pytest.raises(ValueError, match="seed must be an integer from 0 on, not -1"):
        philox.seed_state(-1)
    with pytest.raises(TypeError):
        philox.seed_state(1.5)


@given(first=st.integers(0, 2**70), second=st.integers(0, 2**70))
@settings(max_examples=50, deadline=None)
def test_advances_add_up(first: int, second: int) -> None:
    state = philox.seed_state(5)
    there = philox.advance(philox.advance(state, first), second)
    np.testing.assert_array_equal(there, philox.advance(state, first + second))
    np.testing.assert_array_equal(state, philox.seed_state(5))


def test_advance_wraps_at_the_end_of_the_counter() -> None:
    state = words32(8, 9, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    assert philox.advance(state, 3).tolist() == [8, 9, 2, 0, 0, 0]
    with pytest.raises(ValueError, match="blocks must not be negative"):
        philox.advance(state, -1)


def test_derived_states_are_all_different() -> None:
    state = philox.seed_state(11)
    later = philox.advance(state, 1)
    derived = [
        state[None],
        philox.split_state(state, 50),
        philox.split_state(later, 50),
        philox.split_state(philox.split_state(state, 2)[1], 50),
        [philox.fold_in(state, data) for data in range(50)],
        [philox.fold_in(state, 2**64 + data) for data in range(50)],
        [philox.fold_in(later, data) for data in range(50)],
    ]
    streams = np.concatenate(derived)[:, [0, 1, 4, 5]]
    assert len(np.unique(streams, axis=0)) == len(streams)


def test_a_split_does_not_show_what_the_state_draws() -> None:
    state = philox.seed_state(11)
    drawn = set(philox.random_bits(state, 400)[1].tolist())
    split = philox.split_state(state, 100)[:, [0, 1, 4, 5]]
    assert not drawn & set(split.ravel().tolist())


def test_rows_of_a_split_do_not_depend_on_their_number() -> None:
    state = philox.seed_state(11)
    many = philox.split_state(state, 1000)
    for count in (0, 1, 7):
        np.testing.assert_array_equal(philox.split_state(state, count), many[:count])


def test_deriving_refuses_negative_numbers_and_other_arrays() -> None:
    state = philox.seed_state(0)
    with pytest.raises(ValueError, match="data must be an integer from 0 on"):
        philox.fold_in(state, -3)
    with pytest.raises(ValueError, match="count must not be negative"):
        philox.split_state(state, -1)
    for function in (philox.advance, philox.split_state, philox.fold_in):
        with pytest.raises(TypeError, match="random state is a uint32 array of 6"):
            function(np.zeros(6, np.int32), 1)


# Draws


def test_words_follow_the_blocks() -> None:
    state = philox.advance(philox.seed_state(1), 9)
    blocks = philox.philox4x32(state[:2], state[2:], 3)
    after, words = philox.random_bits(state, (2, 5))
    np.testing.assert_array_equal(words.ravel(), blocks.ravel()[:10])
    np.testing.assert_array_equal(after, philox.advance(state, 3))


def test_long_words_have_their_low_half_first() -> None:
    state = philox.seed_state(1)
    blocks = philox.philox4x32(state[:2], state[2:], 2).astype(np.uint64)
    after, words = philox.random_bits(state, 3, 64)
    expected = blocks[:, 0::2] | blocks[:, 1::2] << np.uint64(32)
    assert words.dtype == np.uint64
    np.testing.assert_array_equal(words, expected.ravel()[:3])
    np.testing.assert_array_equal(after, philox.advance(state, 2))


@pytest.mark.parametrize("shape", [0, (0,), (3, 0, 2)])
def test_an_empty_draw_takes_nothing(shape: int | tuple[int, ...]) -> None:
    state = philox.seed_state(1)
    after, words = philox.random_bits(state, shape)
    assert words.size == 0
    np.testing.assert_array_equal(after, state)


@pytest.mark.parametrize("bits", [32, 64])
def test_a_scalar_draw_is_an_array_and_converts_to_one(bits: int) -> None:
    _, word = philox.random_bits(philox.seed_state(1), (), bits)
    dtype = np.float32 if bits == 32 else np.float64
    results = [philox.bits_to_uniform(word, dtype), philox.bits_to_normal(word, dtype)]
    if bits == 64:
        results.append(philox.bits_to_integers(word, -(2**63), 2**63 - 1, np.int64))
    for result in results:
        assert isinstance(result, np.ndarray)
        assert result.shape == ()


def test_draws_refuse_other_widths_and_shapes() -> None:
    state = philox.seed_state(1)
    with pytest.raises(ValueError, match="32 or 64 bits, not 16"):
        philox.random_bits(state, 3, 16)
    with pytest.raises(ValueError, match="sizes in shape must not be negative"):
        philox.random_bits(state, (-1, -4))


# Uniform numbers


@pytest.mark.parametrize(
    ("dtype", "digits"),
    [(np.float16, 11), (BFLOAT16, 8), (np.float32, 24), (np.float64, 53)],
    ids=str,
)
def test_uniforms_are_the_top_bits(dtype: np.dtype, digits: int) -> None:
    width = philox.word_bits(dtype)
    edges = [0, 1, 2 ** (width - digits), 2 ** (width - 1), 2**width - 1]
    words = np.concatenate(
        [np.array(edges, f"u{width // 8}"), draw(4, 5000, width)],
        dtype=f"u{width // 8}",
    )
    out = philox.bits_to_uniform(words, dtype)
    assert out.dtype == dtype
    exact = [(int(word) >> (width - digits)) / 2**digits for word in words]
    np.testing.assert_array_equal(out.astype(np.float64), exact)
    assert out.min() == 0
    assert float(out.max()) == 1 - 2.0**-digits


def test_floats_refuse_other_words_and_types() -> None:
    for convert in (philox.bits_to_uniform, philox.bits_to_normal):
        with pytest.raises(TypeError, match="float64 is made of words of uint64"):
            convert(words32(1), np.float64)
        with pytest.raises(TypeError, match="float32 is made of words of uint32"):
            convert(words64(1), np.float32)
        with pytest.raises(TypeError, match="int32 is not one of them"):
            convert(words32(1), np.int32)
    with pytest.raises(TypeError, match="uint32 or uint64, not int64"):
        quantile.normal_quantile(np.zeros(3, np.int64))


# Integers


@st.composite
def integer_ranges(draw_value: st.DrawFn) -> tuple[np.dtype, int, int]:
    dtype = np.dtype(draw_value(st.sampled_from("bhilqBHILQ")))
    limits = np.iinfo(dtype)
    bounds = st.integers(int(limits.min), int(limits.max) + 1)
    low, high = sorted([draw_value(bounds), draw_value(bounds)])
    return (dtype, low, high) if low < high else (dtype, low - 1, low)


@given(
    words=st.lists(u64 | st.sampled_from([0, 1, 2**32, 2**63, 2**64 - 1])),
    bounds=integer_ranges().filter(lambda case: np.iinfo(case[0]).min <= case[1]),
)
@settings(max_examples=300, deadline=None)
def test_integers_are_scaled_words(
    words: list[int], bounds: tuple[np.dtype, int, int]
) -> None:
    dtype, low, high = bounds
    out = philox.bits_to_integers(words64(*words), low, high, dtype)
    assert out.dtype == dtype
    assert out.tolist() == [low + (word * (high - low) >> 64) for word in words]


def test_integers_reach_both_ends() -> None:
    for low, high, dtype in (
        (-(2**63), 2**63, np.int64),
        (-(2**63), 2**63 - 1, np.int64),
        (0, 2**64, np.uint64),
        (2**64 - 1, 2**64, np.uint64),
        (-128, 128, np.int8),
    ):
        out = philox.bits_to_integers(words64(0, 2**64 - 1), low, high, dtype)
        assert out.tolist() == [low, high - 1]


def test_integers_refuse_what_cannot_be() -> None:
    words = words64(1, 2)
    for low, high in ((3, 3), (4, 3)):
        with pytest.raises(ValueError, match="high is excluded"):
            philox.bits_to_integers(words, low, high, np.int32)
    for low, high, dtype in ((0, 257, np.uint8), (-1, 2, np.uint32)):
        with pytest.raises(ValueError, match="cannot hold all integers"):
            philox.bits_to_integers(words, low, high, dtype)
    with pytest.raises(TypeError, match="need an integer type, not float32"):
        philox.bits_to_integers(words, 0, 2, np.float32)
    with pytest.raises(TypeError, match="words of uint64, not uint32"):
        philox.bits_to_integers(words32(1), 0, 2, np.int32)


# Normal numbers


def spread_words(bits: int, per_octave: int) -> Iterator[int]:
    """Words below one half: some of every octave of p and of 1/2 - p, and the seam."""
    half = 2 ** (bits - 1)
    generator = np.random.default_rng(17)
    yield from (0, 1, half - 1, half - 2)
    seam = 2 ** (bits - quantile.TAIL_LOG2)
    yield from range(seam - 20, seam + 20)
    for octave in range(bits - 1):
        for fraction in generator.random(per_octave):
            step = int((1 + fraction) * 2**octave) % half
            yield step
            yield half - 1 - step


def error_in_ulps(word: int, z: float) -> float:
    """How far z is from the quantile of a 64-bit word below one half, to 30 digits.

    The area under the normal density φ from 0 to a is φ(a) times the sum of
    a, a**3 / 3, a**5 / (3 * 5), ..., whose terms are positive. With z off by little,
    its area is off by that times φ.
    """
    with localcontext() as context:
        context.prec = 60
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
        a = -Decimal(z)
        density = (-a * a / 2).exp() / (2 * pi).sqrt()
        total, term, odd = Decimal(0), a, 1
        while term > total * Decimal("1e-58"):
            total += term
            odd += 2
            term *= a * a / odd
        area = Decimal(2**64 - (2 * word + 1)) / 2**65
        return float((density * total - area) / density) / np.spacing(abs(z))


def test_float64_normals_are_within_two_and_a_half_ulps() -> None:
    words = list(spread_words(64, 40))
    z = philox.bits_to_normal(words64(*words), np.float64)
    errors = [abs(error_in_ulps(w, x)) for w, x in zip(words, z.tolist(), strict=True)]
    assert max(errors) < 2.5
    assert np.sqrt(np.mean(np.square(errors))) < 0.7


def test_float32_normals_are_within_two_ulps() -> None:
    words = np.concatenate(
        [words32(*spread_words(32, 2000)), draw(6, 2**19) >> np.uint32(1)]
    )
    # The 64-bit word nearest the same probability: it is off by a part in 2**32.
    longer = words.astype(np.uint64) << np.uint64(32) | np.uint64(2**31)
    exact = philox.bits_to_normal(longer, np.float64)
    z = philox.bits_to_normal(words, np.float32)
    ulps = (z - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert np.abs(ulps).max() < 1.9
    assert np.sqrt(np.mean(np.square(ulps))) < 0.5


def test_normals_are_the_quantile_of_scipy() -> None:
    words = words64(*(w for w in spread_words(64, 30) if w < 0.4 * 2**64))
    z = philox.bits_to_normal(words, np.float64)
    p = (words.astype(np.float64) + 0.5) * 2.0**-64
    np.testing.assert_allclose(z, special.ndtri(p), rtol=2e-15)


@pytest.mark.parametrize(
    ("word_type", "largest"), [(np.uint32, 6.33), (np.uint64, 9.15)]
)
def test_normals_are_symmetric_finite_and_reach_far(
    word_type: type, largest: float
) -> None:
    bits = 8 * np.dtype(word_type).itemsize
    words = np.array(list(spread_words(bits, 50)), word_type)
    z = quantile.normal_quantile(words)
    np.testing.assert_array_equal(quantile.normal_quantile(~words), -z)
    assert np.isfinite(z).all()
    assert (z < 0).all()
    assert largest < -z[0] < largest + 0.01
    assert -z[0] == np.abs(z).max()


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_short_normals_are_float32_rounded_once(dtype: np.dtype) -> None:
    words = draw(8, 10_000)
    z = philox.bits_to_normal(words, dtype)
    assert z.dtype == dtype
    single = philox.bits_to_normal(words, np.float32)
    np.testing.assert_array_equal(z, single.astype(dtype))


def quantile_of_one_word(word: int, table: quantile.QuantileTable) -> np.floating:
    """`normal_quantile` for one word, operation by operation: what native code does."""
    real = table.float_type.type
    bits = table.word_bits

    def polynomial(coefficients: np.ndarray, x: np.floating) -> np.floating:
        out = coefficients[-1]
        for coefficient in coefficients[-2::-1]:
            out = real(out * x)
            out = real(out + coefficient)
        return out

    def negative_log2(v: np.floating) -> np.floating:
        pattern = int(np.array(v).view(table.word_type))
        n = (table.log2_split - pattern) >> table.mantissa_bits
        shifted = np.array(pattern + (n << table.mantissa_bits), table.word_type)
        m = shifted.view(table.float_type)[()]
        s = (m - real(1)) / (m + real(1))
        return real(n) - s * polynomial(table.log2, s * s)

    is_negative = word < 2 ** (bits - 1)
    upper = 2**bits - 1 - word if is_negative else word
    distance = 2 * upper + 1 - 2**bits
    remainder = 2**bits - distance
    unit = real(2.0 ** -(bits + 1))
    p, q = real(remainder) * unit, real(distance) * unit
    if remainder < 2 ** (bits + 1 - quantile.TAIL_LOG2):
        y = np.sqrt(negative_log2(real(4) * p))
        top, bottom = table.tail_numerator, table.tail_denominator
        z = y + polynomial(top, y) / polynomial(bottom, y)
    else:
        w = negative_log2(p * (real(4) - real(4) * p))
        top, bottom = table.centre_numerator, table.centre_denominator
        ratio = polynomial(top, w) / polynomial(bottom, w)
        low = distance % 2**table.low_bits
        three = real(3) * unit
        z = real(distance - low) * three + (real(low) * three + q * ratio)
    return -z if is_negative else z


@pytest.mark.parametrize("word_type", WORD_TYPES)
def test_normals_are_made_of_single_rounded_operations(word_type: type) -> None:
    table = quantile.TABLES[np.dtype(word_type)]
    words = [*spread_words(table.word_bits, 4), *draw(9, 500, table.word_bits).tolist()]
    expected = [quantile_of_one_word(word, table) for word in words]
    out = quantile.normal_quantile(np.array(words, word_type))
    np.testing.assert_array_equal(out, np.array(expected, table.float_type))


@pytest.mark.parametrize("word_type", WORD_TYPES)
def test_three_times_the_high_part_is_exact(word_type: type) -> None:
    table = quantile.TABLES[np.dtype(word_type)]
    largest = 3 * (2**table.word_bits - 2**table.low_bits)
    assert int(table.float_type.type(largest)) == largest


@pytest.mark.parametrize("word_type", WORD_TYPES)
def test_normals_of_chunks_join_without_a_seam(word_type: type) -> None:
    bits = 8 * np.dtype(word_type).itemsize
    words = draw(10, (3, quantile.CHUNK + 7), bits)
    whole = quantile.normal_quantile(words)
    assert whole.shape == words.shape
    for row in (0, 1, 2):
        parts = [
            quantile.normal_quantile(part) for part in np.array_split(words[row], 11)
        ]
        np.testing.assert_array_equal(whole[row], np.concatenate(parts))


# Permutations


def test_permutations_sort_the_keys_and_keep_ties_in_place() -> None:
    order = philox.permutation_from_bits(words64(5, 2**63, 1, 5, 1))
    assert order.dtype == np.int64
    assert order.tolist() == [2, 4, 0, 3, 1]
    rows = philox.permutation_from_bits(draw(12, (20, 30), 64))
    np.testing.assert_array_equal(np.sort(rows), np.tile(np.arange(30), (20, 1)))
    with pytest.raises(TypeError, match="keys of uint64, not uint32"):
        philox.permutation_from_bits(words32(1, 2))


# Golden values: a change here changes every seeded result of every user.

GOLDEN = """
state 8c5ad574 c418eeb6 0 0 a59020ea 8eff5163
split b34f0a97 e2fae9aa 0 0 9a60520f 82ed2389
fold c6b6735c 8ee9bb66 0 0 567c0684 a5781746
short 8757d57e 73cf3de4 cb80a02c
long 73cf3de48757d57e 2c19efddcb80a02c 1337b7201d1e2526
uniform32 0x1.0eafaap-1 0x1.cf3cf4p-2 0x1.97014p-1
uniform64 0x1.cf3cf7921d5f4p-2 0x1.60cf7eee5c05p-3 0x1.337b7201d1e2p-4
normal32 0x1.26c1ccp-4 -0x1.ea13fep-4 0x1.a5b5cp-1
normal64 -0x1.ea13fdcce69a1p-4 -0x1.e3f52b5910adep-1 -0x1.70653f6658d47p+0
tail32 -0x1.95a118p+2 -0x1.77855ap+2
tail64 -0x1.24f82aa55eb15p+3 -0x1.1a9e271766ba1p+3
integers -60 -290 -352
order 2 1 0
"""


def golden_results() -> dict[str, np.ndarray]:
    state = philox.seed_state(2026)
    short, long = draw(2026, 3), draw(2026, 3, 64)
    return {
        "state": state,
        "split": philox.split_state(state, 2)[1],
        "fold": philox.fold_in(state, 2**70),
        "short": short,
        "long": long,
        "uniform32": philox.bits_to_uniform(short, np.float32),
        "uniform64": philox.bits_to_uniform(long, np.float64),
        "normal32": philox.bits_to_normal(short, np.float32),
        "normal64": philox.bits_to_normal(long, np.float64),
        "tail32": philox.bits_to_normal(words32(0, 9), np.float32),
        "tail64": philox.bits_to_normal(words64(0, 9), np.float64),
        "integers": philox.bits_to_integers(long, -1000, 1000, np.int32),
        "order": philox.permutation_from_bits(long),
    }


def test_golden_values() -> None:
    golden = {}
    for line in GOLDEN.strip().splitlines():
        name, *texts = line.split()
        golden[name] = [float.fromhex(x) if "p" in x else int(x, 16) for x in texts]
    results = golden_results()
    assert {name: values.tolist() for name, values in results.items()} == golden


# Statistics


def assert_plausible(p_value: float, looks: int = 1) -> None:
    """Fail when a perfect generator would do so for a fraction ALARM of the seeds."""
    assert p_value * looks > ALARM


def test_bytes_are_uniform() -> None:
    counts = np.bincount(draw(101, 2**18).view(np.uint8), minlength=256)
    assert_plausible(stats.chisquare(counts).pvalue)


def test_every_bit_of_a_word_is_fair_and_independent() -> None:
    words = draw(102, 2**15, 64)
    bits = (words[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)) * 2.0 - 1
    scores = np.abs(bits.sum(axis=0)) / np.sqrt(len(bits))
    assert_plausible(2 * stats.norm.sf(scores.max()), looks=64)
    pairs = np.abs(np.triu(bits.T @ bits, 1)) / np.sqrt(len(bits))
    assert_plausible(2 * stats.norm.sf(pairs.max()), looks=64 * 63 // 2)


@pytest.mark.parametrize("count", [2, 3, 7, 10, 1000, 1_000_003, 2**32 + 1, 3 * 2**61])
def test_integers_are_uniform(count: int) -> None:
    words = draw(103, 2**17, 64)
    numbers = philox.bits_to_integers(words, -5, count - 5, np.int64)
    cells = min(count, 1000)
    # Cell k holds the offsets from ceil(k * count / cells) on.
    starts = [-(-k * count // cells) for k in range(cells + 1)]
    offsets = (numbers + 5).astype(np.uint64)
    observed = np.histogram(offsets, np.array(starts, np.uint64))[0]
    assert observed.sum() == len(words)
    expected = np.diff(np.array(starts, object)).astype(float) / count * len(words)
    assert_plausible(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uniforms_pass_kolmogorov_smirnov(dtype: type) -> None:
    words = draw(105, 2**17, philox.word_bits(dtype))
    sample = philox.bits_to_uniform(words, dtype).astype(np.float64)
    assert_plausible(stats.kstest(sample, "uniform").pvalue)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normals_pass_kolmogorov_smirnov(dtype: type) -> None:
    words = draw(106, 2**17, philox.word_bits(dtype))
    sample = philox.bits_to_normal(words, dtype).astype(np.float64)
    assert_plausible(stats.kstest(sample, "norm").pvalue)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normals_have_the_right_moments_and_tails(dtype: type) -> None:
    size = 2**19
    words = draw(107, size, philox.word_bits(dtype))
    z = philox.bits_to_normal(words, dtype).astype(np.float64)
    assert_plausible(2 * stats.norm.sf(abs(z.mean()) * np.sqrt(size)))
    spread = stats.chi2(size).cdf(np.sum(z * z))
    assert_plausible(2 * min(spread, 1 - spread))
    assert_plausible(stats.skewtest(z).pvalue)
    assert_plausible(stats.kurtosistest(z).pvalue)
    for limit in (2.41, 3.0, 4.0):
        beyond = int(np.sum(np.abs(z) > limit))
        chance = 2 * stats.norm.sf(limit)
        assert_plausible(stats.binomtest(beyond, size, chance).pvalue, looks=3)


def test_successive_draws_are_not_correlated() -> None:
    x = uniforms(philox.seed_state(108), 2**18) - 0.5
    lags = range(1, 17)
    scores = [12 * np.dot(x[:-lag], x[lag:]) / np.sqrt(x.size - lag) for lag in lags]
    assert_plausible(2 * stats.norm.sf(np.abs(scores).max()), looks=len(scores))


def streams_of(origin: str) -> np.ndarray:
    state = philox.seed_state(109)
    match origin:
        case "seeds":
            return np.stack([philox.seed_state(seed) for seed in range(32)])
        case "split":
            return np.concatenate([state[None], philox.split_state(state, 31)])
        case _:
            return np.stack([state, *(philox.fold_in(state, i) for i in range(31))])


@pytest.mark.parametrize("origin", ["seeds", "split", "fold_in"])
def test_streams_are_not_correlated(origin: str) -> None:
    size = 2**13
    streams = np.stack([uniforms(state, size) for state in streams_of(origin)]) - 0.5
    looks = len(streams) * (len(streams) - 1) // 2
    for shift in (0, 1):
        products = streams @ np.roll(streams, shift, axis=1).T
        scores = 12 * np.abs(np.triu(products, 1)) / np.sqrt(size)
        assert_plausible(2 * stats.norm.sf(scores.max()), looks=2 * looks)


def test_one_bit_of_the_seed_changes_half_the_state() -> None:
    changes = []
    for seed, bit in itertools.product((0, 12345, 2**63 + 99), range(64)):
        pair = philox.seed_state(seed) ^ philox.seed_state(seed ^ (1 << bit))
        changes.append(int(np.bitwise_count(pair).sum()))
    total = stats.binomtest(sum(changes), 128 * len(changes), 0.5)
    assert_plausible(total.pvalue)
    assert_plausible(stats.binom.cdf(min(changes), 128, 0.5), looks=len(changes))


def test_all_orders_of_four_are_equally_likely() -> None:
    orders = philox.permutation_from_bits(draw(111, (2**16, 4), 64))
    codes = orders @ np.array([64, 16, 4, 1])
    found, counts = np.unique(codes, return_counts=True)
    assert len(found) == 24
    assert_plausible(stats.chisquare(counts).pvalue)
