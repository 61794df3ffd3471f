"""Functions go to other processes: by name, or with cloudpickle by value."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tapejit as tj


def plain(x: Any) -> Any:
    return x * 2


fast = tj.function(plain)
other = tj.function(reduce_retracing=True)(plain)


@tj.function
def named(x: Any) -> Any:
    return x * 3


def test_a_function_goes_by_name() -> None:
    assert pickle.loads(pickle.dumps(named)) is named


def test_one_whose_name_is_the_plain_function_goes_with_that() -> None:
    for function in (fast, other):
        found = pickle.loads(pickle.dumps(function))
        assert found.python_function is plain
        assert found._options() == function._options()
        assert found(tj.ones(2)).tolist() == [2.0, 2.0]


def test_one_that_is_not_found_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "plain", "something else")
    with pytest.raises(TypeError, match=r"plain is not this function.*\n.*\n.*cloud"):
        pickle.dumps(fast)
    with pytest.raises(TypeError, match="is local and cannot be pickled by name"):
        pickle.dumps(tj.function(lambda x: x))


SCRIPT = """
import pickle, sys
import tapejit as tj
try:
    import cloudpickle
except ImportError:
    from joblib.externals import cloudpickle

v = tj.Variable([1.0, 2.0])
def plain(x):
    return x * 2 + v
fast = tj.function(plain)
@tj.function(reduce_retracing=True)
def named(x):
    return x * 3
def local(k):
    @tj.function
    def inner(x):
        return x * k
    return inner

assert pickle.loads(pickle.dumps(named)) is named
assert pickle.loads(pickle.dumps(fast))(tj.ones(2)).tolist() == [3.0, 4.0]
functions = [fast, named, local(5.0), tj.function(lambda x: x * 7)]
with open(sys.argv[1], "wb") as file:
    file.write(cloudpickle.dumps(functions))
"""

READER = """
import pickle, sys
import tapejit as tj
with open(sys.argv[1], "rb") as file:
    functions = pickle.load(file)
found = [f(tj.ones(2)).tolist() for f in functions]
print(found, functions[1]._options()["reduce_retracing"])
"""


def test_functions_of_a_script_go_to_other_processes_with_cloudpickle(
    tmp_path: Path,
) -> None:
    """As joblib does by default: there, `__main__` is another program."""
    pytest.importorskip("joblib")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "reader.py").write_text(READER)
    out = ""
    for name in ("script.py", "reader.py"):
        command = [sys.executable, str(tmp_path / name), str(tmp_path / "functions")]
        done = subprocess.run(
            command, capture_output=True, text=True, env=dict(os.environ), check=False
        )
        assert done.returncode == 0, done.stderr
        out = done.stdout
    expected = [[3.0, 4.0], [3.0, 3.0], [5.0, 5.0], [7.0, 7.0]]
    assert out.strip() == f"{expected} True"
