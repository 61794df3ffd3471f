"""NVIDIA's driver through its binding: what is missing is said, calls are taken."""

from __future__ import annotations

import sys

import pytest

from tapejit.base.errors import UnsupportedError
from tapejit.runtime.cuda import nvidia
from tapejit.runtime.cuda.driver import DeviceError, DeviceMemoryError
from tapejit.targets.cuda.ptx import assemble

# What is missing


def test_without_the_binding_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(DeviceError, match="binding is not installed") as caught:
        nvidia.NvidiaDriver()
    assert caught.value.help == "pip install 'tapejit[cuda]'"
    with pytest.raises(
        UnsupportedError, match="code for GPUs cannot be made"
    ) as second:
        assemble("", "sm_80")
    assert second.value.help == "pip install 'tapejit[cuda-test]'"


@pytest.mark.parametrize(
    ("text", "message", "help"),
    [
        ("NO_DEVICE", "there is no GPU, or CUDA_VISIBLE_DEVICES hides", "emulated"),
        ("INVALID_DEVICE", "there is no such GPU", "from 0"),
        ("UNSUPPORTED_PTX_VERSION", "driver is too old", "newer driver"),
        ("ILLEGAL_ADDRESS", "memory that is not its own", "TAPEJIT_CUDA=emulated"),
    ],
)
def test_errors_of_the_driver_say_what_to_do(
    text: str, message: str, help: str
) -> None:
    told = nvidia.explained(RuntimeError(f"CUDA_ERROR_{text}: the driver's words"))
    assert isinstance(told, DeviceError)
    assert message in told.message
    assert f"(CUDA_ERROR_{text})" in told.message
    assert help in str(told.help)


def test_other_errors_of_the_driver_keep_its_words() -> None:
    told = nvidia.explained(RuntimeError("CUDA_ERROR_ECC_UNCORRECTABLE: bad luck"))
    assert isinstance(told, DeviceError)
    assert told.message == "the GPU fails: CUDA_ERROR_ECC_UNCORRECTABLE: bad luck"
    told = nvidia.explained(RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: words"))
    assert isinstance(told, DeviceMemoryError)
    assert nvidia.explained(KeyError("something else")) is None
