"""The switch that runs decorated functions as plain Python, to look inside them.

It is the setting `eager`: these two functions are its spelling for the whole process,
`config.override(eager=True)` is the one for a block, `TAPEJIT_EAGER=1` the one for a
run of the program. Whoever stops at a breakpoint while a function is traced is told.

Start reading at `run_functions_eagerly`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tapejit.base.config import config

__all__ = ["functions_run_eagerly", "run_functions_eagerly"]


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Run decorated functions as plain Python from now on, or stop doing so.

    Each call then runs the body line by line on real values, so that breakpoints,
    `print` and exceptions are where they stand in the source. What was traced before
    is kept and used again afterwards.

    >>> import tapejit as tj
    >>> tj.run_functions_eagerly(True)
    >>> tj.functions_run_eagerly()
    True
    >>> tj.run_functions_eagerly(False)
    """
    config.update(eager=run_eagerly)


def functions_run_eagerly() -> bool:
    """Whether decorated functions run as plain Python, here and now.

    >>> import tapejit as tj
    >>> with tj.config.override(eager=True):
    ...     tj.functions_run_eagerly()
    True
    """
    return config.eager


@contextmanager
def hinted_breakpoints() -> Iterator[None]:
    """`breakpoint()` in a body that is being traced says how to see values."""
    before = sys.breakpointhook

    def hinted(*args: Any, **kwargs: Any) -> Any:
        is_usual = before is sys.__breakpointhook__
        wanted = os.environ.get("PYTHONBREAKPOINT")
        if not (is_usual and wanted == "0"):  # which means: do not stop
            print(
                "tapejit: this function is being traced, its tensors have no values; "
                "run with TAPEJIT_EAGER=1 or tj.run_functions_eagerly(True) to see "
                "them",
                file=sys.stderr,
            )
        if wanted or args or kwargs or not is_usual:
            return before(*args, **kwargs)
        import pdb

        # The usual hook stops in its caller, which would be this function.
        return pdb.Pdb().set_trace(sys._getframe(1))

    sys.breakpointhook = hinted
    try:
        yield
    finally:
        sys.breakpointhook = before
