"""Metrics of serving engines: pages with the names and types that the engines' sources declare,
read from real servers, found through real processes."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.collect.serving_pages import ENGINES, Histogram, Page, read_page, sample_of
from gputui.collect.serving_reader import (
    PageError,
    ServerReader,
    ServingOptions,
    address_of,
    engines_listening,
    fetch_page,
    listening_sockets,
    may_have_page,
)
from gputui.model.events import ServerSample
from gputui.state import Session
from gputui.state.readings import Bucket

PAGES = Path(__file__).parent.parent / "data" / "serving"


def page_of(engine: str) -> str:
    return (PAGES / f"{engine}.txt").read_text()


READ = {
    "vllm-0.32": ("vLLM", 8, 44, 0.928187592, 87780, 25128, 417, 0, 100 * 50688 / 87780),
    "vllm": ("vLLM", 12, 3, 81.25, 40000, 9000, 100, 7, 25.0),
    "sglang": ("SGLang", 5, 0, 28.0, 8128902, 7557572, 11014, 2, 100 * 100000 / 8128902),
    "tensorrt-llm": ("TensorRT-LLM", 8, 2, 50.0, 5000, 2500, 20, None, 25.0),
    "tgi": ("TGI", 16, 4, None, 12000, 2400, 60, None, None),
    "llama.cpp-b11434": ("llama.cpp", 4, 4, None, 19149, 1776, None, None, 100 * 2785 / 19149),
    "llama.cpp": ("llama.cpp", 4, 46, None, 512, 39080, None, None, None),
}


def read_since_nothing(text: str) -> tuple[ServerSample, Session]:
    """All that a page counts, as if it had counted nothing before."""
    page = read_page(text)
    assert page is not None
    none = Page(page.engine, None, {}, {}, {})
    sample = sample_of(page, none, 10.0, time_ns=1, url="http://here/metrics", pid=None)
    return sample, Session.from_events([sample])


@pytest.mark.parametrize("engine", READ)
def test_a_page_in_one_vocabulary(engine):
    """Gauges, sums and shares of each engine."""
    sample, session = read_since_nothing(page_of(engine))
    [server] = session.servers.values()
    sums = server.sums

    assert (
        sample.engine, sample.requests_running, sample.requests_waiting,
        sample.kv_cache_percent and round(sample.kv_cache_percent, 9), sums["input_tokens"],
        sums["output_tokens"], sums.get("requests_completed"),
        sums.get("preemptions"),
    ) == READ[engine][:8]  # fmt: skip
    assert server.prefix_hit_percent == pytest.approx(READ[engine][8])
    assert server.rate("output_tokens") == sums["output_tokens"] / 10


def test_latencies_of_a_page():
    """Means are sum over count; quantiles are the bucket that holds them."""
    _, session = read_since_nothing(page_of("vllm"))
    [server] = session.servers.values()
    ttft = server.latencies["ttft"]

    assert (ttft.mean_s, ttft.count) == (0.315, 100)
    # 40 up to 0.1 s, 50 more up to 0.25 s, 10 up to 2.5 s.
    assert ttft.quantile(0.4) == Bucket(0.08, 0.1)
    assert ttft.quantile(0.5) == Bucket(0.1, 0.25)
    assert ttft.quantile(0.95) == Bucket(1.0, 2.5)
    assert server.latencies["itl"].quantile(0.99) == Bucket(0.1, 0.15)
    assert server.model == "m/llama"
    assert [name for name, _ in server.known_latencies()] == ["ttft", "tpot", "itl", "e2e", "queue"]


def test_llama_cpp_has_a_mean_gap_alone():
    """The seconds of all tokens over their number, and no quantile."""
    _, session = read_since_nothing(page_of("llama.cpp"))
    [server] = session.servers.values()

    assert server.latencies["itl"].mean_s == pytest.approx(0.02)
    assert server.latencies["itl"].quantile(0.5) is None


def test_every_declared_name_is_on_a_page_or_an_older_one():
    """The pages show each quantity that an engine declares."""
    for engine in ENGINES:
        file = {"vLLM": "vllm-0.32", "llama.cpp": "llama.cpp-b11434"}.get(engine.name)
        page = read_page(page_of(file or engine.name.lower()))
        assert page is not None
        shown = {*page.gauges, *page.counters, *page.histograms, "itl_sum", "itl_count"}
        declared = {*engine.gauges, *engine.counters, *engine.histograms}
        missing = {"llama.cpp": {"kv_cache_ratio"}, "SGLang": {"tpot"}}.get(engine.name, set())
        assert declared - shown == missing, engine.name


def test_a_restart_is_survived():
    """Counters and histograms that are smaller than before began anew."""
    before = read_page(page_of("vllm"))
    after = read_page(
        'vllm:generation_tokens_total{engine="0"} 50\n'
        'vllm:time_to_first_token_seconds_bucket{le="0.1"} 2\n'
        'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 3\n'
        "vllm:time_to_first_token_seconds_count 3\nvllm:time_to_first_token_seconds_sum 9.5\n"
    )
    assert before is not None
    assert after is not None

    sample = sample_of(after, before, 1.0, time_ns=1, url="u", pid=None)

    assert sample.output_tokens == 50
    assert sample.ttft is not None
    assert (sample.ttft.count, sample.ttft.sum_s) == (3, 9.5)
    assert sample.ttft.buckets == ((0.0, 0.1, 2), (0.1, None, 1))


def test_the_first_reading_has_no_amounts():
    """What an engine counted before gputui came is not of this session."""
    page = read_page(page_of("vllm"))
    assert page is not None

    sample = sample_of(page, None, 0.0, time_ns=1, url="u", pid=None)

    assert sample.requests_running == 12
    assert (sample.output_tokens, sample.interval_s, sample.ttft) == (None, None, None)


def test_ranks_are_added_up_and_the_fullest_cache_counts():
    """Data-parallel engines have a label each."""
    text = "".join(
        f'vllm:num_requests_running{{engine="{rank}"}} {rank + 1}\n'
        f'vllm:kv_cache_usage_perc{{engine="{rank}"}} 0.{rank + 1}\n'
        for rank in range(4)
    )
    page = read_page(text)

    assert page is not None
    assert page.gauges == {"requests_running": 10, "kv_cache_ratio": 0.4}


def test_ranks_that_share_requests_and_priorities_count_once():
    """SGLang's pipeline of two, each rank of which counts all, with a series for each priority."""
    text = "".join(
        f'sglang:{name}{{dp_rank="{dp}",pp_rank="{pp}",priority="{priority}"}} {value}\n'
        for name in ("num_running_reqs", "num_retracted_requests_total")
        for dp in range(2)
        for pp in range(2)
        for priority, value in (("", 5), ("1", 3), ("2", 2))
    )
    page = read_page(text)

    assert page is not None
    assert page.gauges == {"requests_running": 10}
    assert page.counters == {"preemptions": 20}  # those of no priority are others


def test_a_request_that_its_client_gave_up_is_not_completed():
    """vLLM counts it among its successes, with the reason as a label."""
    reasons = {"stop": 3, "length": 4, "abort": 50, "error": 9}
    text = "".join(
        f'vllm:request_success_total{{finished_reason="{reason}"}} {count}\n'
        for reason, count in reasons.items()
    )
    page = read_page(text)
    assert page is not None
    assert page.counters == {"requests_completed": 7}


def test_newer_sglang_writes_underscores():
    """`sglang_` for `sglang:`."""
    assert read_page(page_of("sglang").replace("sglang:", "sglang_")) == read_page(
        page_of("sglang")
    )


@pytest.mark.parametrize(
    "text",
    [
        "vllm:num_requests_running nan\n",
        "vllm:num_requests_running -3\nvllm:kv_cache_usage_perc +Inf\n",
        "vllm:num_requests_running 1e300\n",
        'vllm:num_requests_running{a="b\n',
        "vllm:num_requests_running{\n",
        "vllm:num_requests_running\n",
        "vllm:\x00\n",
        'vllm:time_to_first_token_seconds_bucket{le="x"} 3\n',
        "vllm:time_to_first_token_seconds_count 3\n",
    ],
)
def test_hostile_pages(text):
    """None of them gives a figure that is none, and none raises anything but ValueError."""
    try:
        page = read_page(text)
    except ValueError:
        return
    assert page is None or (not page.gauges and not page.counters)


_LINES = st.lists(
    st.text(max_size=40)
    | st.builds(
        "{}{} {}".format,
        st.sampled_from(
            ["vllm:num_requests_running", "vllm:prompt_tokens_total",
             "vllm:time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_count",
             "vllm:time_to_first_token_seconds_sum", "sglang:token_usage"]
        ),
        st.sampled_from(["", '{le="0.1"}', '{le="+Inf"}', '{le="-1"}', '{a="\\""}', "{", "}"]),
        st.floats() | st.integers() | st.text(max_size=9),
    ),
    max_size=12,
)  # fmt: skip


@given(_LINES, _LINES)
def test_any_two_pages_become_an_event_that_folds(first, second):
    """Whatever a server sends, and however it goes on."""
    pages = []
    for lines in (first, second):
        try:
            pages.append(read_page("\n".join(lines)))
        except ValueError:
            pages.append(None)
    before, now = pages
    if now is None:
        return
    sample = sample_of(now, before, 1.0, time_ns=1, url="u", pid=None)
    session = Session.from_events([sample])

    assert all(amount >= 0 for amount in session.servers["u"].sums.values())
    for _, latency in session.servers["u"].known_latencies():
        assert all(count >= 0 for _, count in latency.buckets.values())


@given(
    st.lists(st.floats(0.0, 3000.0), min_size=1, max_size=60),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_a_quantile_lies_in_its_bucket(latencies, share):
    """Against sorting the observations."""
    bounds = [0.001, 0.01, 0.1, 0.25, 1.0, 10.0, 100.0, math.inf]
    cumulative = {bound: float(sum(latency <= bound for latency in latencies)) for bound in bounds}
    histogram = Histogram(sum(latencies), float(len(latencies)), cumulative)
    page = Page("vLLM", None, {}, {}, {"ttft": histogram})
    sample = sample_of(page, Page("vLLM", None, {}, {}, {}), 1.0, time_ns=1, url="u", pid=None)
    exact = sorted(latencies)[math.ceil(share * len(latencies) - 1e-9) - 1]
    bucket = Session.from_events([sample]).servers["u"].latencies["ttft"].quantile(share)

    assert bucket is not None
    assert bucket.low_s < exact <= bucket.high_s or exact == bucket.low_s == 0.0
    assert bucket.high_s in bounds


# --- over HTTP ---------------------------------------------------------------------------------


@contextmanager
def serving(answer) -> Iterator[str]:
    """A server of which each GET is answered by `answer(handler)`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sends(text: str | bytes, status: int = 200, **headers: str):
    def answer(handler):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(text if isinstance(text, bytes) else text.encode())

    return answer


def test_a_page_over_http():
    """One GET, as it is."""
    asked = []

    def answer(handler):
        asked.append((handler.command, handler.path))
        sends(page_of("vllm"))(handler)

    with serving(answer) as url:
        assert fetch_page(url) == page_of("vllm")
    assert asked == [("GET", "/metrics")]


def test_a_redirect_is_not_followed():
    """It may lead to another host."""
    with (
        serving(sends("", 302, Location="http://example.com/metrics")) as url,
        pytest.raises(PageError, match="answered 302"),
    ):
        fetch_page(url)


def test_a_page_without_end_is_given_up(monkeypatch):
    """By its size."""
    monkeypatch.setattr("gputui.collect.serving_reader.MAX_PAGE", 1000)
    with serving(sends(b"x" * 100_000)) as url, pytest.raises(PageError, match="larger"):
        fetch_page(url)


def test_a_page_in_drops_is_given_up():
    """By the time of all of it, not of a byte."""
    ended = threading.Event()

    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1000):
            try:
                handler.wfile.write(b"x")
                handler.wfile.flush()
            except OSError:
                break
            if ended.wait(0.02):
                break

    with serving(drip) as url:
        with pytest.raises(PageError, match=r"within 0\.2 s"):
            fetch_page(url, timeout_s=0.2)
        ended.set()


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://", "http://a b/", "http://me:secret@host/", "http://h:99999/", "\x00"],
)
def test_addresses_that_are_none(url):
    """Before anything is asked."""
    with pytest.raises(ValueError, match=r".+"):
        address_of(url)


def test_addresses_are_completed():
    """What people type."""
    assert address_of("gpu1:8000").geturl() == "http://gpu1:8000/metrics"
    assert address_of("https://h/x?y=1").geturl() == "https://h/x?y=1"


def collected(options: ServingOptions, roots, until) -> list[ServerSample]:
    """What a reader emits until `until` holds of it."""
    news: Queue = Queue()
    reader = ServerReader(options, lambda: 0.1, lambda: roots, news.put)
    reader.start()
    samples: list[ServerSample] = []
    try:
        while not until(samples):
            samples += news.get(timeout=120)
    finally:
        reader.stop()
    return samples


def test_readings_follow_each_other_and_failures_are_said_once():
    """A server that is away and comes back: why is told once, and counting goes on."""
    asked = []

    def answer(handler):
        asked.append(1)
        if len(asked) in (3, 4, 5):
            sends("", 503)(handler)
        else:
            tokens = f"vllm:generation_tokens_total {10 * len(asked)}\n"
            sends("vllm:num_requests_running 1\n" + tokens)(handler)

    with serving(answer) as url:
        samples = collected(ServingOptions((url,)), (), lambda got: len(got) >= 5)
    session = Session.from_events(samples)
    [server] = session.servers.values()

    reasons = [sample.unavailable_reason for sample in samples]
    assert [reason is not None for reason in reasons[:5]] == [False, False, True, False, False]
    assert reasons[2] == "it answered 503 Service Unavailable"
    assert server.sums["output_tokens"] == 10 * (len(asked) - 1)
    assert server.reason is None


_ENGINE = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked", flush=True)
        self.send_response(404 if "loading" in sys.argv else 200); self.end_headers()
        self.wfile.write(b"vllm:num_requests_running 2\\nvllm:generation_tokens_total 5\\n")
    def log_message(self, *_): pass
server = HTTPServer(("127.0.0.1", 0), Page)
waits = [sys.executable, "-c", "import sys; sys.stdin.read()", "VLLM::EngineCore"]
worker = subprocess.Popen(waits, stdin=subprocess.PIPE)
print(worker.pid, server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def an_engine(*words: str) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """A process that listens and answers, with a worker below it, whose PID is the second, and
    its port."""
    process = subprocess.Popen(
        [sys.executable, "-c", _ENGINE, *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    worker, port = map(int, process.stdout.readline().split())
    try:
        yield process, worker, port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_one_that_listens_is_found_from_the_worker():
    """Who attaches names the process on the GPU; its parent answers requests."""
    with an_engine("/usr/bin/vllm", "serve", "model") as (process, worker, port):
        pid = process.pid
        found = engines_listening([worker])
        assert [(each.pid, each.port) for each in found] == [(pid, port)]
        assert found == engines_listening([pid])

        samples = collected(ServingOptions(), (worker,), lambda got: len(got) >= 2)
    assert {(sample.url, sample.pid, sample.requests_running) for sample in samples} == {
        (f"http://127.0.0.1:{port}/metrics", pid, 2)
    }


def test_other_programs_are_not_asked():
    """A program that listens but is no known engine."""
    with an_engine("notebook") as (process, _, _):
        assert engines_listening([process.pid]) == []
        assert engines_listening([os.getpid()]) == []


@pytest.mark.parametrize(
    ("command", "is_asked"),
    [
        ("python3 /opt/bin/vllm serve model", True),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", True),
        ("python3 /src/vllm/entrypoints/openai/api_server.py", True),
        ("VLLM::APIServer_1   ", True),
        ("sglang::tokenizer_worker:812", True),
        ("python3 -m sglang.launch_server", True),
        ("/opt/bin/llama-server -m x.gguf", True),
        ("/usr/local/bin/llama serve -m x.gguf", True),
        ("text-generation-router --port 80", True),
        ("trtllm-serve model", True),
        ("VLLM::EngineCore   ", False),
        ("VLLM::Worker_TP1", False),
        ("sglang::scheduler_TP0", False),
        ("sglang::detokenizer", False),
        ("/envs/vllm/bin/python3 train.py", False),
        ("/envs/vllm-0.9/bin/python3 -m jupyterlab", False),
        ("/usr/bin/llama cli -m x.gguf", False),
    ],
)
def test_which_processes_are_asked(command, is_asked):
    """What answers requests; no worker, whose libraries listen, and nothing in an engine's
    folder."""
    assert may_have_page(command.replace(" ", "\0").replace("\0\0\0", "   ")) == is_asked


def test_where_a_page_is_reached():
    """Real sockets: of this machine's other addresses their own; "::" through both kinds."""
    for family, address, hosts in (
        (socket.AF_INET, "0.0.0.0", ["127.0.0.1"]),
        (socket.AF_INET, "127.0.0.9", ["127.0.0.9"]),
        (socket.AF_INET6, "::1", ["::1"]),
        (socket.AF_INET6, "::", ["127.0.0.1", "::1"]),
        (socket.AF_INET6, "::ffff:127.0.0.3", ["127.0.0.3"]),
    ):
        with socket.socket(family) as listens:
            try:
                listens.bind((address, 0))
            except OSError:
                continue  # a machine without IPv6
            listens.listen()
            port = listens.getsockname()[1]
            assert [host for host, each in listening_sockets(os.getpid()) if each == port] == hosts


def test_what_is_no_page_is_asked_ever_less_often():
    """Each ask may cost a program a connection that it never closes."""
    told: list[ServerSample] = []
    with an_engine("vllm", "serve", "loading") as (process, _, _):
        reader = ServerReader(ServingOptions(), lambda: 0.1, lambda: [process.pid], told.extend)
        for time_s in (0, 1, 2, 3, 5, 7, 14, 15, 30, 31):
            reader.look_for_engines(1000.0 + time_s)
        process.kill()
        assert process.stdout.read().split() == ["asked"] * 6  # after 0, 1, 3, 7, 15 and 31 s
    [sample] = told  # once
    assert "404 Not Found: its metrics are off (SGLang has --enable-metrics" in (
        sample.unavailable_reason or ""
    )


def test_nothing_is_searched_where_it_is_not_wanted():
    """`--metrics none`, and no thread."""
    reader = ServerReader(ServingOptions(search=False), lambda: 0.1, lambda: (1,), print)
    reader.start()
    assert "serving" not in {thread.name for thread in threading.enumerate()}
    reader.stop()
