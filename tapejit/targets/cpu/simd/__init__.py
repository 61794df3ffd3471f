"""SIMD arithmetic: lane expressions of records in, vector instructions out.

`vector` is a thin layer over `llvm` in which SIMD arithmetic reads as formulas. `lanes`
interprets the lane algebra on vectors of any dtype: `floats`, `integers`, `casts` and
`storage` are its parts, `division` divides by constants.

Start reading at `vector.py`, then `lanes.py`.
"""
