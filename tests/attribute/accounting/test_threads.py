"""What a thread is at while it makes no CUDA call: its state, its line, how long is long."""

from __future__ import annotations

import _thread
import http.server
import os
import sys
import threading
import tracemalloc
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gputui.attribute import Strings
from gputui.attribute.accounting import Accounting, host_threads
from gputui.attribute.accounting.host_threads import SHORT_MOST_NS, SHORT_NS, _short
from gputui.attribute.accounting.program_steps import ProgramSteps
from gputui.attribute.accounting.thread_readings import PythonLines, Sample, ThreadStates
from gputui.attribute.range_stacks import RangeStacks
from gputui.inject.hook import python_lines
from gputui.inject.hook.python_lines import _kind
from gputui.model.leaves import Leaf

X86 = os.uname().machine == "x86_64"
TORCH = "/opt/lib/python3.12/site-packages/torch"


@pytest.mark.skipif(not X86, reason="numbers of calls are those of x86-64")
@pytest.mark.parametrize(
    ("state", "call", "leaf"),
    [
        ("S", "0 0x3", Leaf.INPUT),  # read
        ("S", "202 0x7f", Leaf.WAIT),  # futex
        ("S", None, Leaf.WAIT),
        ("D", "17 0x3", Leaf.INPUT),  # pread64
        ("D", "74 0x3", Leaf.WAIT),  # fsync
        ("D", "1 0x3", Leaf.WAIT),  # write
        ("D", "3 0x3", Leaf.WAIT),  # close
        ("D", "257 0xffffff9c 0x7f10 0x80241 0x1b6", Leaf.WAIT),  # openat, to write
        ("D", "257 0xffffff9c 0x7f10 0x80000 0x0", Leaf.INPUT),  # openat, to read
        ("D", "running", Leaf.INPUT),  # a page of a mapped file
        ("D", None, Leaf.INPUT),
    ],
)
def test_a_thread_that_sleeps_reads_writes_or_waits(
    tmp_path: Path, state: str, call: str | None, leaf: Leaf
) -> None:
    """Files as the kernel writes them: a thread that waits for the disk may be saving."""
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "schedstat").write_text("1000 200 3\n")
    (folder / "stat").write_text(f"7 (a b) c) {state} 1 7 7 0\n")
    if call is not None:
        (folder / "syscall").write_text(f"{call} 0x0\n")
    states = ThreadStates(7)
    states._folder = str(tmp_path)
    try:
        assert states.read(7) == (1000, 200, leaf)
    finally:
        states.close()


@pytest.mark.parametrize(
    ("path", "function", "kind"),
    [
        ("/home/me/train.py", "collate", "u"),
        (f"{TORCH}/nn/modules/linear.py", "forward", "-"),
        (f"{TORCH}/nn/modules/module.py", "_call_impl", "d"),
        (f"{TORCH}/utils/data/dataloader.py", "_next_data", "i"),
        (f"{TORCH}/utils/data/dataloader.py", "_get_iterator", "i"),
        ("/usr/lib/python3.12/http/client.py", "getresponse", "h"),
        ("/usr/lib/python3.12/http/client.py", "parse_headers", "-"),  # a server's too
        ("/usr/lib/python3.12/queue.py", "get", "q"),
        ("/usr/lib/python3.12/queue.py", "put", "-"),
        (f"{TORCH}/_dynamo/convert_frame.py", "_compile", "c"),
        (f"{TORCH}/_dynamo/eval_frame.py", "_fn", "d"),
        (f"{TORCH}/_functorch/_aot_autograd/subclass_codegen.py:codegen(forward)", "impl_fn", "d"),
        (f"{TORCH}/_functorch/_aot_autograd/graph_compile.py", "aot_stage2_compile", "c"),
        (f"{TORCH}/_functorch/vmap.py", "vmap_impl", "-"),
        (f"{TORCH}/_inductor/cudagraph_trees.py", "execute_node", "d"),
        (f"{TORCH}/_inductor/cudagraph_trees.py", "_record", "c"),
        ("/tmp/torchinductor_me/ab/cab.py", "call", "-"),
        (f"{TORCH}/distributed/distributed_c10d.py", "all_reduce", "r"),
        (f"{TORCH}/distributed/fsdp/_runtime_utils.py", "_unshard", "-"),
        ("/opt/lib/python3.12/site-packages/jax/_src/compiler.py", "backend_compile", "c"),
        ("/opt/lib/python3.12/site-packages/jax/_src/pjit.py", "cache_miss", "-"),
        ("/home/me/data.py", "<module>", "-"),
        ("<frozen importlib._bootstrap>", "_load", "-"),
        # What --annotate puts around a module's call.
        (python_lines.__file__.replace("python_lines", "torch_ranges"), "ranged_call", "d"),
    ],
)
def test_what_a_frame_says(path: str, function: str, kind: str) -> None:
    code = test_what_a_frame_says.__code__.replace(co_filename=path, co_name=function)
    assert _kind(code) == kind


def test_a_reading_has_the_functions_of_libraries_that_the_line_is_in(tmp_path: Path) -> None:
    """The program calls `outer`, which calls `inner` through what only dispatches."""
    ready, done = threading.Event(), threading.Event()
    names: dict[str, Any] = {"ready": ready.set, "wait": done.wait}
    for path, code in (
        ("library", "def inner(): ready(), wait()"),
        ("torch/nn/modules/module", "def _call_impl(): inner()"),
        ("library", "def outer(): _call_impl()"),
    ):
        exec(compile(code, f"/e/site-packages/{path}.py", "exec"), names)
    thread = threading.Thread(target=lambda: names["outer"]())
    thread.start()
    ready.wait()
    try:
        python_lines._Sampler(str(tmp_path))._sample()
    finally:
        done.set()
        thread.join()
    known = PythonLines(tmp_path, os.getpid())
    [sample] = [one for one in known.read() if one.thread == thread.native_id]
    assert known.lines[sample.line].function == "<lambda>"
    functions = [known.lines[one].function for one in sample.inside]
    assert functions[:2] == ["outer", "inner"]


@pytest.mark.parametrize(("path", "kinds"), [("utils/checkpoint", ["k"]), ("autograd/fun", [])])
def test_a_forward_pass_that_is_computed_again_is_seen(
    tmp_path: Path, path: str, kinds: list[str]
) -> None:
    """In a thread that Python's threading does not know, as autograd's."""
    ready, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def forward() -> None:
        ready.set()
        go_on.wait()

    names: dict[str, Any] = {"forward": forward, "ended": ended.set}
    code = "def unpack_hook(): forward(), ended()"
    exec(compile(code, f"/e/site-packages/torch/{path}.py", "exec"), names)
    _thread.start_new_thread(names["unpack_hook"], ())
    ready.wait()
    try:
        python_lines._Sampler(str(tmp_path))._sample()
    finally:
        go_on.set()
        ended.wait()
    known = PythonLines(tmp_path, os.getpid())
    found = [one for one in known.read() if not one.thread]
    assert [one.kind for one in found] == kinds
    assert [known.lines[one.line].function for one in found] == ["forward"] * len(kinds)


def fetch_batch(url: str) -> None:
    urllib.request.urlopen(url).close()


def log_metrics(url: str) -> None:
    urllib.request.urlopen(url, b"loss=1").close()


@pytest.mark.parametrize(("ask", "kind"), [(fetch_batch, "i"), (log_metrics, "w")])
def test_a_request_that_reports_fetches_no_input(
    tmp_path: Path, ask: Callable[[str], None], kind: str
) -> None:
    asked, answer = threading.Event(), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.set()
            answer.wait()
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        thread = threading.Thread(target=ask, args=(f"http://127.0.0.1:{server.server_port}/",))
        thread.start()
        asked.wait()
        sampler, known = python_lines._Sampler(str(tmp_path)), PythonLines(tmp_path, os.getpid())
        samples: list[Sample] = []
        try:
            while not samples or samples[-1].kind == "-":  # not yet waiting for the answer
                sampler._sample()
                samples += [one for one in known.read() if one.thread == thread.native_id]
        finally:
            answer.set()
            thread.join()
            serving.join()
    assert known.lines[samples[-1].line].function == ask.__name__
    assert samples[-1].kind == kind


class _Blocking(list[Any]):
    """Whoever goes through it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.ready, self.done = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[Any]:
        self.ready.set()
        self.done.wait()
        return super().__iter__()


def test_an_optimizers_zero_grad_is_no_compiling(tmp_path: Path) -> None:
    """PyTorch's compiler wraps it, to leave it out."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    optimizer.param_groups = groups = _Blocking()
    thread = threading.Thread(target=lambda: optimizer.zero_grad())
    thread.start()
    groups.ready.wait()
    try:
        python_lines._Sampler(str(tmp_path))._sample()
    finally:
        groups.done.set()
        thread.join()
    known = PythonLines(tmp_path, os.getpid())
    [sample] = [one for one in known.read() if one.thread == thread.native_id]
    assert sample.kind == "-"


def test_the_outermost_lines_of_the_script_itself_are_the_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/home/me/train.py", raising=False)
    code = compile("x = 1", "/home/me/train.py", "exec")
    assert _kind(code) == "u"


def test_a_thread_that_polls_while_nothing_runs_takes_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It made calls for a night, and each was kept until an operation would come."""
    monkeypatch.setattr(host_threads, "MOST_CALLS", 2000)
    process = Accounting(1, 100, RangeStacks(Strings()), ProgramSteps(1, Strings()), live=True)
    process.define_call("cudaEventQuery")
    which, times = np.zeros(1000, np.int64), np.arange(1000) * 1000
    tracemalloc.start()
    try:
        held = []
        for second in range(100):
            starts = second * 10**9 + times
            process.add_calls(which, which + 100, starts, starts + 500)
            process.collect((second + 1) * 10**9, "repetition")
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[-1] - held[20] < 10 * 2 * starts.nbytes  # of 80


def test_on_a_slow_cpu_launching_takes_longer() -> None:
    begins = np.arange(1000) * 2 * 10**9
    assert _short(begins, begins + 5_000) == SHORT_NS
    assert _short(begins, begins + 100_000) == 500_000
    assert _short(begins, begins + 10**9) == SHORT_MOST_NS
    assert _short(begins[:10], begins[:10] + 100_000) == SHORT_NS  # too few to judge by
