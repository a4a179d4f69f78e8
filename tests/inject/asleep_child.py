"""A program that carries the library asleep: ranges and kernels, as lines of standard input ask.

Imports nothing of gputui. Arguments: the fake libcupti, or "none".
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
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


def late_kernels(fake: ctypes.CDLL) -> None:
    """One that ran before the ring was made, and one of now."""
    from cuda_child import kernel

    now_ns = time.time_ns()
    for name, start in ((b"earlier", now_ns - 10**12), (b"fresh", now_ns)):
        each = kernel(216, name, 9, start=start, end=start + 1000)
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


def forbid_opening() -> str:
    """Put all threads under a seccomp filter that ends the program where one opens a file."""
    openat = {"x86_64": 257, "aarch64": 56}[platform.machine()]
    seccomp = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    load, equals, leave, kill, allow = 0x20, 0x15, 0x06, 0x8000_0000, 0x7FFF_0000
    steps = ((load, 0, 0, 0), (equals, 0, 1, openat), (leave, 0, 0, kill), (leave, 0, 0, allow))
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(steps), ctypes.addressof(filters))
    )
    libc = ctypes.CDLL(None)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    return str(libc.syscall(seccomp, 1, 1, program))  # SET_MODE_FILTER, FILTER_FLAG_TSYNC


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
        elif line == "lend\n" and fake is not None:
            answer = str(fake.fake_lend())
        elif line == "late kernels\n" and fake is not None:
            late_kernels(fake)
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
        elif line == "filter\n":
            answer = forbid_opening()
        elif line == "fork\n":
            answer = fork()
        print(answer, flush=True)


if __name__ == "__main__":
    main()
