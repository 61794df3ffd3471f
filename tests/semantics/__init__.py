"""The contract of tapes, values and variables, line by line, once for both modes.

Each test's name carries the number of the line it holds (`test_s02_...`);
`python tests/semantics_lines.py` lists the lines with their tests. A test states what
plain Python does, and the harness `both_modes.py` sees to it that functions do the
same; a test of plain Python alone says why there is nothing else to compare.
"""
