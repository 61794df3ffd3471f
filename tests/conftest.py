"""What all tests share: options, a complete registry of ops, NumPy's bits.

Tests that compare modes demand equal bits, which graphs give whose operations NumPy
performs. So tests run without native code, and so do the processes they start; those
that are about native code ask for it (see `native/`). The examples in docstrings are
not concerned: they run as users run them.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

import pytest

import tapejit as tj
from tapejit import ops
from tapejit.base import blas
from tapejit.base.config import config

ops.load_all()

# Native code that tests make is kept apart from the user's.
_folder = tempfile.mkdtemp(prefix="tapejit-tests-")
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
os.environ["TAPEJIT_CACHE_DIR"] = _folder
# What tests write is compared, however long the compiler takes on a busy machine.
os.environ["TAPEJIT_PROGRESS"] = "0"
config.update(cache_dir=_folder, progress=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="run everything, not only a sample"
    )
    parser.addoption(
        "--gpu", action="store_true", help="fail where there is no GPU, do not skip"
    )
    parser.addoption(
        "--regenerate", action="store_true", help="write golden files instead"
    )


@pytest.fixture(scope="module", autouse=True)
def _only_its_own_objects_are_searched_for_garbage() -> None:
    """The tests themselves and what those before have left are a million objects.

    `gc.collect()` goes through all of them otherwise, which takes half a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def others_stay_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that thaws all objects, as a process of its own may, leaves them alone."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


@pytest.fixture(scope="session", autouse=True)
def _sources_are_compiled_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """For all processes that tests start: importing tapejit takes half the time then.

    Python does so by itself, unless it is told to leave nothing beside the sources.
    """
    with pytest.MonkeyPatch.context() as environment:
        if sys.dont_write_bytecode:
            folder = tmp_path_factory.mktemp("bytecode")
            environment.setenv("PYTHONPYCACHEPREFIX", str(folder))
            environment.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _products_of_numpy_have_one_thread() -> None:
    """The other processors are busy with other tests.

    Two processes of two threads each on two processors: threads of OpenBLAS wait for
    each other by spinning, which took three times the time of one.
    """
    blas.set_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _functions_may_be_made_in_loops() -> Iterator[None]:
    """A test with many examples makes its functions anew for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tapejit.tracing.made_in_loops.MANY", 10**9)
        yield


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether everything is to be run."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="module", autouse=True)
def performed_by_numpy() -> Iterator[None]:
    """No native code in a module of tests, its fixtures and its child processes."""
    before = config.native
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TAPEJIT_NATIVE", "0")
        config.update(native=False)
        yield
    config.update(native=before)


@pytest.fixture(autouse=True)
def _performed_by_numpy_again() -> None:
    """Whatever the test before has left behind."""
    if config.native:
        config.update(native=False)


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What dies in such a test dies by reference counting."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture
def same_default_generator() -> Iterator[None]:
    """The default generator of random numbers is left as it was found."""
    generator = tj.random.default_generator()
    before = generator.state
    yield
    generator.state = before
