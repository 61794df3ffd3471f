"""The scheduler of emulated threads, as LLVM text: who runs when, and at what it looks.

One module for the whole process, compiled when the first kernel is; those of kernels
know it by `DECLARED`. A thread is a coroutine that stops at barriers and at operations
of its warp. Its state, in `@tj.state`, is `4 * site + kind`: where it stopped, and why.
A warp runs on when all of its threads have stopped for it at one site, a block when no
warp can and all threads stopped at a barrier, those of a warp at one site. Everything
else, a barrier that some threads do not reach for one, ends the block: `tj.run_block`
is not zero.

Threads run on in the order that is given. With `ahead` it is the first or the last warp
that can, alone: one is as far before the others as barriers let it.

Every access to memory that threads share asks `tj.touch` first. It knows which memory
is alive, and keeps a log of all accesses where one is wanted.

Start reading at `RUN_BLOCK`.
"""

from __future__ import annotations

from typing import Final

WARP: Final = 32
MOST_THREADS: Final = 1024
SLOT_WORDS: Final = 12  # what a thread gives to its warp: an mma takes ten words
SLOTS: Final = MOST_THREADS * SLOT_WORDS

# Kinds of stops.
OVER, FOR_WARP, FOR_BLOCK, AT_FAULT = range(4)

# Which warp is to be ahead of the others.
NONE_AHEAD, FIRST_AHEAD, LAST_AHEAD = range(3)


def loop(name: str, first: str, end: str, body: str) -> str:
    """Text that repeats `body` for `%name`, at least once; it goes on in `name.out`."""
    return f"""
  br label %{name}.first
{name}.first:
  br label %{name}.head
{name}.head:
  %{name} = phi i32 [{first}, %{name}.first], [%{name}.next, %{name}.end]
  {body}
  br label %{name}.end
{name}.end:
  %{name}.next = add i32 %{name}, 1
  %{name}.more = icmp slt i32 %{name}.next, {end}
  br i1 %{name}.more, label %{name}.head, label %{name}.out
{name}.out:"""


def element(name: str, kind: str, array: str, index: str) -> str:
    """Text that loads one element of an array."""
    return f"""%{name}.at = getelementptr {kind}, ptr {array}, i32 {index}
  %{name} = load {kind}, ptr %{name}.at"""


GLOBALS: Final = f"""
%tj.access = type {{ i64, i32, i32, i32, i32 }}
@tj.state = global [{MOST_THREADS} x i32] zeroinitializer
@tj.handles = internal global [{MOST_THREADS} x ptr] zeroinitializer
@tj.ready = internal global [{MOST_THREADS // WARP} x i8] zeroinitializer
@tj.slots = global [{SLOTS} x i32] zeroinitializer, align 16
@tj.threads = global i32 0
@tj.blocks = global i32 0
@tj.epoch = internal global i32 0
@tj.warp_epochs = global [{MOST_THREADS} x i32] zeroinitializer
@tj.alive = global ptr null
@tj.alive_count = global i32 0
@tj.fault = global %tj.access zeroinitializer
@tj.log = global ptr null
@tj.log_size = global i64 0
@tj.log_room = global i64 0
declare ptr @malloc(i64)
declare ptr @realloc(ptr, i64)
declare void @free(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.coro.resume(ptr)
declare void @llvm.coro.destroy(ptr)
"""

# What kernels look at, and call.
VARIABLES: Final = {
    "tj.state": f"[{MOST_THREADS} x i32]",
    "tj.warp_epochs": f"[{MOST_THREADS} x i32]",
    "tj.slots": f"[{SLOTS} x i32]",
    "tj.threads": "i32",
    "tj.blocks": "i32",
}
DECLARED: Final = f"""
{chr(10).join(f"@{x} = external global {kind}" for x, kind in VARIABLES.items())}
declare i1 @tj.touch(ptr, i64, i64, i32, i32)
declare ptr @malloc(i64)
declare void @free(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare token @llvm.coro.id(i32, ptr, ptr, ptr)
declare i64 @llvm.coro.size.i64()
declare ptr @llvm.coro.begin(token, ptr)
declare i8 @llvm.coro.suspend(token, i1)
declare ptr @llvm.coro.free(token, ptr)
declare void @llvm.coro.end(ptr, i1, token)
"""

# The state that all threads of a warp have, or -1.
COMMON_STATE: Final = f"""
define internal i32 @tj.common_state(i32 %warp, i32 %threads) {{
  %low = mul i32 %warp, {WARP}
  %whole = add i32 %low, {WARP}
  %is_whole = icmp slt i32 %whole, %threads
  %high = select i1 %is_whole, i32 %whole, i32 %threads
  {element("first", "i32", "@tj.state", "%low")}
  br label %head
head:
  %i = phi i32 [%low, %0], [%next, %same]
  {element("one", "i32", "@tj.state", "%i")}
  %is_same = icmp eq i32 %one, %first
  br i1 %is_same, label %same, label %differ
same:
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, %high
  br i1 %more, label %head, label %done
done:
  ret i32 %first
differ:
  ret i32 -1
}}
"""

MAKE_THREAD: Final = """%thread = call ptr %start(ptr %arguments, i32 %new, i32 %block)
  %slot = getelementptr ptr, ptr @tj.handles, i32 %new
  store ptr %thread, ptr %slot"""

LOOK_AT_WARP: Final = f"""%any = phi i32 [0, %w.first], [%any.now, %w.end]
  %over = phi i32 [1, %w.first], [%over.now, %w.end]
  %at_barrier = phi i32 [1, %w.first], [%at_barrier.now, %w.end]
  %mirrored = sub i32 %last_warp, %w
  %which = select i1 %from_last, i32 %mirrored, i32 %w
  %common = call i32 @tj.common_state(i32 %which, i32 %threads)
  %kind = and i32 %common, 3
  %is_known = icmp ne i32 %common, -1
  %for_warp = icmp eq i32 %kind, {FOR_WARP}
  %can = and i1 %is_known, %for_warp
  %is_first = icmp eq i32 %any, 0
  %may = or i1 %is_first, %all_run
  %goes = and i1 %can, %may
  %goes.8 = zext i1 %goes to i8
  %ready.at = getelementptr i8, ptr @tj.ready, i32 %which
  store i8 %goes.8, ptr %ready.at
  %goes.32 = zext i1 %goes to i32
  %any.now = or i32 %any, %goes.32
  %is_over = icmp eq i32 %common, {OVER}
  %is_over.32 = zext i1 %is_over to i32
  %over.now = and i32 %over, %is_over.32
  %for_block = icmp eq i32 %kind, {FOR_BLOCK}
  %waits = and i1 %is_known, %for_block
  %waits.32 = zext i1 %waits to i32
  %at_barrier.now = and i32 %at_barrier, %waits.32"""

RESUME_THREAD: Final = f"""{element("t", "i32", "%order", "%k")}
  %warp = udiv i32 %t, {WARP}
  {element("is_ready", "i8", "@tj.ready", "%warp")}
  %runs = icmp ne i8 %is_ready, 0
  br i1 %runs, label %run, label %k.end
run:
  {element("handle", "ptr", "@tj.handles", "%t")}
  call void @llvm.coro.resume(ptr %handle)
  {element("after", "i32", "@tj.state", "%t")}
  %is_fault = icmp eq i32 %after, {AT_FAULT}
  br i1 %is_fault, label %clean, label %passed
passed:"""

# From here on it is for their warps that threads wait.
RELEASE_THREAD: Final = f"""{element("old", "i32", "@tj.state", "%b")}
  %freed = sub i32 %old, {FOR_BLOCK - FOR_WARP}
  store i32 %freed, ptr %old.at"""

DESTROY_THREAD: Final = f"""{element("dead", "ptr", "@tj.handles", "%d")}
  call void @llvm.coro.destroy(ptr %dead)"""

# One block: 0 if all of its threads are over, 1 if some wait for what does not come, 2
# if one looked at memory that is not alive. `%start` makes the coroutine of a thread,
# `%poison` fills shared memory, `%order` has the threads as they run one by one.
RUN_BLOCK: Final = f"""
define i32 @tj.run_block(ptr %start, ptr %arguments, i32 %block, ptr %order,
                         i32 %ahead, ptr %poison) {{
  %threads = load i32, ptr @tj.threads
  %padded = add i32 %threads, {WARP - 1}
  %warps = udiv i32 %padded, {WARP}
  %last_warp = sub i32 %warps, 1
  %all_run = icmp eq i32 %ahead, {NONE_AHEAD}
  %from_last = icmp eq i32 %ahead, {LAST_AHEAD}
  store i32 0, ptr @tj.epoch
  call void @llvm.memset.p0.i64(ptr @tj.warp_epochs, i8 0, i64 {4 * MOST_THREADS}, i1 0)
  call void @llvm.memset.p0.i64(ptr @tj.slots, i8 -1, i64 {4 * SLOTS}, i1 0)
  call void %poison()
  {loop("new", "0", "%threads", MAKE_THREAD)}
  br label %round
round:
  {loop("w", "0", "%warps", LOOK_AT_WARP)}
  %some = icmp ne i32 %any.now, 0
  br i1 %some, label %resume, label %stuck
resume:
  {loop("k", "0", "%threads", RESUME_THREAD)}
  br label %round
stuck:
  %is_left = xor i32 %over.now, 1
  %is_barrier = icmp ne i32 %at_barrier.now, 0
  br i1 %is_barrier, label %release, label %clean
release:
  %epoch = load i32, ptr @tj.epoch
  %epoch.next = add i32 %epoch, 1
  store i32 %epoch.next, ptr @tj.epoch
  {loop("b", "0", "%threads", RELEASE_THREAD)}
  br label %round
clean:
  %code = phi i32 [2, %run], [%is_left, %stuck]
  {loop("d", "0", "%threads", DESTROY_THREAD)}
  ret i32 %code
}}
"""

# Whether an access may be: all of it is in one piece of memory that is alive, at a
# multiple of what `%mask` is one less than. `tj.alive` has where each piece begins and
# ends, ascending.
TOUCH: Final = f"""
define i1 @tj.touch(ptr %pointer, i64 %size, i64 %mask, i32 %thread,
                             i32 %site) {{
  %address = ptrtoint ptr %pointer to i64
  %beside = and i64 %address, %mask
  %is_aligned = icmp eq i64 %beside, 0
  %end = add i64 %address, %size
  %pieces = load ptr, ptr @tj.alive
  %count = load i32, ptr @tj.alive_count
  br label %search
search:
  %low = phi i32 [0, %0], [%low.next, %narrow]
  %high = phi i32 [%count, %0], [%high.next, %narrow]
  %is_open = icmp slt i32 %low, %high
  br i1 %is_open, label %narrow, label %found
narrow:
  %sum = add i32 %low, %high
  %middle = lshr i32 %sum, 1
  %first.index = shl i32 %middle, 1
  {element("first", "i64", "%pieces", "%first.index")}
  %is_before = icmp ule i64 %first, %address
  %above = add i32 %middle, 1
  %low.next = select i1 %is_before, i32 %above, i32 %low
  %high.next = select i1 %is_before, i32 %high, i32 %middle
  br label %search
found:
  %twice = shl i32 %low, 1
  %last.index = sub i32 %twice, 1
  %has_piece = icmp ne i32 %low, 0
  br i1 %has_piece, label %compare, label %wrong
compare:
  {element("last", "i64", "%pieces", "%last.index")}
  %is_inside = icmp ule i64 %end, %last
  %may = and i1 %is_inside, %is_aligned
  br i1 %may, label %right, label %wrong
wrong:
  store i64 %address, ptr @tj.fault
  %fault.thread = getelementptr %tj.access, ptr @tj.fault, i32 0, i32 1
  store i32 %thread, ptr %fault.thread
  %fault.site = getelementptr %tj.access, ptr @tj.fault, i32 0, i32 2
  store i32 %site, ptr %fault.site
  ret i1 0
right:
  %room = load i64, ptr @tj.log_room
  %is_watched = icmp ne i64 %room, 0
  br i1 %is_watched, label %note, label %done
note:
  %log = load ptr, ptr @tj.log
  %number = load i64, ptr @tj.log_size
  %is_full = icmp eq i64 %number, %room
  br i1 %is_full, label %grow, label %write
grow:
  %twice_room = shl i64 %room, 1
  %bytes = mul i64 %twice_room, 24
  %larger = call ptr @realloc(ptr %log, i64 %bytes)
  store ptr %larger, ptr @tj.log
  store i64 %twice_room, ptr @tj.log_room
  br label %write
write:
  %into = phi ptr [%log, %note], [%larger, %grow]
  %entry = getelementptr %tj.access, ptr %into, i64 %number
  store i64 %address, ptr %entry
  %entry.thread = getelementptr %tj.access, ptr %entry, i32 0, i32 1
  store i32 %thread, ptr %entry.thread
  %entry.site = getelementptr %tj.access, ptr %entry, i32 0, i32 2
  store i32 %site, ptr %entry.site
  %epoch = load i32, ptr @tj.epoch
  %entry.epoch = getelementptr %tj.access, ptr %entry, i32 0, i32 3
  store i32 %epoch, ptr %entry.epoch
  {element("warp_epoch", "i32", "@tj.warp_epochs", "%thread")}
  %entry.warp_epoch = getelementptr %tj.access, ptr %entry, i32 0, i32 4
  store i32 %warp_epoch, ptr %entry.warp_epoch
  %number.next = add i64 %number, 1
  store i64 %number.next, ptr @tj.log_size
  br label %done
done:
  ret i1 1
}}
"""

# A log for accesses, empty.
OPEN_LOG: Final = """
define void @tj.open_log(i64 %room) {
  %old = load ptr, ptr @tj.log
  %bytes = mul i64 %room, 24
  %log = call ptr @realloc(ptr %old, i64 %bytes)
  store ptr %log, ptr @tj.log
  store i64 %room, ptr @tj.log_room
  store i64 0, ptr @tj.log_size
  ret void
}
define void @tj.close_log() {
  %log = load ptr, ptr @tj.log
  call void @free(ptr %log)
  store ptr null, ptr @tj.log
  store i64 0, ptr @tj.log_room
  ret void
}
"""

SCHEDULER: Final = GLOBALS + COMMON_STATE + RUN_BLOCK + TOUCH + OPEN_LOG
