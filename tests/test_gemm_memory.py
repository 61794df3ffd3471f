"""Products between protected pages: what they read and write is theirs."""

from __future__ import annotations

import sys

import pytest
from elsewhere import run_interpreter

FENCED = """
import ctypes, mmap, numpy as np, sys
sys.path.insert(0, "tests")
from test_gemm import Product, gemm_of, laid_out, small_caches

library = ctypes.CDLL(None)
PAGE = mmap.PAGESIZE

def fenced(shape, at_end):
    nbytes = int(np.prod(shape)) * 4
    pages = -(-nbytes // PAGE)
    room = mmap.mmap(-1, (pages + 2) * PAGE)
    rooms.append(room)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    for at in (start, start + (pages + 1) * PAGE):
        assert library.mprotect(ctypes.c_void_p(at), PAGE, 0) == 0
    first = PAGE * (pages + 1) - nbytes if at_end else PAGE
    return np.frombuffer(room, np.float32, nbytes // 4, first).reshape(shape)

rooms = []
for at_end in (False, True):
    for m, n, k in ((5, 3, 2), (17, 19, 37), (1, 33, 9), (3, 9, 100)):
        for order in ("nn", "tn", "nt", "tt"):
            a = fenced((k, m) if order[0] == "t" else (m, k), at_end)
            b = fenced((n, k) if order[1] == "t" else (k, n), at_end)
            a[...], b[...] = 1, 2
            a = a.T if order[0] == "t" else a
            b = b.T if order[1] == "t" else b
            c = fenced((m, n), at_end)
            Product(gemm_of(a, b, c))(a, b, c)
            assert (c == 2 * k).all()
            with small_caches():
                product = Product(gemm_of(a, b, c))
            product(a, b, c)
            assert (c == 2 * k).all()
print("nothing else was touched")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages of memory")
def test_nothing_beyond_the_operands_is_read() -> None:
    ended = run_interpreter("-c", FENCED)
    assert "nothing else was touched" in ended.stdout, ended.stderr
