"""Properties of every row of the op table, a test for each case.

Tests of single rows would be 20,000 more, each of which takes pytest 3 ms.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import groupby
from typing import Any

import pytest

from op_cases.case import Row


def for_rows(rows: Sequence[Any]) -> Callable[[Callable[..., None]], Any]:
    """Ask of each row what a test asks of `row`, or of each pair `row` and `dtype`.

    The rows of a case are one test. An error says which of them it is about.
    """
    entries = [(row,) if isinstance(row, Row) else tuple(row) for row in rows]
    groups = [list(group) for _, group in groupby(entries, lambda x: id(x[0].case))]

    def decorate(test: Callable[..., None]) -> Any:
        signature = inspect.signature(test)
        names = list(signature.parameters)[: len(entries[0])]

        def run(entries_of_case: Any, **fixtures: Any) -> None:
            for entry in entries_of_case:
                try:
                    test(*entry, **fixtures)
                except Exception as error:
                    error.add_note(f"for {', '.join(map(str, entry))}")
                    raise

        others = [x for name, x in signature.parameters.items() if name not in names]
        own = inspect.Parameter("entries_of_case", inspect.Parameter.KEYWORD_ONLY)
        asked = [x.replace(kind=inspect.Parameter.KEYWORD_ONLY) for x in others]
        made: Any = wraps(test)(run)
        made.__signature__ = signature.replace(parameters=[own, *asked])
        ids = [str(group[0][0].case) for group in groups]
        return pytest.mark.parametrize("entries_of_case", groups, ids=ids)(made)

    return decorate
