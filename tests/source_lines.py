"""Where in a file of tests something stands, for messages that name the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tapejit as tj


def line_of(function: tj.Function[..., Any], text: str) -> int:
    """The line of its file on which the body of `function` says `text`."""
    code = function.python_function.__code__
    lines = Path(code.co_filename).read_text().splitlines()
    start = code.co_firstlineno
    return next(at for at in range(start, start + 40) if text in lines[at - 1])
