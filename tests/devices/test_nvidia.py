"""NVIDIA's driver through its binding: what is missing is said, calls are taken."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from elsewhere import run_interpreter

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


def test_an_error_is_told_once() -> None:
    with pytest.raises(DeviceError) as caught, nvidia.told(), nvidia.told():
        raise RuntimeError("CUDA_ERROR_ECC_UNCORRECTABLE: bad luck")
    assert caught.value.message.count("the GPU fails") == 1


def test_other_errors_of_the_driver_keep_its_words() -> None:
    told = nvidia.explained(RuntimeError("CUDA_ERROR_ECC_UNCORRECTABLE: bad luck"))
    assert isinstance(told, DeviceError)
    assert told.message == "the GPU fails: CUDA_ERROR_ECC_UNCORRECTABLE: bad luck"
    told = nvidia.explained(RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: words"))
    assert isinstance(told, DeviceMemoryError)
    assert nvidia.explained(KeyError("something else")) is None


# On a library in place of the driver's

HERE = Path(__file__).parent
compiler = shutil.which("cc")


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


needs_binding = pytest.mark.skipif(
    not (is_installed("cuda.core") and is_installed("cuda.bindings")),
    reason="tapejit[cuda] is not installed",
)
needs_compiler = pytest.mark.skipif(
    compiler is None or sys.platform != "linux",
    reason="there is no C compiler for the library in place of the driver's",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a `libcuda.so.1`."""
    folder = tmp_path_factory.mktemp("fake")
    source, made = str(HERE / "fake_libcuda.c"), str(folder / "libcuda.so.1")
    command = [str(compiler), "-shared", "-fPIC", "-o", made, source, "-ldl"]
    subprocess.run(command, check=True)
    return str(folder)


def run_on(library: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = str(HERE / "on_fake_driver.py")
    return run_interpreter(program, LD_LIBRARY_PATH=library, **environment)


@needs_binding
@needs_compiler
def test_the_binding_takes_every_call_and_makes_the_drivers_of_it(library: str) -> None:
    out = run_on(library)
    assert out.returncode == 0, out.stderr
    assert out.stdout.splitlines() == [
        "Properties(name='a fake GPU', capability=(8, 6), multiprocessors=20, "
        "threads_per_multiprocessor=1536, registers_per_multiprocessor=65536, "
        "shared_bytes_per_block=49152)",
        "(3000, 4000)",
        "PTX of sm_86",
        "{'elementwise': KernelUsage(registers=40, stack_bytes=8, spilled_bytes=8, "
        "shared_bytes=1024)}",
        "done",
    ]
    assert out.stderr.splitlines() == [
        "allocate 32",
        "allocate 32",
        "copy 32",
        "load PTX",
        "load PTX",
        "launch elementwise 2 4",
        "copy 32",
        "synchronize",
        "fill 32 with 0",
        "copy 8",
        "record",
        "wait",
        "copy 32",
        "synchronize",
        "begin capture",
        "fill 16 with 0",
        "launch elementwise 2 4",
        "copy 4",
        "end capture",
        "instantiate 3",
        "fill 32 with 255",
        "launch graph 3",
        "launch graph 3",
        "copy 32",
        "synchronize",
        "load machine code",
        "copy 32",
        "copy 32",
        "synchronize",
        "free",
        "free",
        "synchronize",
    ]


@needs_binding
@needs_compiler
@pytest.mark.skipif(
    not is_installed("nvidia.nvjitlink") and not is_installed("nvidia.cu13"),
    reason="nvJitLink is not installed",
)
@pytest.mark.parametrize("version", ["13000", "12090"])
def test_a_driver_that_is_older_than_nvjitlink_assembles(
    library: str, version: str
) -> None:
    program = "from tapejit.runtime.cuda.driver import *; print(driver().toolchain(0))"
    out = run_interpreter(
        "-c", program, LD_LIBRARY_PATH=library, FAKE_CUDA_VERSION=version
    )
    found = out.stdout.strip()
    own = "nvJitLink 13.0 and driver 13.0 for sm_86" if version == "13000" else ""
    assert found == f"Toolchain(compiler='PTX of sm_86', assembler={own!r})", out.stderr


@needs_binding
@needs_compiler
@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ("cuInit=100", "DeviceError: there is no GPU"),
        ("cuLibraryLoadData=222", "DeviceError: NVIDIA's driver is too old"),
        ("cuLaunchKernelEx=700", "DeviceError: a kernel has used memory that is not"),
        ("cuStreamSynchronize=700", "DeviceError: a kernel has used memory that is"),
        ("cuMemAllocFromPoolAsync=2", "DeviceMemoryError: the GPU has not so much"),
        ("cuMemGetInfo_v2=1", "DeviceError: the GPU does not tell its memory"),
        ("cuEventQuery=1", "DeviceError: the GPU fails: CUDA_ERROR_INVALID_VALUE"),
    ],
)
def test_what_fails_is_told(library: str, failure: str, error: str) -> None:
    out = run_on(library, FAKE_CUDA_FAIL=failure)
    assert out.returncode == 1
    assert f"tapejit.runtime.cuda.driver.{error}" in out.stderr


@needs_binding
@pytest.mark.skipif(
    shutil.which("nvidia-smi") is not None, reason="this machine has NVIDIA's driver"
)
def test_without_the_driver_the_error_says_so() -> None:
    with pytest.raises(DeviceError, match="driver is not installed") as caught:
        nvidia.NvidiaDriver().stream(0)
    assert "TAPEJIT_CUDA=emulated" in str(caught.value.help)
