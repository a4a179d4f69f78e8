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
from typing import NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """What came of a request: the moments of the pieces of its answer on the monotonic clock in ns,
    why it failed, "" if it did not, and its tokens: an engine may send several in one piece."""

    moments: list[int]
    failure: str
    tokens: int


class Server(NamedTuple):
    """A server, and how it is asked: `model` as it calls it, by its route for chats or that for
    prompts, and with OpenAI's fields alone where it refuses others."""

    url: str
    model: str = "any"
    is_chat: bool = False
    is_strict: bool = False

    def body(self, prompt: int, output: int, seed: int) -> bytes:
        """A request with a prompt of so many words. Engines that know `ignore_eos` write as many
        tokens as they were asked to."""
        chance = random.Random(seed)
        words = " ".join(f"w{chance.randrange(10**6)}" for _ in range(prompt))
        asked = {"messages": [{"role": "user", "content": words}]} if self.is_chat else {
            "prompt": words
        }  # fmt: skip
        request = {
            "model": self.model, "max_tokens": output, "stream": True, "temperature": 0,
            "stream_options": {"include_usage": True}, **asked,
        }  # fmt: skip
        if not self.is_strict:
            request["ignore_eos"] = True
        return json.dumps(request).encode()

    def stream(self, body: bytes, output: int, timeout_s: float = 600.0, due_ns: int = 0) -> Answer:
        """Ask at the moment `due_ns`, and read what comes."""
        address = urlsplit(self.url)
        route = "/v1/chat/completions" if self.is_chat else "/v1/completions"
        came: list[tuple[int, bytes]] = []
        connection = http.client.HTTPConnection(
            address.hostname or "127.0.0.1", address.port, timeout=timeout_s
        )
        try:
            connection.connect()
            time.sleep(max(0.0, (due_ns - time.perf_counter_ns()) / 1e9))
            connection.request("POST", route, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                text = answer.read(500).decode("utf-8", "replace")
                return Answer([], f"{answer.status} {text}", 0)
            for line in answer:
                if line.startswith(b"data:"):
                    came.append((time.perf_counter_ns(), line))
        except (OSError, http.client.HTTPException) as error:
            return Answer([moment for moment, _ in came], str(error) or type(error).__name__, 0)
        finally:
            connection.close()
        return _read(came, output)


def _read(came: Sequence[tuple[int, bytes]], output: int) -> Answer:
    """The pieces with text in them; the tokens are those that the server counted."""
    moments, tokens = [], 0
    for moment, line in came:
        try:
            piece = json.loads(line.removeprefix(b"data:"))
        except ValueError:
            continue  # "[DONE]"
        tokens = (piece.get("usage") or {}).get("completion_tokens", tokens)
        for choice in piece.get("choices") or ():
            delta = choice.get("delta") or {}
            if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
                moments.append(moment)
    tokens = tokens or len(moments)
    return Answer(moments, "" if moments and tokens == output else f"{tokens} tokens of {output}",
                  tokens)  # fmt: skip


def ask(url: str, prompt: int, output: int, seed: int) -> Answer:
    """Stream one completion of `prompt` words."""
    server = Server(url)
    return server.stream(server.body(prompt, output, seed), output)


_EARLY_S = 0.02
"""Before a request is due its thread is started and connects, as clients that keep connections."""


def load(
    server: Server, rate: float, requests: int, prompt: int, output: int, seed: int
) -> dict[str, object]:
    """Ask `requests` times, `rate` a second in the mean; the figures."""
    chance = random.Random(seed)
    results: list[tuple[int, Answer]] = []
    threads: list[threading.Thread] = []
    lock = threading.Lock()

    # Before their moments: 6,000 words take 5 ms.
    bodies = [server.body(prompt, output, seed + number) for number in range(requests)]

    def once(due_ns: int, number: int) -> None:
        answer = server.stream(bodies[number], output, due_ns=due_ns)
        with lock:
            results.append((due_ns, answer))

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


def figures(results: Sequence[tuple[int, Answer]]) -> dict[str, object]:
    """Of the moment at which each request was due and its answer: means and percentiles in ms.
    `pieces` of which are fewer than tokens make `itl` the gap between pieces."""
    done = [(due_ns, answer) for due_ns, answer in results if not answer.failure]
    values = {
        "ttft": [(answer.moments[0] - due_ns) / 1e6 for due_ns, answer in done],
        "tpot": [
            (answer.moments[-1] - answer.moments[0]) / (answer.tokens - 1) / 1e6
            for _, answer in done
            if answer.tokens > 1
        ],
        "itl": [(b - a) / 1e6 for _, answer in done for a, b in pairwise(answer.moments)],
        "e2e": [(answer.moments[-1] - due_ns) / 1e6 for due_ns, answer in done],
    }
    latencies: dict[str, object] = {
        "completed": len(done),
        "failures": sorted({answer.failure for _, answer in results if answer.failure})[:5],
        "output_tokens": sum(answer.tokens for _, answer in done),
        "pieces": sum(len(answer.moments) for _, answer in done),
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
    parser.add_argument("--model", default="any", help="as the server calls it")
    parser.add_argument("--chat", action="store_true", help="ask by /v1/chat/completions")
    parser.add_argument("--strict", action="store_true", help="send OpenAI's fields alone")
    given = parser.parse_args(arguments)
    if not given.rate > 0 or given.requests < 1 or given.prompt < 1 or given.output < 1:
        parser.error("rate, requests, prompt and output are above 0")
    server = Server(given.url, given.model, given.chat, given.strict)
    result = load(server, given.rate, given.requests, given.prompt, given.output, given.seed)
    print(json.dumps(result))
    return 0 if result["completed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
