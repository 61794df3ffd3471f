"""From a Graph to loops: which values are computed together, in which order.

`index.py` has the axes that loops run over and positions as affine functions of them;
`steps.py` the Steps, what one iteration does; `lower.py` turns a Graph into Steps, with
every movement of elements folded into positions; `schedule.py` arranges Steps into a
tree of loops; `plan.py` decides which values need memory, and where it is.

Start reading at `lower.lower`.
"""
