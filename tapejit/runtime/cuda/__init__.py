"""What runs GPU kernels: NVIDIA's driver, or a device that this CPU emulates.

Graphs come in (`device_code`), launches of the kernels that `tapejit.targets.cuda`
makes of them go out. A program
without tensors on a device never loads it.

- `driver` the boundary: 26 calls, behind which is one of `nvidia` (through the
  packages of `tapejit[cuda]`), `emulated` (strict, on this CPU) and `recording` (notes
  what is asked of another one)
- `executor` runs the LLVM text of kernels on this CPU: `threads` makes coroutines of
  them, `scheduler` lets these run, `warp` has what a warp does together (shuffles,
  tensor cores), `races` finds accesses that no barrier orders
- `devices` those in use, each with its stream and its pool; `arrays` what lies in
  their memory
- `device_code` the kernels of a Graph on a device, and what is done when they fail;
  `kept_kernels` has them from the store, or made; `device_graph` says which it can do
- `inside` what people see of compiled code, for which no device is needed
- `memory` a pool with a limit; `launches` the kernels of a step, as a CUDA graph

What the emulated device proves: that kernels stay inside of their memory, that they
have their barriers, and which numbers they give. What it cannot: speed, the order in
which real memory is written, and the last bits of `mma`.

Start reading at `driver.py`, then `device_code.py` and `executor.py`.
"""
