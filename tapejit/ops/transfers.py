"""Moving a value between devices, as an operation that derivatives know.

A Graph runs on one device, so this is an operation of tapes: whoever performs it copies
the value. Its cotangent goes the way back. To NumPy, and wherever a Graph has it all
the same, it is the identity.

Start reading at `to_device`.
"""

from __future__ import annotations

from tapejit.base.types import Type
from tapejit.ir.node import ALL, Movement, Node, record
from tapejit.ir.structural import batch_stack


def to_device_type(x: Type, *, source: str, target: str) -> Type:
    return x


def _to_device_eval(x: object, *, source: str, target: str) -> object:
    return x


def to_device_vjp(
    g: Node, out: Node, x: Node, *, source: str, target: str
) -> tuple[Node]:
    """The cotangent goes back to where the value came from."""
    return (to_device(g, source=target, target=source),)


to_device = record(
    "to_device",
    type_rule=to_device_type,
    eval=_to_device_eval,
    vjp=to_device_vjp,
    batch=batch_stack("to_device"),
    linear=ALL,
    moves=Movement.ALIAS,
)
