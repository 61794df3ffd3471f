"""Code generation: typed expressions become native code.

`vector` is a thin layer over llvmlite's instruction builder in which SIMD arithmetic
reads as formulas. `vecmath` writes the transcendental functions in it. `host` compiles
a module for this machine and makes it callable on NumPy arrays.

Nothing here is imported before something has to be compiled: llvmlite is not loaded by
`import tapejit`.

Start reading at `vector.py`.
"""
