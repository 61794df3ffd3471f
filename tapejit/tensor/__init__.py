"""Tensors, and how an operation is applied to them.

A user's operands come in; a Tensor goes out, and everyone who records hears of it.
`tensor` has the handle, `dispatch` converts operands, runs an operation and records it,
`recorder` is the protocol of who hears of operations, `trace` a symbolic run in which
operations make Nodes only; `symbolic_size` and `symbolic_float` are numbers in it.
`lists`, `stacking` and `not_numbers` are about operands, `scope` and `mutation` about
bodies that are being run, `naming`, `foreign_names`, `foreign_keywords` and
`shape_first` about errors that teach, `repr` about how tensors look.

Start reading at `dispatch.py`, then `tensor.py`.
"""
