"""Targets: what a plan of loops is emitted for. Plans in, code out.

`cpu` schedules loops for a processor with vectors and caches and emits LLVM; `cuda`
schedules them for blocks of threads, and LLVM makes PTX of what it emits; `python`
writes the same loops as readable Python. All interpret the records' lane expressions
(`loops.lane_algebra`).

`target` says what a target is: its tuning and its numerics, what it supports, how it
schedules, and what it emits. `walk` goes through a scheduled Kernel for all of them:
each says what a loop, a Step and an accumulator are. `python` writes what `cpu` has
scheduled.

Start reading at `target.py` and `walk.py`, then `tapejit.targets.cpu`.
"""
