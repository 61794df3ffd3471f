"""The same programs in tapejit and in its peers, side by side.

The data structures are `Case` (one program, its inputs, its right answer, one builder
per peer, its goals), `Package` (how a peer is started and limited in threads) and
`Outcome` (what one peer did with one case: status, answer checked, seconds per round).
Every peer runs in a process of its own, because thread pools and memory allocators of
several frameworks in one process disturb each other; the processes stay alive and take
turns round by round, because on a shared machine the speed of the minute matters more
than the difference between two peers.

Start reading at `case.py`, then `worker.py` (one process) and `measure.py` (the turns).
"""
