"""The parallel driver: LLVM for a function that runs a list of tasks on threads.

    void parallel(void (*task)(i8** table, i64 index), i8** table, i64 tasks)

Kernels know it by its address only. Tasks are pulled: whoever has nothing to do takes
the next one, so a core that another process has taken away costs what it would have
done and no more. One caller at a time has the threads; a caller that finds them taken
(by another Python thread, or by the region it runs in) does its tasks itself.

There are two drivers. `thread_pool_module` is a pool of its own. Its data structure is
one global, `pool`, of 64-bit words on separate cache lines:

- the job: `REMAINING` tasks, `SEATS` for threads that may still join, what to call, and
  how many tasks were taken from the `BACK`; the caller takes them from the `FRONT` and
  counts for itself. A claim is one atomic subtraction from `REMAINING`, and it is a
  claim if something was left. The job's other words are read after a claim only, and
  are not written before every claimed task is done: a thread that comes late finds
  nothing to claim, or a task of the next job, and both are right. So the caller waits
  for tasks, never for threads; an OpenMP region ends when every thread has come to its
  end.
- `DONE`, the tasks that helpers have finished, which the caller watches.
- `WAKE` and `SLEEPERS`: helpers without work look for it for a while, then sleep in
  the kernel (a futex). To wake one takes longer than many regions, so the caller
  begins alone and wakes sleepers when the tasks it has done let it expect that the
  rest is worth it. What was done alone in regions just before counts too (`ALONE`):
  many short regions in a row are worth as much as a long one. A helper reads `WAKE`
  before it looks for the last time; a caller that wants it changes `WAKE` after it
  has published: the helper sees the tasks, or the kernel sees the change and does
  not let it sleep.
- the settings, which are written from outside: the number of threads, lengths of time
  in ticks of the processor's clock, addresses of functions of the C library.

Helpers are started by the first region that wants them and are never ended. Since the
caller takes part, a pool whose helpers are missing (they could not be started, or the
process is a fork) is slow, not wrong.

`foreign_pool_module` runs the same tasks on a pool with the interface of Numba's:
its threads pull from a counter on the caller's stack.

Both modules name no external symbol, so that they can be kept as objects.

Start reading at `thread_pool_module`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tapejit.base.errors import UnsupportedError
from tapejit.targets.cpu.call.thread_layout import (
    ALONE,
    BACK,
    BUSY,
    DONE,
    ENDED,
    FRONT,
    FUTEX,
    HELPERS,
    LINE,
    LOOK,
    PARALLEL_FOR,
    PATIENCE,
    PTHREAD_CREATE,
    PTHREAD_SIGMASK,
    REMAINING,
    ROOM,
    SEATS,
    SLEEPERS,
    SYSCALL,
    TABLE,
    TASK,
    TASKS,
    THREADS,
    WAITING,
    WAKE,
    WORDS,
    WORTH,
)
from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.llvm.ir import (
    Block,
    FunctionType,
    IRBuilder,
    LLVMModule,
    Value,
)

FUTEX_WAIT: Final = 128  # FUTEX_WAIT | FUTEX_PRIVATE_FLAG
FUTEX_WAKE: Final = 129
SIG_SETMASK: Final = 2
SIGSET_WORDS: Final = 16  # 128 bytes: glibc's and musl's sigset_t
# All signals but those that a thread raises itself: ILL, TRAP, ABRT, BUS, FPE, SEGV.
BLOCKED: Final = ~sum(1 << (number - 1) for number in (4, 5, 6, 7, 8, 11))

I1, I32, I64, POINTER = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.PointerType()
VOID = ir.VoidType()
TASK_TYPE = ir.FunctionType(VOID, [POINTER, I64])
SYSCALL_TYPE = ir.FunctionType(I64, [I64], var_arg=True)
CREATE_TYPE = ir.FunctionType(I32, [POINTER, POINTER, POINTER, POINTER])
SIGMASK_TYPE = ir.FunctionType(I32, [I32, POINTER, POINTER])
PARALLEL_TYPE = ir.FunctionType(VOID, [POINTER, POINTER, I64])
# Numba's: fn, args, dimensions, steps, data, inner_ndim, array_count, num_threads
PARALLEL_FOR_TYPE = ir.FunctionType(VOID, [POINTER] * 5 + [I64, I64, I32])
BODY_TYPE = ir.FunctionType(VOID, [POINTER] * 4)


class PoolFunction:
    """The body of one function over the words of the pool."""

    def __init__(self, module: LLVMModule, name: str, signature: FunctionType) -> None:
        self.function = ir.LLVMFunction(module, signature, name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.pool = module.globals["pool"]

    @property
    def operands(self) -> tuple[Value, ...]:
        return self.function.args

    def place(self, word: int) -> Value:
        return self.builder.gep(self.pool, [number(0), number(word)], inbounds=True)

    def get(self, word: int, order: str = "monotonic") -> Value:
        return self.builder.load_atomic(self.place(word), order, 8, typ=I64)

    def put(self, word: int, value: Value, order: str = "monotonic") -> None:
        self.builder.store_atomic(value, self.place(word), order, 8)

    def change(self, op: str, word: int, by: Value, order: str = "seq_cst") -> Value:
        """What the word was before."""
        return self.builder.atomic_rmw(op, self.place(word), by, order)

    def call(self, signature: FunctionType, address: Value, *operands: Value) -> Value:
        """Call what is at an address."""
        pointer = self.builder.inttoptr(address, signature.as_pointer())
        return self.builder.call(pointer, operands)

    def is_positive(self, value: Value) -> Value:
        return self.builder.icmp_signed(">", value, number(0))

    @contextmanager
    def forever(self) -> Iterator[tuple[Block, Block]]:
        """A loop; gives the blocks to go on with and to leave to."""
        again = self.function.append_basic_block("again")
        out = self.function.append_basic_block("out")
        self.builder.branch(again)
        self.builder.position_at_end(again)
        yield again, out
        if not self.builder.block.is_terminated:
            self.builder.branch(again)
        self.builder.position_at_end(out)

    def leave_if(self, condition: Value, out: Block) -> None:
        """Go to `out` if the condition holds, and on if not."""
        following = self.function.append_basic_block("following")
        self.builder.cbranch(condition, out, following)
        self.builder.position_at_end(following)

    def counter(self) -> Value:
        """A local variable that starts at 0."""
        with self.builder.goto_entry_block():
            place = self.builder.alloca(I64)
        self.builder.store(number(0), place)
        return place

    def add(self, place: Value, by: int = 1) -> Value:
        """What the variable was before."""
        before = self.builder.load(place, typ=I64)
        self.builder.store(self.builder.add(before, number(by)), place)
        return before

    def pause(self) -> None:
        """Tell the processor that this is a loop that waits."""
        match platform.machine().lower():
            case "x86_64" | "amd64":
                self.builder.intrinsic("llvm.x86.sse2.pause", VOID, [])
            case "aarch64" | "arm64":
                hint = [ir.Literal(I32, 1)]  # yield
                self.builder.intrinsic("llvm.aarch64.hint", VOID, hint)

    def clock(self) -> Value:
        """The processor's clock: reading it takes no call."""
        return read_clock(self.builder)

    def look(self, found: Callable[[], Value], out: Block, limit: int) -> None:
        """Leave to `out` as soon as something is found; look for so many ticks."""
        b = self.builder
        ticks, start = self.get(limit), self.clock()
        with self.forever() as (_, tired):
            self.leave_if(found(), out)
            # Unsigned: a clock that goes back, on another core, ends it.
            passed = b.sub(self.clock(), start)
            self.leave_if(b.icmp_unsigned(">", passed, ticks), tired)
            self.pause()

    def sleep(self, word: int, seen: Value) -> None:
        """Sleep until woken, if the low half of the word is still what was seen."""
        self._futex(word, FUTEX_WAIT, self.builder.trunc(seen, I32))

    def awaken(self, word: int, count: Value) -> None:
        """Wake up to `count` of those who sleep at the word."""
        self._futex(word, FUTEX_WAKE, self.builder.trunc(count, I32))

    def _futex(self, word: int, operation: int, value: Value) -> None:
        what, nowhere = ir.Literal(I32, operation), ir.Literal(POINTER, None)
        self.call(
            SYSCALL_TYPE,
            self.get(SYSCALL),
            self.get(FUTEX),
            self.builder.ptrtoint(self.place(word), I64),
            what,
            value,
            nowhere,  # no time limit
        )


def number(value: int) -> Value:
    return ir.Literal(I64, value)


def read_clock(builder: IRBuilder) -> Value:
    """The processor's clock, in ticks of its own."""
    match platform.machine().lower():
        case "x86_64" | "amd64":
            return builder.intrinsic("llvm.readcyclecounter", I64, [])
        case "aarch64" | "arm64":
            kind = ir.FunctionType(I64, [])
            text = "mrs $0, cntvct_el0"
            return builder.asm(kind, text, "=r", [], side_effect=True)
        case other:
            raise UnsupportedError(f"there is no thread pool for {other}")


def new_module(name: str) -> LLVMModule:
    """A module with the words of a pool, `state` that gives their address, and a task.

    The task is `trial`: it adds one to the word of the table at its index.
    """
    module = ir.LLVMModule(name)
    kind = ir.ArrayType(I64, WORDS)
    pool = ir.GlobalVariable(module, kind, "pool")
    pool.linkage, pool.align = "internal", 8 * LINE
    pool.initializer = ir.Literal(kind, None)
    state = PoolFunction(module, "state", ir.FunctionType(POINTER, []))
    state.builder.ret(state.place(0))
    trial = PoolFunction(module, "trial", TASK_TYPE)
    table, index = trial.operands
    count = trial.builder.gep(table, [index], source_etype=I64)
    trial.builder.atomic_rmw("add", count, number(1), "monotonic")
    trial.builder.ret_void()
    return module


def emit_serial(code: PoolFunction) -> None:
    """The rest of `parallel`: all tasks, one after the other."""
    task, table, tasks = code.operands
    at = code.counter()
    with code.forever() as (_, out):
        index = code.add(at)
        code.leave_if(code.builder.icmp_signed(">=", index, tasks), out)
        call_task(code, task, table, index)
    code.builder.ret_void()


def call_task(code: PoolFunction, task: Value, table: Value, index: Value) -> None:
    code.call(TASK_TYPE, code.builder.ptrtoint(task, I64), table, index)


def emit_entry(code: PoolFunction) -> None:
    """Take the pool, or do everything here: the beginning of `parallel`."""
    b, serial = code.builder, code.function.append_basic_block("serial")
    _, _, tasks = code.operands
    code.leave_if(b.icmp_signed("<=", tasks, number(1)), serial)
    code.leave_if(b.icmp_signed("<=", code.get(THREADS), number(1)), serial)
    taken = b.cmpxchg(
        code.place(BUSY), number(0), number(1), "acquire", failordering="monotonic"
    )
    code.leave_if(b.not_(b.extract_value(taken, 1)), serial)
    rest = b.block
    b.position_at_end(serial)
    emit_serial(code)
    b.position_at_end(rest)


def smaller(code: PoolFunction, x: Value, y: Value) -> Value:
    return code.builder.select(code.builder.icmp_signed("<", x, y), x, y)


def emit_clock(module: LLVMModule) -> None:
    """`clock()`: for whoever has to know how long a tick is."""
    code = PoolFunction(module, "clock", ir.FunctionType(I64, []))
    code.builder.ret(code.clock())


def emit_claim(code: PoolFunction, none: Block, is_helper: bool) -> Value:
    """Claim a task and run it, or go to `none`; how many tasks were left before.

    The caller takes the first one that is left, a helper the last one: from call to
    call each has the same part of what tasks write and read, in its own caches.
    """
    b = code.builder
    left = code.change("sub", REMAINING, number(1), "acq_rel")
    code.leave_if(b.not_(code.is_positive(left)), none)
    if is_helper:
        before = code.change("add", BACK, number(1), "monotonic")
        index = b.sub(b.sub(code.get(TASKS), number(1)), before)
    else:
        index = code.get(FRONT)
        code.put(FRONT, b.add(index, number(1)))
    table = b.inttoptr(code.get(TABLE), POINTER)
    call_task(code, b.inttoptr(code.get(TASK), POINTER), table, index)
    return left


def emit_pull(module: LLVMModule, is_helper: bool) -> Value:
    """`pull()`: claim tasks and run them until none is left; how many they were."""
    name = "pull_last" if is_helper else "pull_first"
    code = PoolFunction(module, name, ir.FunctionType(I64, []))
    code.function.linkage = "internal"
    count = code.counter()
    with code.forever() as (_, out):
        emit_claim(code, out, is_helper)
        code.add(count)
    code.builder.ret(code.builder.load(count, typ=I64))
    return code.function


def emit_begin(module: LLVMModule) -> Value:
    """`begin(wanted)`: claim and run tasks until it is clear whether to wake helpers.

    That is so when the rest, at the pace of the tasks done here, is worth it, when
    nobody who is wanted sleeps, or when no task is left. How many they were.
    """
    code = PoolFunction(module, "begin", ir.FunctionType(I64, [I64]))
    code.function.linkage = "internal"
    b = code.builder
    (wanted,) = code.operands
    count, start = code.counter(), code.clock()
    pause = b.sub(start, code.get(ENDED))
    # After so long a helper that had been woken would sleep again.
    forgotten = b.icmp_unsigned(">", pause, code.get(LOOK))
    alone = b.select(forgotten, number(0), code.get(ALONE))
    code.put(ALONE, number(0))
    wake = code.function.append_basic_block("wake")
    finish = code.function.append_basic_block("finish")
    with code.forever() as (_, none):
        awake = b.sub(code.get(HELPERS), code.get(SLEEPERS, "seq_cst"))
        missing = b.sub(wanted, awake)
        code.leave_if(b.not_(code.is_positive(missing)), finish)
        left = b.sub(emit_claim(code, none, is_helper=False), number(1))
        done = b.add(code.add(count), number(1))
        pace = b.udiv(b.sub(code.clock(), start), done)
        gain = b.add(b.mul(pace, left), alone)
        worth = b.icmp_unsigned(">", gain, code.get(WORTH))
        code.leave_if(b.and_(worth, code.is_positive(left)), wake)
    code.put(ALONE, b.add(alone, b.sub(code.clock(), start)))
    b.branch(finish)
    b.position_at_end(wake)
    code.change("add", WAKE, number(1))
    code.awaken(WAKE, smaller(code, missing, left))
    b.branch(finish)
    b.position_at_end(finish)
    b.ret(b.load(count, typ=I64))
    return code.function


def emit_helper(module: LLVMModule, pull: Value) -> Value:
    """`helper(unused)`: what a thread of the pool does, for ever."""
    code = PoolFunction(module, "helper", ir.FunctionType(POINTER, [POINTER]))
    code.function.linkage = "internal"
    b = code.builder

    def has_work() -> Value:
        left = code.is_positive(code.get(REMAINING, "seq_cst"))
        return b.and_(left, code.is_positive(code.get(SEATS, "seq_cst")))

    work = code.function.append_basic_block("work")
    with code.forever() as (again, _):
        code.look(has_work, work, LOOK)
        seen = code.get(WAKE, "seq_cst")
        code.change("add", SLEEPERS, number(1))
        # The last look: what is published from now on comes with a change of `wake`.
        with b.if_then(b.not_(has_work())):
            code.sleep(WAKE, seen)
        code.change("sub", SLEEPERS, number(1))
        b.branch(again)

        b.position_at_end(work)
        seat = code.change("sub", SEATS, number(1))
        with b.if_then(code.is_positive(seat)):
            count = b.call(pull, [])
            with b.if_then(code.is_positive(count)):
                code.change("add", DONE, count)
                # From here on the job may be over; that costs an idle wake at most.
                with b.if_then(code.is_positive(code.get(WAITING, "seq_cst"))):
                    code.awaken(DONE, number(1))
        b.branch(again)
    b.unreachable()  # where the loop would end
    return code.function


def emit_start(module: LLVMModule, helper: Value) -> Value:
    """`start(wanted)`: make threads until there are so many helpers, or no room.

    The threads inherit a mask that keeps signals from them: Python's handlers are to
    run in Python's threads, where they interrupt what is waiting.
    """
    code = PoolFunction(module, "start", ir.FunctionType(VOID, [I64]))
    code.function.linkage = "internal"
    b = code.builder
    (wanted,) = code.operands
    masks = ir.ArrayType(I64, SIGSET_WORDS)
    thread, blocked, before = (b.alloca(kind) for kind in (I64, masks, masks))
    b.store(ir.Literal(masks, [BLOCKED] + [-1] * (SIGSET_WORDS - 1)), blocked)
    how, nothing = ir.Literal(I32, SIG_SETMASK), ir.Literal(POINTER, None)
    code.call(SIGMASK_TYPE, code.get(PTHREAD_SIGMASK), how, blocked, before)
    with code.forever() as (_, out):
        running = code.get(HELPERS)
        code.leave_if(b.icmp_signed(">=", running, wanted), out)
        failed = code.call(
            CREATE_TYPE, code.get(PTHREAD_CREATE), thread, nothing, helper, nothing
        )
        with b.if_then(b.icmp_signed("!=", failed, ir.Literal(I32, 0))):
            code.put(ROOM, running)  # not tried again at each region
            b.branch(out)
        code.put(HELPERS, b.add(running, number(1)))
    code.call(SIGMASK_TYPE, code.get(PTHREAD_SIGMASK), how, before, nothing)
    b.ret_void()
    return code.function


def thread_pool_module() -> LLVMModule:
    """The driver with threads of its own.

    `state()` gives the address of the words; `ROOM` (at most how many helpers) and
    the settings must be written before `parallel` is called. `clock()` reads the clock
    in whose ticks they are.

    >>> functions = [each.name for each in thread_pool_module().functions]
    >>> [name for name in functions if name in ("parallel", "state", "clock")]
    ['state', 'clock', 'parallel']
    """
    module = new_module("tapejit_threads")
    emit_clock(module)
    pull, begin = emit_pull(module, is_helper=False), emit_begin(module)
    helper = emit_helper(module, emit_pull(module, is_helper=True))
    start = emit_start(module, helper)

    code = PoolFunction(module, "parallel", PARALLEL_TYPE)
    b = code.builder
    task, table, tasks = code.operands
    emit_entry(code)
    together = smaller(code, code.get(THREADS), tasks)
    wanted = smaller(code, b.sub(together, number(1)), code.get(ROOM))
    with b.if_then(b.icmp_signed(">", wanted, code.get(HELPERS))):
        b.call(start, [wanted])
    code.put(TASK, b.ptrtoint(task, I64))
    code.put(TABLE, b.ptrtoint(table, I64))
    code.put(TASKS, tasks)
    code.put(FRONT, number(0))
    code.put(BACK, number(0))
    code.put(DONE, number(0))
    code.put(WAITING, number(0))
    code.put(SEATS, wanted, "seq_cst")
    code.change("xchg", REMAINING, tasks)  # publishes all of the above
    first = b.call(begin, [wanted])
    others = b.sub(b.sub(tasks, first), b.call(pull, []))
    finish = code.function.append_basic_block("finish")

    def all_done() -> Value:
        return b.icmp_signed("==", code.get(DONE, "seq_cst"), others)

    code.look(all_done, finish, PATIENCE)
    # A helper has lost its processor in the middle of a task. This one may have it.
    code.put(WAITING, number(1), "seq_cst")
    with code.forever() as (_, out):
        seen = code.get(DONE, "seq_cst")
        code.leave_if(b.icmp_signed("==", seen, others), out)
        code.sleep(DONE, seen)
    b.branch(finish)
    b.position_at_end(finish)
    code.put(ENDED, code.clock())
    code.put(BUSY, number(0), "release")
    b.ret_void()
    return module


def foreign_pool_module() -> LLVMModule:
    """The driver over a pool whose `parallel_for` is one of Numba's.

    >>> [each.name for each in foreign_pool_module().functions]
    ['state', 'trial', 'body', 'parallel']
    """
    module = new_module("tapejit_foreign_threads")
    job = ir.ArrayType(I64, 4)  # the next index; task, table, tasks

    code = PoolFunction(module, "body", BODY_TYPE)
    code.function.linkage = "internal"
    b = code.builder
    data = code.operands[3]
    following, *fixed = (
        b.gep(data, [number(at)], source_etype=I64) for at in range(job.count)
    )
    task, table, tasks = (b.load(place, typ=I64) for place in fixed)
    task, table = b.inttoptr(task, POINTER), b.inttoptr(table, POINTER)
    with code.forever() as (_, out):
        index = b.atomic_rmw("add", following, number(1), "monotonic")
        code.leave_if(b.icmp_signed(">=", index, tasks), out)
        call_task(code, task, table, index)
    b.ret_void()
    body = code.function

    code = PoolFunction(module, "parallel", PARALLEL_TYPE)
    b = code.builder
    task, table, tasks = code.operands
    with b.goto_entry_block():
        data, threads = b.alloca(job), b.alloca(I64)
        data.align = 64
    emit_entry(code)
    together = smaller(code, code.get(THREADS), tasks)
    values = (number(0), b.ptrtoint(task, I64), b.ptrtoint(table, I64), tasks)
    for at, value in enumerate(values):
        b.store(value, b.gep(data, [number(0), number(at)]))
    b.store(together, threads)
    nothing = ir.Literal(POINTER, None)
    code.call(
        PARALLEL_FOR_TYPE,
        code.get(PARALLEL_FOR),
        body,
        nothing,  # no arrays
        threads,
        nothing,
        data,
        number(0),
        number(0),
        b.trunc(together, I32),
    )
    code.put(BUSY, number(0), "release")
    b.ret_void()
    return module
