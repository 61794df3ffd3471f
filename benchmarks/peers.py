"""The peers: how each package is started with a given number of threads, and read.

A peer's label is a package's name, with a variant in brackets where one package runs a
case in several ways: `"jax"`, `"jax (jit)"`. The data structure is `Package`; the table
is `PACKAGES`. Thread counts are set three times over, because no single way reaches
all: environment variables before the process starts (OpenMP, OpenBLAS, MKL, XLA), the
number of CPUs the process may use, and each package's own call.

Start reading at `PACKAGES`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.case import Array, package_name


def start_nothing(threads: int) -> None:
    """NumPy and tapejit take their thread count from the environment alone."""


def start_torch(threads: int) -> None:
    """Torch: its pool inside an operation and the one between operations."""
    import torch

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(threads)
    torch.ones(1).add_(1)


def start_tensorflow(threads: int) -> None:
    """TensorFlow: both pools, then one tensor, since the first starts the runtime."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.constant(1.0).numpy()


def start_jax(threads: int) -> None:
    """JAX reads NPROC (set by `thread_environment`); one array starts its client."""
    import jax.numpy as jnp

    jnp.asarray(np.ones(1, np.float32)).block_until_ready()


def read_numpy(x: Any) -> Array:
    """By the array protocol: NumPy, autograd, JAX, PyTensor."""
    return np.asarray(x)


def read_method(x: Any) -> Array:
    """By a method `numpy()`: tapejit, TensorFlow; what is an array already is kept."""
    return x if isinstance(x, np.ndarray) else np.asarray(x.numpy())


def read_torch(x: Any) -> Array:
    """Torch refuses `numpy()` while a tensor is being recorded."""
    return x if isinstance(x, np.ndarray) else np.asarray(x.detach().numpy())


@dataclass(frozen=True)
class Package:
    """How to import, limit and read one package.

    >>> PACKAGES["numpy"].read([1, 2])
    array([1, 2])
    """

    module: str
    distributions: tuple[str, ...]
    start: Callable[[int], None] = start_nothing
    read: Callable[[Any], Array] = read_numpy


PACKAGES: dict[str, Package] = {
    "numpy": Package("numpy", ("numpy",)),
    "tapejit": Package("tapejit", ("tapejit",), read=read_method),
    "tensorflow": Package(
        "tensorflow", ("tensorflow-cpu", "tensorflow"), start_tensorflow, read_method
    ),
    "torch": Package("torch", ("torch",), start_torch, read_torch),
    "jax": Package("jax", ("jax",), start_jax),
    "autograd": Package("autograd", ("autograd",)),
    "pytensor": Package("pytensor", ("pytensor",)),
}


def package_of(label: str) -> Package:
    """The record behind a peer's label.

    >>> package_of("jax (jit)").module
    'jax'
    >>> package_of("abacus")
    Traceback (most recent call last):
    ValueError: no peer 'abacus'; the packages are numpy, tapejit, tensorflow, torch, \
jax, autograd, pytensor
    """
    name = package_name(label)
    if name not in PACKAGES:
        raise ValueError(f"no peer {name!r}; the packages are {', '.join(PACKAGES)}")
    return PACKAGES[name]


def is_installed(label: str) -> bool:
    """Whether the package can be found; nothing of it is imported.

    >>> is_installed("numpy")
    True
    """
    spec = importlib.util.find_spec(package_of(label).module)
    # A bare folder of that name is a namespace package: it has no origin.
    return spec is not None and spec.origin is not None


def version_of(label: str) -> str:
    """The version of the package behind `label`, which must be importable.

    >>> version_of("numpy") == np.__version__
    True
    """
    package = package_of(label)
    version = getattr(importlib.import_module(package.module), "__version__", None)
    if version is not None:
        return str(version)
    from importlib import metadata  # 20 ms, which a process timed whole would pay

    for distribution in package.distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def thread_environment(threads: int) -> dict[str, str]:
    """What the environment of a worker says about threads, and about being quiet.

    tapejit compiles to native code, unless the environment says otherwise already.

    >>> thread_environment(2)["OMP_NUM_THREADS"]
    '2'
    """
    names = (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMBA_NUM_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
        "NPROC",  # the size of the pool behind JAX's CPU client
    )
    environment = dict.fromkeys(names, str(threads))
    if threads == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    environment["TAPEJIT_NATIVE"] = os.environ.get("TAPEJIT_NATIVE", "1")
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    environment["JAX_PLATFORMS"] = "cpu"
    environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


def limit_cpus(threads: int) -> None:
    """Let this process use only as many CPUs as threads, where that is possible."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[:threads])
