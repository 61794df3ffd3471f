"""What everything else stands on: dtypes, sizes, errors, settings, structures.

Nothing comes in but Python and NumPy; what goes out is used in every other folder.
`types` has dtypes and `TensorType`, `dims` symbolic sizes, `binding` the numbers they
stand for; `errors` every exception, `origin` the user's line in it; `config` all
settings; `tree` and `structure` nested containers. `tolerance` says what it means that
two results agree. `numpy_adapter` is the one place that touches NumPy's private parts,
`blas` the threads of BLAS, `workers` threads for NumPy's work, `collector` and
`waiting` the garbage collector and locks. `late_names` lists public names that load on
demand, `public` gives classes the paths that pickles name.

Nothing here knows what a graph is.

Start reading at `types.py`, then `errors.py`.
"""
