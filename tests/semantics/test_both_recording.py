from __future__ import annotations
import tapejit as tj
from .both_modes import both_modes, note, note_error, tape_around

def setup():
    return tj.Variable(3.0), tj.asarray(2.0)

def test_s34_x() -> None:
    def program(v, x):
        with tj.GradientTape() as tape:
            y = v * x
        v.assign_add(1.0)
        return tape.gradient(y, v)
    both_modes(program, setup, expected=2.0, variables=[4.0])

def test_s34_y() -> None:
    tape_around(lambda v, x: v * x, setup, expected=[2.0, 3.0], second=[1.0, 1.0])

def test_s34_z() -> None:
    def program(v, x):
        v.assign_add(1.0)
        note_error(lambda: v*tj.ones((2,3))@ tj.ones(2))
        return v*tj.ones((2,3))@ tj.ones(2)
    both_modes(program, setup, raises=(ValueError, "mult"))
