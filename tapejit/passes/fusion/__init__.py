"""From a Graph to loops: which values are computed together, in which order.

The Graph is one whose Nodes are all native. It becomes Steps, a Step being what one
iteration of a loop does; the Steps become a tree of loops; each loop at the top of the
tree is a Kernel, with its vectors, its tasks and the memory of its values. What comes
out is a `Plan`, from which `codegen` emits LLVM or writes Python.

- `candidates` what loops can compute; `reasons` why they cannot, in words
- `index` axes that loops run over, positions as affine functions of them
- `steps` the kinds of Steps; `reading` how a value is had at a position, with every
  movement of elements folded into the position; `expand` operations that are written
  out as several; `row_sums` sums that another product has already; `lower` a Graph as
  Steps
- `schedule` Steps in a tree of loops, in as few passes over memory as can be; `rows`,
  `row_roles` and `columns` products in loops over tiles, with what is between them;
  `copies` products in the order of copies
- `kernels` Kernels, Storage, Plan; `vectors` how a kernel's loops are run: the axis of
  its vectors, tiles, blocks, tasks, rows that go on together; `products` what is done
  with a product while it is in registers, `sums` what is added up then; `plan` which
  values need memory, and where it is
- `check` what holds of every Plan, and whether it does; `accesses` what is read and
  written in which order

Nothing here sees an array, knows LLVM or depends on the processor: widths and tasks
follow from sizes, so that a Graph has the same loops, and the same bits, everywhere.

Start reading at `lower.lower`, then `schedule.schedule` and `plan.plan`.
"""
