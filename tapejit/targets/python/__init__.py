"""Readable source: a plan of loops in, Python text that runs out.

`kernel_source` writes all of a plan, `kernel_writer` one Kernel, `tile_source` matmuls
in loops over row tiles, `lane_source` lane expressions, `source_text` names, numbers
and arrays. The text is what `fn.source()` shows: one element at a time, no vectors.

Start reading at `kernel_source.py`, then `kernel_writer.py`.
"""
