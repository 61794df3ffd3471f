"""A program: every call of the boundary to a driver, on a library in NVIDIA's place.

The test of it runs it in a process of its own, as a library is loaded once.
"""

import threading

import numpy as np

from tapejit.runtime.cuda.driver import Driver, driver
from tests.devices import kernels

N = 8


def use(d: Driver) -> None:
    assert d.device_count() == 1
    print(d.properties(0))
    print(d.memory_bytes(0))
    stream, other = d.stream(0), d.stream(0)
    x, found = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    a, b = d.allocate(4 * N, stream), d.allocate(4 * N, stream)
    d.upload(a, x, stream)
    print(d.toolchain(0).compiler)
    code = d.compile(kernels.ELEMENTWISE, 0)
    assert b".target sm_86" in code
    if d.toolchain(0).assembler:
        assert d.assemble(code, 0).startswith(b"\x7fELF")
    print(d.usage(code.decode(), ["elementwise"], 0))
    module = d.load(code, 0)
    d.launch(module, "elementwise", 2, 4, [a, a, b, np.int64(N)], stream)
    d.download(found, b, stream)
    d.synchronize(stream)
    np.testing.assert_array_equal(found, x * x + x)
    d.fill(b, 0, 4 * N, stream)
    d.copy(b + 8, a, 8, stream)
    event = d.record(stream)
    d.wait_for(event, other)
    d.download(found, b, other)
    d.synchronize(other)
    assert d.is_over(event)
    assert found.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    d.begin_graph(stream)
    d.fill(b, 0, 16, stream)
    d.launch(module, "elementwise", 2, 4, [a, a, b, N], stream)
    d.copy(b, a, 4, stream)
    graph = d.end_graph(stream)
    d.fill(b, 255, 4 * N, stream)
    d.launch_graph(graph, stream)
    d.launch_graph(graph, stream)
    d.download(found, b, stream)
    d.synchronize(stream)
    np.testing.assert_array_equal(found, x * x + x)
    machine_code = d.load(b"\x7fELF and more", 0)
    d.upload(a, x + 1, stream)

    def elsewhere() -> None:
        d.download(found, a, stream)
        d.synchronize(stream)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found, x + 1)
    for handle in (graph, event, module, machine_code, other):
        d.release(handle)
    d.free(a, stream)
    d.free(b, stream)
    d.synchronize(stream)
    print("done")


if __name__ == "__main__":
    use(driver())
