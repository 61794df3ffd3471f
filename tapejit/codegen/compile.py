"""From a module to machine code, with the texts of each stage for those who ask.

LLVM gets the module as text. One pass runs over it: accumulators are emitted as memory
and become registers. Everything else is as it was emitted.

Start reading at `compile_module`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from llvmlite import binding

from tapejit.codegen.host import host_machine
from tapejit.codegen.objects import ObjectCode, emit, initialise


@dataclass(frozen=True)
class Compiled:
    """Machine code, and how many seconds each stage took."""

    object: ObjectCode
    seconds: dict[str, float]


def compile_module(module: Any) -> Compiled:
    """The machine code of an llvmlite module for this processor."""
    begin = time.perf_counter()
    text = str(module)
    printed = time.perf_counter()
    parsed, machine = with_registers(text)
    parsed_at = time.perf_counter()
    made = emit(parsed, machine)
    seconds = {
        "print": printed - begin,
        "parse": parsed_at - printed,
        "emit": time.perf_counter() - parsed_at,
    }
    return Compiled(made, seconds)


def with_registers(text: str) -> tuple[Any, Any]:
    """A parsed module, its scalar memory in registers, and the machine it is for."""
    initialise()
    parsed = binding.parse_assembly(text)
    machine = host_machine()
    parsed.triple = machine.triple
    parsed.data_layout = str(machine.target_data)
    options = binding.create_pipeline_tuning_options(speed_level=1)
    builder = binding.create_pass_builder(machine, options)
    passes = binding.create_new_function_pass_manager()
    passes.add_sroa_pass()
    for function in parsed.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return parsed, machine


def assembly(module: Any) -> str:
    """The instructions of the processor, as text."""
    parsed, machine = with_registers(str(module))
    return str(machine.emit_assembly(parsed))
