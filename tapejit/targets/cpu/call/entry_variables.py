"""The part of the native entry that gives variables their next values.

The call holds the locks of the variables that it writes. If a variable alone refers to
its memory, the new value is written over the old one. Meanwhile its Tensor is `away`:
it has left the variable's slot for another one, and who reads the variable waits for
the lock. So nobody sees a Tensor that changes. At the end all variables get their new
values in one go, or after a failure those back that were taken away: compiled code
that fails has not written over anything.

Start reading at `Variables.taken_array`, then `Variables.commit`.
"""

from __future__ import annotations

from typing import Final

from tapejit.targets.cpu.call.entry_code import (
    I32,
    I64,
    NULL,
    POINTER,
    EntryCode,
    number,
)
from tapejit.targets.cpu.call.entry_tables import Output, Record, Services
from tapejit.targets.cpu.llvm.ir import Block, Value

OWNING: Final = 0x0004  # NumPy's flags
WRITEABLE: Final = 0x0400


class Variables(EntryCode):
    """The steps that deal with variables; `results` are the outputs in the frame."""

    objects: Value
    results: Value

    def take_lock(self, at: Value) -> None:
        """The lock of the variable that an output is for, unless another has it."""
        b = self.b
        row = self.row(Record.output_table, Output, at)
        variable = self.word(row, Output.variable, POINTER)
        with b.if_then(b.not_(self.is_null(variable))):
            lock = self.load(variable, self.word(row, Output.lock))
            no_waiting = self.service(Services.false, POINTER)
            answer = self.call_method(Services.acquire, lock, no_waiting)
            self.go_if(self.is_null(answer), self.failed)
            self.call(Services.Py_DecRef, answer)  # True and False stay
            is_taken = self.service(Services.true, POINTER)
            self.go_if(self.differ(answer, is_taken), self.missed)
        b.store(b.add(at, number(1)), self.locked)
        with b.if_then(b.not_(self.is_null(variable))):
            # A call of this thread has the value, which a signal's handler is in the
            # midst of: Python will note the assignment.
            away = self.load(variable, self.word(row, Output.away))
            self.go_if(b.not_(self.is_null(away)), self.missed)

    def find_sole_owner(
        self, row: Value, fresh: Block, references: int
    ) -> tuple[Value, Value, Value, Value]:
        """The Tensor and the array of an output's variable, if nobody else has them.

        Also the slot where the Tensor is and the one where it goes meanwhile. Else
        control goes to the block `fresh`. `references` to the array are known.
        """
        b = self.b
        source = self.word(row, Output.source)
        self.go_if(b.icmp_signed("<", source, number(0)), fresh)
        # A child would have what is written to at the moment of the fork.
        forking = self.load(self.service(Services.forking, POINTER), 0, I64)
        self.go_if(b.icmp_signed("!=", forking, number(0)), fresh)
        variable = self.word(row, Output.variable, POINTER)
        place = self.offset(variable, self.word(row, Output.slot))
        tensor = b.load(place, typ=POINTER)
        self.go_if(self.is_null(tensor), fresh)
        self.go_if(b.not_(self.is_a(tensor, Services.tensor_class)), fresh)
        array = self.load(tensor, self.service(Services.tensor_value))
        self.go_if(self.is_null(array), fresh)
        self.go_if(b.not_(self.is_a(array, Services.array_class)), fresh)
        known = self.load(tensor, self.service(Services.tensor_id))
        self.go_if(self.differ(known, self.service(Services.zero, POINTER)), fresh)
        for thing, count in ((tensor, 1), (array, references)):
            self.go_if(self.count_differs(thing, count), fresh)
        flags = self.load(array, self.service(Services.array_flags), I32)
        self.go_if(b.not_(self.has(flags, WRITEABLE)), fresh)
        self.walk_to_owner(array, fresh)
        away = self.offset(variable, self.word(row, Output.away))
        # The handler of a signal may call what it has interrupted.
        self.go_if(b.not_(self.is_null(b.load(away, typ=POINTER))), fresh)
        return tensor, array, place, away

    def taken_array(self, row: Value, otherwise: Block) -> Value:
        """The array of a variable that alone refers to it, taken away from there.

        The frame refers to it as well: it is the input that the output is made of.
        Control goes to the block `otherwise` if that is not so.
        """
        tensor, array, place, away = self.find_sole_owner(row, otherwise, references=2)
        source = self.word(row, Output.source)
        held = self.word(self.objects, source, POINTER)
        self.go_if(self.differ(array, held), otherwise)
        self.b.store(tensor, away)
        self.b.store(NULL, place)
        return array

    def taken(self, row: Value, at: Value) -> tuple[Value, Value]:
        """The Tensor that this call has taken away for an output, or NULL.

        Also the slot where it is meanwhile.
        """
        b = self.b
        b.store(NULL, self.found)
        variable = self.word(row, Output.variable, POINTER)
        away = self.offset(variable, self.word(row, Output.away))
        with b.if_then(b.not_(self.is_null(variable))):
            tensor = b.load(away, typ=POINTER)
            with b.if_then(b.not_(self.is_null(tensor))):
                array = self.load(tensor, self.service(Services.tensor_value))
                own = b.load(self.at(self.results, at), typ=POINTER)
                with b.if_then(b.not_(self.differ(array, own))):
                    b.store(tensor, self.found)
        return b.load(self.found, typ=POINTER), away

    def walk_to_owner(self, array: Value, fresh: Block) -> None:
        """Go to `fresh` unless an array owns its memory, or refers alone to what does.

        Views of views refer to the first array, so `array` itself may not be seen.
        """
        b = self.b
        before = b.block
        head = self.function.append_basic_block("owner")
        on = self.function.append_basic_block("on")
        alone = self.function.append_basic_block("alone")
        b.branch(head)
        b.position_at_end(head)
        owner = b.phi(POINTER)
        owner.add_incoming(array, before)
        base = self.load(owner, self.service(Services.array_base))
        flags = self.load(owner, self.service(Services.array_flags), I32)
        with b.if_then(self.is_null(base)):
            b.cbranch(self.has(flags, OWNING), alone, fresh)
        self.go_if(self.count_differs(base, 1), fresh)
        self.go_if(self.is_a(base, Services.loan_class), alone)
        b.cbranch(self.is_a(base, Services.array_class), on, fresh)
        b.position_at_end(on)
        owner.add_incoming(base, on)
        b.branch(head)
        b.position_at_end(alone)

    def commit(self, at: Value) -> None:
        """Give a variable its next value; the frame holds what it had before.

        Nothing here runs Python: others see all the new values, or none.
        """
        b = self.b
        row = self.row(Record.output_table, Output, at)
        variable = self.word(row, Output.variable, POINTER)
        with b.if_then(b.not_(self.is_null(variable))):
            place = self.at(self.results, at)
            taken, away = self.taken(row, at)
            with b.if_then(b.not_(self.is_null(taken))):
                self.call(Services.Py_DecRef, b.load(place, typ=POINTER))
                b.store(taken, place)
                b.store(NULL, away)
            slot = self.offset(variable, self.word(row, Output.slot))
            new, old = b.load(place, typ=POINTER), b.load(slot, typ=POINTER)
            b.store(new, slot)
            b.store(old, place)

    def put_back(self, at: Value) -> None:
        """After a failure: what was taken away from a variable, and not written to.

        Unless the handler of a signal has assigned another value.
        """
        b = self.b
        row = self.row(Record.output_table, Output, at)
        taken, away = self.taken(row, at)
        with b.if_then(b.not_(self.is_null(taken))):
            variable = self.word(row, Output.variable, POINTER)
            slot = self.offset(variable, self.word(row, Output.slot))
            b.store(NULL, away)
            is_empty = self.is_null(b.load(slot, typ=POINTER))
            with b.if_else(is_empty) as (empty, assigned):
                with empty:
                    b.store(taken, slot)
                with assigned:
                    self.call(Services.Py_DecRef, taken)

    def release_locks(self) -> None:
        """All locks that the call holds; an exception that is set stays so."""
        b = self.b
        locked = b.load(self.locked, typ=I64)
        with b.if_then(b.icmp_signed(">", locked, number(0))):
            places = [self.at(self.error, at) for at in range(3)]
            self.call(Services.PyErr_Fetch, *places)
            with self.loop(locked) as at:
                row = self.row(Record.output_table, Output, at)
                variable = self.word(row, Output.variable, POINTER)
                with b.if_then(b.not_(self.is_null(variable))):
                    lock = self.load(variable, self.word(row, Output.lock))
                    answer = self.call_method(Services.release, lock)
                    self.call(Services.Py_DecRef, answer)
            error = [b.load(place, typ=POINTER) for place in places]
            self.call(Services.PyErr_Restore, *error)
