"""The functions of the namespace: arrays in, tensors out, all through `dispatch`.

Each file is a family: `creation`, `elementwise`, `reductions`, `manipulation`,
`indexing`, `matmul`, `sorting`, `statistics` and so on. `linalg`, `fft`, `special` and
`image` are public modules. `operators` gives Tensor and Variable Python's operators and
NumPy's methods, `at` functional updates, `numpy` NumPy's functions on tensors.

Start reading at `elementwise.py`, then `operators.py`.
"""
