"""The words of the parallel driver, by number; `thread_driver` says what they are for.

They stand apart because a process that loads the code from a file needs no code
generator.

Start reading at `WORDS`.
"""

from __future__ import annotations

from typing import Final

# Words of the pool, by number. Each group is written by others than the next one, so
# each starts on a cache line; two lines, because processors fetch them in pairs.
LINE: Final = 16
JOB: Final = 0
REMAINING, SEATS, TASK, TABLE, TASKS, BACK = range(JOB, JOB + 6)
FINISHED: Final = LINE
DONE, WAITING = range(FINISHED, FINISHED + 2)
SLEEP: Final = 2 * LINE
WAKE, SLEEPERS = range(SLEEP, SLEEP + 2)
OWNER: Final = 3 * LINE
BUSY, HELPERS, ROOM, ALONE, ENDED, FRONT = range(OWNER, OWNER + 6)
SETTINGS: Final = 4 * LINE
THREADS, LOOK, PATIENCE, WORTH = range(SETTINGS, SETTINGS + 4)
SYSCALL, FUTEX, PTHREAD_CREATE, PTHREAD_SIGMASK, PARALLEL_FOR = range(
    SETTINGS + 4, SETTINGS + 9
)
WORDS: Final = 5 * LINE

# What a fork must put back to zero in the child: all that threads have written.
VOLATILE: Final = tuple(range(THREADS))
