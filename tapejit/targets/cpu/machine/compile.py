"""From the text of a module to what LLVM makes of it.

LLVM gets modules as text. One pass runs over them: accumulators are emitted as memory
and become registers. Everything else is as it was emitted.

Start reading at `with_registers`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import binding

from tapejit.targets.cpu.machine.host import host_machine
from tapejit.targets.cpu.machine.objects import ObjectCode, initialise


class Compiled(NamedTuple):
    """Machine code, and how many seconds each stage took."""

    object: ObjectCode
    seconds: dict[str, float]


def with_registers(text: str, machine: Any = None, context: Any = None) -> Any:
    """A parsed module, its scalar memory in registers.

    It is for this processor and in the common context, unless others are given.
    """
    initialise()
    parsed = binding.parse_assembly(text, context)
    parsed.verify()
    machine = machine or host_machine()
    parsed.triple = machine.triple
    parsed.data_layout = str(machine.target_data)
    options = binding.create_pipeline_tuning_options(speed_level=1)
    builder = binding.create_pass_builder(machine, options)
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.run(parsed, builder)
    return parsed


def assembly(module: Any) -> str:
    """The instructions of the processor, as text."""
    return str(host_machine().emit_assembly(with_registers(str(module))))
