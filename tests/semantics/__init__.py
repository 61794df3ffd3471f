"""The contract of tapes, values and variables, line by line.

Each test's name carries the number of the line it holds (`test_s02_...`);
`python tests/semantics_lines.py` lists the lines with their tests.
"""
