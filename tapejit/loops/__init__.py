"""The loop IR: a Graph in, loops and what is computed in them out.

The Graph is one whose Nodes are all native. `lower` makes Steps of it, a Step being
what one iteration of a loop does; `schedule` puts the Steps into a tree of loops;
`fuse` moves what surrounds matmuls and updates into them. That ends in Nests, and a
target makes Kernels of these.

- `index` axes that loops run over, positions as affine functions of them
- `pipeline` the passes that all targets share, in one tuple; `nests` what they end in
- `steps` the kinds of Steps; `kernels` Kernels, Storage and the plan that holds both
- `native_ops` what loops can compute; `reasons` why they cannot, in words; `segments`
  cuts a Graph into native parts and what NumPy performs
- `lane_algebra` what a record's lane expression is written in, for all interpreters
- `numerics` the numbers by which all this is chosen
- `printer` the loop IR as text, `str(plan)`
- `check` what holds of every plan, and whether it does; `accesses` what is read and
  written in which order

Nothing here sees an array or knows LLVM.

Start reading at `pipeline.py`, then `lower/lower.py` and `schedule/schedule.py`.
"""
