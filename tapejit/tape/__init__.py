"""Tapes: what was recorded comes in, derivatives go out. And the state they watch.

`variable` and `generator` hold state, `commits` changes several at once; `random` draws
from generators. `recording` is what a tape knows, `tape` is `GradientTape`,
`derivative` makes adjoint Graphs of recordings and runs them, `accumulator` is forward
mode, `functional` has `grad`, `jacobian`, `vmap` and their relatives, `why_none` says
why a gradient is None. `custom` has functions that bring their gradient, `witness`
what these use besides their arguments, `rules` how derivatives call Python, `linearity`
which may not run forwards.

Start reading at `recording.py`, then `tape.py`.
"""
