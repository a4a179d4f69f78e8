"""A program that carries the library asleep: ranges and kernels, as lines of standard input ask.

Imports nothing of gputui. Arguments: the fake libcupti, or "none".
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

import nvtx


def ranges() -> None:
    with nvtx.annotate("outer"), nvtx.annotate("inner", domain="library"):
        pass


def kernel(fake: ctypes.CDLL) -> None:
    """One of a call of the runtime, which makes one of the driver's, and one of the driver's."""
    from cuda_child import kernel

    runtime, driver, enter, leave = (2, 211), (1, 307), 0, 1
    fake.fake_call(*runtime, leave, 6)  # whose beginning was not seen
    fake.fake_call(*runtime, enter, 7)
    fake.fake_call(*driver, enter, 7)
    fake.fake_call(*driver, leave, 7)
    fake.fake_call(*runtime, leave, 7)
    fake.fake_call(*driver, enter, 8)
    fake.fake_call(*driver, leave, 8)
    for number in (7, 8):
        each = kernel(216, b"_Z4gemmPf", number)
        fake.fake_queue(each, len(each))


def graphs(fake: ctypes.CDLL) -> None:
    from cuda_child import replay_graphs

    replay_graphs(fake)


def fork() -> str:
    """A child that makes a domain, and then ranges until it is killed."""
    made, ready = os.pipe()
    child = os.fork()
    if child == 0:
        nvtx.get_domain("of the child")
        os.write(ready, b"x")
        while True:
            ranges()
            time.sleep(0.001)
    os.read(made, 1)
    return str(child)


def main() -> None:
    path = sys.argv[1]
    fake = None
    if path != "none":
        assert ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).InitializeInjection() == 1
        fake = ctypes.CDLL(path)
        fake.fake_calls.restype = ctypes.c_char_p
        fake.fake_queue.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
        fake.fake_graph.argtypes = [ctypes.c_uint32, *[ctypes.c_uint64] * 3]
        driver = ctypes.CDLL(os.environ["TEST_DRIVER"])
    domain = nvtx.get_domain("library")
    print("ready", type(domain).__name__, flush=True)
    for line in sys.stdin:
        answer = "done"
        if line == "ranges\n":
            ranges()
        elif line == "kernel\n" and fake is not None:
            kernel(fake)
        elif line == "graphs\n" and fake is not None:
            graphs(fake)
        elif line == "graph of the driver's\n" and fake is not None:
            driver.cuGraphCreate(ctypes.byref(ctypes.c_void_p()), 0)
        elif line == "calls\n" and fake is not None:
            answer = fake.fake_calls().decode()
        elif line == "on\n" and fake is not None:
            answer = str(fake.fake_on())
        elif line == "flushes\n" and fake is not None:
            answer = str(fake.fake_flushes())
        elif line == "fork\n":
            answer = fork()
        print(answer, flush=True)


if __name__ == "__main__":
    main()
