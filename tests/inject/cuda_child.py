"""A traced process without a GPU: initialises capture as the driver would, queues activity.

Started by path with the fake libcupti, or its folder, and a part's name; imports nothing of gputui.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
import time

KEPT: list[object] = []


def record(size: int, *fields: tuple[int, str, int]) -> bytes:
    """A record of `size` bytes with values packed at documented offsets, the rest filled with 0xEE
    so that a field read from a wrong place shows."""
    data = bytearray(b"\xee" * size)
    for offset, form, value in fields:
        struct.pack_into("<" + form, data, offset, value)
    return bytes(data)


def text(value: bytes) -> int:
    pointer = ctypes.c_char_p(value)
    KEPT.append(pointer)
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def kernel(size: int, name: bytes, correlation: int, **changes: int) -> bytes:
    grid, node, graph = changes.get("grid", 7), changes.get("node", 77), changes.get("graph", 5)
    return record(
        size,
        (0, "I", 10), (6, "H", 96), (16, "Q", changes.get("start", 1000)),
        (24, "Q", changes.get("end", 2500)), (40, "I", 1), (44, "I", 2), (48, "I", 13),
        (52, "I", grid), (56, "I", 8), (60, "I", 9), (64, "I", 128), (68, "I", 2), (72, "I", 3),
        (76, "I", 1024), (80, "I", 2048), (92, "I", correlation), (104, "Q", text(name)),
        (144, "Q", node), (156, "I", graph),
    )  # fmt: skip


def memcpy(size: int) -> bytes:
    return record(
        size,
        (0, "I", 1), (4, "B", 1), (5, "B", 2), (6, "B", 3), (8, "Q", 4096), (16, "Q", 11),
        (24, "Q", 22), (32, "I", 1), (36, "I", 2), (40, "I", 13), (44, "I", 40),
        (64, "Q", 6 << 32 | 9), (72, "I", 6),
    )  # fmt: skip


def peer(source: int, destination: int) -> bytes:
    return record(
        96,
        (0, "I", 22), (4, "B", 8), (5, "B", 3), (6, "B", 3), (8, "Q", 1 << 33), (16, "Q", 11),
        (24, "Q", 22), (32, "I", 0), (36, "I", 2), (40, "I", 13), (44, "I", source),
        (52, "I", destination), (60, "I", 41), (72, "Q", 0), (80, "I", 0),
    )  # fmt: skip


def memset(size: int) -> bytes:
    return record(
        size,
        (0, "I", 2), (4, "I", 255), (8, "Q", 512), (16, "Q", 11), (24, "Q", 22), (32, "I", 1),
        (36, "I", 2), (40, "I", 13), (44, "I", 42), (50, "H", 3), (64, "Q", 0), (72, "I", 0),
    )  # fmt: skip


def call(kind: int, cbid: int, correlation: int, result: int = 0, thread: int = 4321) -> bytes:
    return record(
        40,
        (0, "I", kind), (4, "I", cbid), (8, "Q", 900), (16, "Q", 990), (24, "I", os.getpid()),
        (28, "I", thread), (32, "I", correlation), (36, "I", result),
    )  # fmt: skip


def graph(size: int) -> bytes:
    return record(
        size,
        (0, "I", 51), (4, "I", 44), (8, "Q", 11), (16, "Q", 22), (24, "I", 1), (28, "I", 6),
        (32, "I", 2), (36, "I", 13),
    )  # fmt: skip


def every_kind(old: bool) -> list[bytes]:
    sizes = (208, 88, 88, 48) if old else (248, 112, 104, 56)
    return [
        kernel(sizes[0], b"_Z4gemmPf", 39),
        kernel(216, b"_Z4gemmPf", 45),
        kernel(224, b"_Z4gemmPf", 46, grid=70000),
        memcpy(sizes[1]),
        peer(0, 1),
        peer(3, 0),
        memset(sizes[2]),
        call(5, 505, 39),
        call(5, 506, 45, 700),
        call(4, 307, 46),
        call(5, 999, 47),
        graph(sizes[3]),
        record(64, (0, "I", 17)),
    ]


def fork_before_cuda() -> None:
    """As servers do: ranges in the parent, then a forked worker is first to initialise CUDA."""
    import nvtx

    nvtx.push_range("shared name")
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        nvtx.pop_range()
        sys.exit(0)
    nvtx.mark("before CUDA")
    ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).InitializeInjection()
    nvtx.pop_range()
    with nvtx.annotate("shared name"):
        pass


def replay_graphs(fake: ctypes.CDLL) -> None:
    """A capture in ranges, instantiated twice, one destroyed; a replay of the other."""
    import nvtx

    made, created, destroyed, cloned = 9, 13, 19, 20
    with nvtx.annotate("capture"):
        fake.fake_graph(made, 3, 0, 0)
        for number in range(2):
            with nvtx.annotate(f"layer.{number}"):
                fake.fake_graph(created, 3, 3 << 32 | number, 0)
    for executable in (4, 5):
        for number in range(2):
            fake.fake_graph(cloned, executable, executable << 32 | number, 3 << 32 | number)
    fake.fake_graph(destroyed, 4, 0, 0)
    fake.fake_graph(cloned, 6, 0, 3 << 32)  # has no id
    for number in range(2):
        each = kernel(216, b"gemm", 44, node=5 << 32 | number, graph=5)
        fake.fake_queue(each, len(each))


def in_windows(fake: ctypes.CDLL) -> None:
    """Steps that launch a kernel each, until three windows have been closed."""
    import nvtx

    step = 0
    while fake.fake_calls().count(b"ActivityDisable(10)") < 3:
        with nvtx.annotate("step"):
            for site in (0, 1):
                fake.fake_call(2, 211, site, step)
            if fake.fake_is_enabled(10):
                each = kernel(216, b"step%d" % step, step, graph=0)
                fake.fake_queue(each, len(each))
            time.sleep(0.001)
        step += 1


def launch(fake: ctypes.CDLL, name: str) -> None:
    """A kernel, if kernels are recorded now."""
    if fake.fake_is_enabled(10):
        each = kernel(216, name.encode(), 1, graph=0, node=0)
        fake.fake_queue(each, len(each))


def in_captured_ranges(fake: ctypes.CDLL) -> None:
    """Kernels before, in and after ranges called `loop`: nested, of a thread, of a domain, and with
    a start and an end."""
    import nvtx

    def beside() -> None:
        with nvtx.annotate("loop"):
            launch(fake, "beside")

    launch(fake, "before")
    with nvtx.annotate("warmup"):
        launch(fake, "warmup")
    for number in range(2):
        with nvtx.annotate("outer"), nvtx.annotate("loop"):
            with nvtx.annotate("loop"):
                launch(fake, f"inner{number}")
            thread = threading.Thread(target=beside)
            thread.start()
            thread.join()
            launch(fake, f"loop{number}")
        launch(fake, "after")
    with nvtx.annotate("loop", domain="own"):
        launch(fake, "own")
    launch(fake, "after")
    started = nvtx.start_range("loop")
    launch(fake, "started")
    nvtx.end_range(started)
    launch(fake, "after")


def in_profiled_parts(fake: ctypes.CDLL) -> None:
    """Kernels before, between and after cudaProfilerStart and cudaProfilerStop, and the same by the
    driver alone."""
    launch(fake, "before")
    for domain, start, stop in ((2, 244, 245), (1, 302, 303)):
        for site in (0, 1):
            fake.fake_call(domain, start, site, 1)
        launch(fake, f"profiled{domain}")
        for site in (0, 1):
            fake.fake_call(domain, stop, site, 2)
        launch(fake, "after")


def flush_amid_libraries(fake: ctypes.CDLL) -> None:
    """While a thread of the program holds the loader's list; then forks there, as a handler does
    that interrupts it."""

    def see(*_unused: object) -> int:
        until = fake.fake_flushes() + 3
        while fake.fake_flushes() < until:
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        print("forked")
        return 1

    callback = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3)(see)
    ctypes.CDLL(None).dl_iterate_phdr(callback, None)


def main() -> None:
    path, part = sys.argv[1:3]
    if part == "worker":
        fork_before_cuda()
    ctypes.CDLL(os.environ.get("GPUTUI_TEST_DRIVER"))
    library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
    assert library.InitializeInjection() == 1
    assert library.InitializeInjection() == 1
    fake = ctypes.CDLL(path if os.path.isfile(path) else os.path.join(path, "libcupti.so.13"))
    fake.fake_calls.restype = ctypes.c_char_p
    fake.fake_queue.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    fake.fake_graph.argtypes = [ctypes.c_uint32, *[ctypes.c_uint64] * 3]
    if part in {"old", "new"}:
        for each in every_kind(part == "old"):
            fake.fake_queue(each, len(each))
        fake.fake_drop(5)
    elif part == "graphs":
        replay_graphs(fake)
    elif part == "steps":
        import nvtx

        launch = call(5, 211, 1)
        fake.fake_queue(launch, len(launch))
        fake.cuptiActivityFlushAll(0)
        for step in range(7):
            with nvtx.annotate("step"):
                each = kernel(216, b"step%d" % step, step, graph=0, node=0)
                if fake.fake_is_enabled(10):
                    fake.fake_queue(each, len(each))
    elif part == "captured":
        in_captured_ranges(fake)
    elif part == "profiled":
        in_profiled_parts(fake)
    elif part == "callers":
        # Each calls CUDA, and has ended before anybody could ask for its name.
        def launch_in_a_thread() -> None:
            ctypes.CDLL(None).prctl(15, b"launcher", 0, 0, 0)
            for number in range(2):
                each = call(5, 211, number, thread=threading.get_native_id())
                fake.fake_queue(each, len(each))
            fake.cuptiActivityFlushAll(0)

        for _ in range(3):
            thread = threading.Thread(target=launch_in_a_thread)
            thread.start()
            thread.join()
    elif part == "amid libraries":
        flush_amid_libraries(fake)
    elif part == "xla late":
        while not fake.fake_flushes():
            time.sleep(0.01)
        assert b"FlushPeriod" not in fake.fake_calls()
        ctypes.CDLL(os.environ["GPUTUI_TEST_PLUGIN"])
        while b"ActivityFlushPeriod" not in fake.fake_calls():
            time.sleep(0.01)
        each = kernel(216, b"fusion", 1, graph=0, node=0)
        fake.fake_queue(each, len(each))
        before, until = fake.fake_flushes(), time.monotonic() + 0.35
        while time.monotonic() < until:
            time.sleep(0.01)
        print("flushes", fake.fake_flushes() - before, "more")
    elif part == "xla window":
        while b"ActivityDisable(10)" not in fake.fake_calls():
            time.sleep(0.01)
    elif part == "xla order":
        while b"ActivityFlushPeriod" not in fake.fake_calls():
            time.sleep(0.01)
        fake.fake_lend()  # full, and not handed over: what is in it runs on
        print(time.time_ns())
        fake.fake_lend()
        each = kernel(216, b"fusion", 1, graph=0, node=0)
        fake.fake_queue(each, len(each))
        fake.cuptiActivityFlushAll(0)  # the second one
        fake.fake_lend()
        until = time.monotonic() + 0.35  # the flushing thread looks three times more
        while time.monotonic() < until:
            time.sleep(0.01)
    elif part == "xla":
        each = kernel(216, b"fusion", 1, graph=0, node=0)
        fake.fake_queue(each, len(each))
        while b"ActivityFlushPeriod" not in fake.fake_calls():
            time.sleep(0.01)
        until = time.monotonic() + 0.35  # the flushing thread looks three times more
        while time.monotonic() < until:
            time.sleep(0.01)
        print("flushes", fake.fake_flushes(), "lent", fake.fake_lend())
    elif part == "time":
        # Until the flushing thread has switched off, and flushed in the dark some times more.
        while fake.fake_is_enabled(10):
            time.sleep(0.01)
        until = fake.fake_flushes() + 4
        while fake.fake_flushes() < until:
            time.sleep(0.01)
    elif part == "windows":
        in_windows(fake)
    elif part == "many":
        for number in range(20_000):
            name = b"_Z%d" % (number % 50) + b"k" * 2000
            each = kernel(216, name if number < 50 else b"short%d" % (number % 50), number)
            fake.fake_queue(each, len(each))
            if number % 10_000 == 9_999:
                fake.cuptiActivityFlushAll(0)
    elif part == "fork":
        child = os.fork()
        each = kernel(216, b"child" if child == 0 else b"parent", 1)
        fake.fake_queue(each, len(each))
        fake.cuptiActivityFlushAll(0)
        if child == 0:
            sys.exit(0)  # runs the handlers of exit, which must leave the ring alone
        os.waitpid(child, 0)
    print(fake.fake_calls().decode())


if __name__ == "__main__":
    main()
