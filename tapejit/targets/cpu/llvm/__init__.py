"""LLVM's language: what emitters call in, the text of a module out.

`ir` has modules, functions and a builder that writes each instruction as text at once;
`values` has types, constants and values. The names are llvmlite's, the text is LLVM's.

Start reading at `ir.py`.
"""
