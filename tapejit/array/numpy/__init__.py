"""NumPy on tensors: `np.sin(x)`, `array * x` and `np.sum(x, axis=0)` are recorded.

NumPy's functions come in through its protocols, tapejit's go out. `protocol` answers
NumPy, `table` says what each function is here, with `linalg_rows` and `selection_rows`;
`names` has NumPy's spellings in our namespace, `scipy_optimize` what SciPy's optimizers
get.

Start reading at `protocol.py`, then `table.py`.
"""
