"""The workload `serve` as a real server: OpenAI's routes, vLLM's metrics, a client as the judge,
and gputui beside it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gputui.collect.serving_pages import read_page
from gputui.state import Session
from gputui.store.journal.reader import JournalReader
from workloads.serve.client import Answer, Server, ask, figures, load

SERVE = (
    "serve", "--device=cpu", "--size=llama-tiny", "--arrivals=http", "--port=0",
    "--prompt=16", "--output=8", "--sequences=4", "--budget=32",
)  # fmt: skip


@contextmanager
def server(requests: int, *more: str) -> Iterator[str]:
    """Its address; it ends by itself after so many requests."""
    process = subprocess.Popen(
        [sys.executable, "-m", "workloads", *SERVE, f"--requests={requests}", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if "http://" in line:
                yield "http://" + line.split("http://", 1)[1].split("/", 1)[0].split('"')[0]
                break
        else:
            pytest.fail("".join(lines))
        process.stdout.read()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def text_of(url: str, body: object = None) -> tuple[int, str]:
    """Status and text of a GET, or of a POST of `body`."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_client_and_the_page_count_the_same():
    """All requests are answered; what the server counted is what the client saw, and no latency
    of the server's is longer than what the client waited."""
    with server(9) as url:
        assert text_of(f"{url}/health") == (200, "")
        seen = load(Server(url), rate=200.0, requests=6, prompt=12, output=5, seed=1)
        status, answer = text_of(
            f"{url}/v1/chat/completions",
            {"messages": [{"role": "user", "content": "how are you"}], "max_tokens": 3},
        )
        page = read_page(text_of(f"{url}/metrics")[1])
        assert [
            text_of(f"{url}/v1/completions", {"prompt": [1, 2, 3], "max_tokens": n})[0]
            for n in (1, 2)
        ] == [200, 200]

    assert (seen["completed"], seen["output_tokens"], seen["failures"]) == (6, 30, [])
    assert status == 200
    assert json.loads(answer)["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6,
    }  # fmt: skip
    assert page is not None
    assert page.engine == "vLLM"
    assert page.model == "llama-tiny"
    assert page.counters["output_tokens"] == 33
    assert page.counters["input_tokens"] == 6 * 12 + 3
    assert page.counters["requests_completed"] == 7
    ttft = page.histograms["ttft"]
    assert ttft.count == 7
    assert page.histograms["itl"].count == 6 * 4 + 2
    of_client = seen["ttft_mean_ms"]
    assert isinstance(of_client, float)
    assert 0 < page.histograms["queue"].sum_s <= ttft.sum_s


def test_what_is_refused():
    """In words, with a status that clients know, and the server goes on."""
    with server(1, "--pages=4") as url:
        refused = [
            text_of(f"{url}/v1/completions", body)
            for body in ([], {}, {"prompt": ""}, {"prompt": "a", "max_tokens": -1},
                         {"prompt": "a", "max_tokens": 1000}, {"prompt": 5})
        ]  # fmt: skip
        assert text_of(f"{url}/nothing")[0] == 404
        assert ask(url, 2, 1, seed=0).failure == ""

    assert {status for status, _ in refused} == {400}
    assert "there is room for 64" in refused[4][1]


def test_gputui_reads_the_server_that_it_runs():
    """Nothing is configured: it finds the port of its child, and records what it reads, from the
    child's first request on."""
    words = [word for option in SERVE[1:] for word in ("-p", option.removeprefix("--"))]
    gputui = subprocess.Popen(
        [sys.executable, "-m", "gputui", "--record", "-i", "0.2", "-o", "-",
         "--workload", "serve", *words, "-p", "requests=6", "-p", "tokenizer_us=20000"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert gputui.stdout is not None
    journal, url, tokens = [], "", 0
    with gputui, gputui.stdout:
        for line in gputui.stdout:
            journal.append(line)
            if b"http://" in line and not url:
                address = line.split(b"http://")[1].split(b"/")[0].decode()
                url = f"http://{address}"
                seen = load(Server(url), rate=50.0, requests=5, prompt=5, output=6, seed=2)
            if b'"server_sample"' in line and tokens < 30:
                tokens += json.loads(line).get("output_tokens", 0)
                if tokens == 30:  # the engine ends with the sixth request
                    assert ask(url, 5, 1, seed=3).failure == ""
    session = Session.from_events(JournalReader(io.BytesIO(b"".join(journal)), "pipe"))
    [read] = session.servers.values()

    assert gputui.returncode == 0
    assert seen["output_tokens"] == 30
    assert read.engine == "vLLM"
    assert read.sums["output_tokens"] in (30, 31)
    first = read.latencies["ttft"]
    assert first.count == read.sums["output_tokens"] - 25
    assert first.sum_s >= 0.1 * first.count  # 20 ms for each of five words of a prompt


def test_figures_of_moments():
    """Against hand-made ones: the due moment counts, failures do not."""
    ms = 1_000_000
    found = figures(
        [
            (0, Answer([10 * ms, 20 * ms, 40 * ms], "", 3)),
            (5 * ms, Answer([35 * ms], "", 1)),
            (0, Answer([1 * ms], "1 tokens of 2", 1)),
        ]
    )
    assert (found["completed"], found["failures"]) == (2, ["1 tokens of 2"])
    assert (found["ttft_mean_ms"], found["ttft_p50_ms"], found["ttft_p99_ms"]) == (20, 10, 30)
    assert (found["tpot_mean_ms"], found["itl_p50_ms"], found["itl_p99_ms"]) == (15, 10, 20)
    assert found["e2e_mean_ms"] == 35
