"""A client of any server with OpenAI's routes: requests at random moments, whether or not the
server keeps up, and what a user of it waits for.

    python -m gputui_workloads.serve.client http://127.0.0.1:8000 --rate 8 --requests 100

It prints a JSON object: TTFT from the moment at which a request was due to its first token, TPOT
and gaps between tokens, in milliseconds. Latencies count from the due moment, so that a server that
is behind is not excused (Tene, "How not to measure latency", 2013).
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from urllib.parse import urlsplit


def ask(
    url: str, prompt: int, output: int, seed: int, timeout_s: float = 600.0
) -> tuple[list[int], str]:
    """Stream one completion of `prompt` words. The moments of its tokens on the monotonic clock,
    in ns, and why it failed, "" if it did not."""
    return _stream(url, _body(prompt, output, seed), output, timeout_s)


def _body(prompt: int, output: int, seed: int) -> bytes:
    chance = random.Random(seed)
    words = " ".join(f"w{chance.randrange(10**6)}" for _ in range(prompt))
    request = {"model": "any", "prompt": words, "max_tokens": output, "stream": True}
    return json.dumps(request).encode()


def _stream(
    url: str, body: bytes, output: int, timeout_s: float = 600.0, due_ns: int = 0
) -> tuple[list[int], str]:
    address = urlsplit(url)
    moments: list[int] = []
    connection = http.client.HTTPConnection(
        address.hostname or "127.0.0.1", address.port, timeout=timeout_s
    )
    try:
        connection.connect()
        time.sleep(max(0.0, (due_ns - time.perf_counter_ns()) / 1e9))
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            return moments, f"{answer.status} {answer.read(500).decode('utf-8', 'replace')}"
        for line in answer:
            if line.startswith(b"data:") and b"[DONE]" not in line:
                moments.append(time.perf_counter_ns())
    except (OSError, http.client.HTTPException) as error:
        return moments, str(error) or type(error).__name__
    finally:
        connection.close()
    return moments, "" if len(moments) == output else f"{len(moments)} tokens of {output}"


_EARLY_S = 0.02
"""Before a request is due its thread is started and connects, as clients that keep connections."""


def load(
    url: str, rate: float, requests: int, prompt: int, output: int, seed: int
) -> dict[str, object]:
    """Ask `requests` times, `rate` a second in the mean; the figures."""
    chance = random.Random(seed)
    results: list[tuple[int, list[int], str]] = []
    threads: list[threading.Thread] = []
    lock = threading.Lock()

    # Before their moments: 6,000 words take 5 ms.
    bodies = [_body(prompt, output, seed + number) for number in range(requests)]

    def once(due_ns: int, number: int) -> None:
        moments, failure = _stream(url, bodies[number], output, due_ns=due_ns)
        with lock:
            results.append((due_ns, moments, failure))

    due_ns = started_ns = time.perf_counter_ns()
    for number in range(requests):
        if number:
            due_ns += round(1e9 * chance.expovariate(rate))
        time.sleep(max(0.0, (due_ns - time.perf_counter_ns()) / 1e9 - _EARLY_S))
        thread = threading.Thread(target=once, args=(due_ns, number), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    duration_s = (time.perf_counter_ns() - started_ns) / 1e9
    return {"requests": requests, "duration_s": duration_s, **figures(results)}


def figures(results: Sequence[tuple[int, list[int], str]]) -> dict[str, object]:
    """Of (due moment, moments of tokens, failure) each: means and percentiles in ms."""
    done = [(due_ns, moments) for due_ns, moments, failure in results if not failure]
    values = {
        "ttft": [(moments[0] - due_ns) / 1e6 for due_ns, moments in done],
        "tpot": [
            (moments[-1] - moments[0]) / (len(moments) - 1) / 1e6
            for _, moments in done
            if len(moments) > 1
        ],
        "itl": [(b - a) / 1e6 for _, moments in done for a, b in pairwise(moments)],
        "e2e": [(moments[-1] - due_ns) / 1e6 for due_ns, moments in done],
    }
    latencies: dict[str, object] = {
        "completed": len(done),
        "failures": sorted({failure for _, _, failure in results if failure})[:5],
        "output_tokens": sum(len(moments) for _, moments in done),
    }
    for name, samples in values.items():
        ordered = sorted(samples)
        latencies[f"{name}_mean_ms"] = sum(ordered) / len(ordered) if ordered else None
        for percent in (50, 95, 99):
            place = -(-percent * len(ordered) // 100) - 1
            latencies[f"{name}_p{percent}_ms"] = ordered[place] if ordered else None
    return latencies


def main(arguments: Sequence[str]) -> int:
    """Parse the command line, ask, and print the figures; 1 if nothing was answered."""
    parser = argparse.ArgumentParser(description="Open-loop load on a server with OpenAI's routes.")
    parser.add_argument("url", help="http://HOST:PORT")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second, mean")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=256, help="words of a prompt")
    parser.add_argument("--output", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if not given.rate > 0 or given.requests < 1 or given.prompt < 1 or given.output < 1:
        parser.error("rate, requests, prompt and output are above 0")
    result = load(given.url, given.rate, given.requests, given.prompt, given.output, given.seed)
    print(json.dumps(result))
    return 0 if result["completed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
