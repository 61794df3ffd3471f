"""What users touch: tensors, variables, tapes, and the functions of the namespace.

The data structures are `Tensor` (an immutable value with an id), `Variable` (a Tensor
that can be replaced) and `Recording` (what a tape knows: Nodes by Tensor id, and the
values derivatives need). Every operation goes through `dispatch.apply`.

Start reading at `dispatch.py`, then `recording.py`, then `tape.py`.
"""
