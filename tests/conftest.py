"""What all tests share: the option `--full`, and a complete registry of ops."""

from __future__ import annotations

import pytest

from tapejit import ops

ops.load_all()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="run everything, not only a sample"
    )


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether everything is to be run."""
    return bool(request.config.getoption("--full"))
