"""Random programs: run eagerly and as native code, twice, and compared.

A `Program` is text: statements in the words of the public namespace, over arguments of
all dtypes and layouts, with variables, random numbers and decorated functions inside. A
seed gives one program, so a failure is named by its seed, printed as source and made
smaller by leaving statements out.

    python -m tests.fuzz --seeds 0:20000 --processes 2

runs many of them; the suite runs a sample (`native/test_random_programs.py`). Both call
`judge`, which has one rule: `tapejit.base.tolerance` says whether numbers agree, and
what rounding errors alone could change (`native/conditioning.py`) is not judged.

`arguments` makes what programs are called on, `writer` writes them, a statement at a
time, of the `families`; `program` has their text, `judge` runs and compares them,
`shrink` makes a failing one smaller. `spelled` has functions written out in arithmetic,
for faults that both modes share; `faults` are some that there were, put back.

Start reading at `writer.program_of`, then `judge.judge`.
"""
