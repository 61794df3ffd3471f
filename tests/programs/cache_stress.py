"""Processes that compile or load kernels through one store, while it is vandalised.

    python tests/programs/cache_stress.py [--rounds 25] [--seed 0]

In each round several processes want some kernels: what they find in the store they
load, the rest they compile and put there, and every result is compared with NumPy's.
Meanwhile some of them are killed, and entries are changed where they lie: bits are
flipped, ends cut off or made longer, files emptied, put under each other's names,
written over with other entries or removed. Whoever was not killed has to end well.

The exit code is 1 if a process crashed, hung or had a wrong result. The processes are
forks of one that has loaded everything but has compiled nothing, so a round takes
little more than its work.

Start reading at `main`.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tapejit.runtime.store.key import cache_key
from tapejit.runtime.store.store import Store
from tapejit.targets.cpu.machine.host import F32, F64, aligned, loop_module
from tapejit.targets.cpu.machine.objects import LoadedObject, emit, load_object

KERNELS = 8
WORKERS = 5
VICTIMS = 2
SECONDS = 60  # more than any worker takes: one that hangs is ended and counted
WIDTH = 4
LIMIT = 9_000  # bytes: not enough for all kernels, so that some are always evicted


@dataclasses.dataclass(frozen=True)
class Kernel:
    """x * factor + number, with numbers that no other kernel has."""

    number: int

    @property
    def dtype(self) -> Any:
        return np.float32 if self.number % 2 else np.float64

    @property
    def key(self) -> str:
        return cache_key(f"kernel {self.number}", extras={"width": WIDTH})

    def module(self) -> Any:
        factor, number = float(self.number + 2), float(self.number)
        format = F32 if self.dtype is np.float32 else F64
        return loop_module(lambda b, x: x * factor + number, 1, format, WIDTH)

    def expected(self, x: Any) -> Any:
        return x * self.dtype(self.number + 2) + self.dtype(self.number)


def get_or_compile(store: Store, kernel: Kernel) -> LoadedObject:
    """A kernel's code from the store, or made and put there."""
    entry = store.get(kernel.key)
    if entry is not None:
        return load_object(entry.code, entry.header)
    made = emit(kernel.module())
    header = {**made.header, "name": f"kernel {kernel.number}", "kernels": 1}
    store.put(kernel.key, header, made.code)
    return load_object(made.code, made.header)


def is_right(loaded: LoadedObject, kernel: Kernel) -> bool:
    x, out = (aligned(8 * WIDTH, kernel.dtype) for _ in range(2))
    x[:] = np.arange(x.size)
    out[:] = -1
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    signature(loaded.functions["run"])(x.ctypes.data, out.ctypes.data, 8)
    return np.array_equal(out, kernel.expected(x))


def work(folder: Path, seed: int, report: int) -> int:
    """What one process does; its exit code. `report` is where it tells its counts."""
    signal.alarm(SECONDS)
    chosen = random.Random(seed)
    store = Store(folder, limit=LIMIT)
    for _ in range(6):
        kernel = Kernel(chosen.randrange(KERNELS))
        if not is_right(get_or_compile(store, kernel), kernel):
            print(f"kernel {kernel.number}: a wrong result", file=sys.stderr)
            return 1
    os.write(report, json.dumps(dataclasses.asdict(store.counts)).encode() + b"\n")
    return 0


def start_worker(folder: Path, seed: int, report: int) -> int:
    """The number of a new process that works."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        code = work(folder, seed, report)
    except BaseException as error:  # told by the exit code; a child ends here
        print(f"a worker failed: {error!r}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


# Vandals: each does something to one entry, or to two.


def flip_a_bit(path: Path, other: Path, chosen: random.Random) -> None:
    with open(path, "r+b", buffering=0) as file:
        at = chosen.randrange(max(1, os.fstat(file.fileno()).st_size))
        file.seek(at)
        byte = file.read(1) or b"\0"
        file.seek(at)
        file.write(bytes([byte[0] ^ 1 << chosen.randrange(8)]))


def cut_off_the_end(path: Path, other: Path, chosen: random.Random) -> None:
    os.truncate(path, chosen.randrange(max(1, path.stat().st_size)))


def make_longer(path: Path, other: Path, chosen: random.Random) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(chosen.randbytes(chosen.randrange(1, 5000)))


def empty(path: Path, other: Path, chosen: random.Random) -> None:
    os.truncate(path, 0)


def exchange(path: Path, other: Path, chosen: random.Random) -> None:
    os.replace(path, other)


def write_over(path: Path, other: Path, chosen: random.Random) -> None:
    content = other.read_bytes()
    with open(path, "r+b", buffering=0) as file:
        file.write(content)


def remove(path: Path, other: Path, chosen: random.Random) -> None:
    path.unlink()


def expose(path: Path, other: Path, chosen: random.Random) -> None:
    path.chmod(0o666)


VANDALS = (
    flip_a_bit,
    cut_off_the_end,
    make_longer,
    empty,
    exchange,
    write_over,
    remove,
    expose,
)


def vandalise(folder: Path, chosen: random.Random) -> str | None:
    """One piece of damage, by name; None if there was nothing left to damage."""
    entries = sorted(folder.glob("*.object"))
    if not entries:
        return None
    vandal = chosen.choice(VANDALS)
    try:
        vandal(chosen.choice(entries), chosen.choice(entries), chosen)
    except FileNotFoundError:
        return None  # a worker was faster
    return vandal.__name__


def run_round(folder: Path, chosen: random.Random, report: int, done: Counter) -> bool:
    """Start workers, kill some, do damage; whether the others ended well."""
    seeds = [chosen.getrandbits(32) for _ in range(WORKERS)]
    workers = [start_worker(folder, seed, report) for seed in seeds]
    victims = workers[:VICTIMS]
    for victim in victims:
        for _ in range(2):
            damage = vandalise(folder, chosen)
            if damage is not None:
                done[damage] += 1
        time.sleep(chosen.random() * 0.015)  # workers take some 30 ms
        os.kill(victim, signal.SIGKILL)
    is_good = True
    for worker in workers:
        _, status = os.waitpid(worker, 0)
        code = os.waitstatus_to_exitcode(status)
        if worker in victims and code == -signal.SIGKILL:
            done["killed"] += 1
        elif code != 0:
            print(f"a worker ended with {code}", file=sys.stderr)
            is_good = False
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chosen = random.Random(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="tapejit-stress-"))
    done: Counter[str] = Counter()
    failed = 0
    Kernel(0).key  # what all keys have in common is found once, before forking
    with tempfile.TemporaryFile() as report:
        try:
            for _ in range(given.rounds):
                is_good = run_round(folder / "store", chosen, report.fileno(), done)
                failed += not is_good
            last = Store(folder / "store", limit=LIMIT)
            for number in range(KERNELS):
                kernel = Kernel(number)
                failed += not is_right(get_or_compile(last, kernel), kernel)
        finally:
            shutil.rmtree(folder)
        report.seek(0)
        counts: Counter[str] = Counter()
        for line in report:
            counts.update(json.loads(line))
    summary = {"rounds": given.rounds, "failed": failed, **counts, "done": dict(done)}
    print(json.dumps(summary))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
