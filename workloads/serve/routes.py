"""The engine over HTTP on this machine: OpenAI's routes for completions, and /metrics.

Weights are random, so words are too: a prompt's words become tokens by a hash, and a token is
written as a word with its number. Each request writes as many tokens as `max_tokens` says.
"""

from __future__ import annotations

import contextlib
import io
import json
import queue
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import nvtx

from ..errors import CannotRun
from .requests import Request
from .results import Metrics

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TOKENIZE = nvtx.annotate("tokenize")

_MOST_BODY = 16 << 20
# A request passes from thread to thread five times until its first token is sent, and each waits so
# long for a loop that launches kernels in Python: with Python's own 5 ms the client's TTFT was 8 ms
# over the server's 47, with 0.1 ms 1.4 (H200).
_SWITCH_S = 2e-5
_DEFAULT_TOKENS = 16
_LONGEST_WAIT_S = 600.0


class RefusedRequest(Exception):
    """Why a request is not answered, for the client."""


@dataclass(eq=False)
class AskedRequest(Request):
    """A request that somebody waits for: its tokens go to `answer` as they are written, None after
    the last."""

    answer: queue.SimpleQueue[int | None] = field(default_factory=queue.SimpleQueue)


def spend(microseconds: float) -> None:
    """Keep this thread busy in Python, as a slow tokenizer does."""
    end_ns = time.perf_counter_ns() + round(1e3 * microseconds)
    while time.perf_counter_ns() < end_ns:
        pass


class Routes:
    """A server on 127.0.0.1 that gives requests to the loop."""

    def __init__(
        self,
        port: int,
        model: str,
        metrics: Metrics,
        *,
        vocabulary: int,
        most_positions: int,
        tokenizer_us: int,
        now_ns: Callable[[], int],
    ) -> None:
        """`port` 0 takes any. Raises CannotRun where it is taken."""
        self.model, self.metrics = model, metrics
        self._vocabulary, self._most_positions = vocabulary, most_positions
        self._tokenizer_us, self._now_ns = tokenizer_us, now_ns
        self._asked: queue.SimpleQueue[AskedRequest] = queue.SimpleQueue()
        self._number = 0
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"routes": self})
        try:
            self._server = _Listener(("127.0.0.1", port), handler)
        except OSError as error:
            raise CannotRun(f"port {port}: {error.strerror}") from None
        self._server.daemon_threads = True
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Take no more requests, close the port, and switch threads as often as before."""
        self._server.shutdown()
        self._server.server_close()
        sys.setswitchinterval(self._switch_s)

    def wait_for_requests(self, wait_s: float) -> list[Request]:
        """What came; waits as long for the first."""
        came: list[Request] = []
        try:
            came.append(self._asked.get(timeout=wait_s) if wait_s else self._asked.get_nowait())
            while True:
                came.append(self._asked.get_nowait())
        except queue.Empty:
            return came

    def ask(self, body: Any, arrival_ns: int) -> AskedRequest:
        """Give the loop what a client wants. Raises RefusedRequest."""
        if not isinstance(body, dict):
            raise RefusedRequest("the body is no JSON object")
        tokens = self._tokens(body)
        output = body.get("max_tokens") or body.get("max_completion_tokens") or _DEFAULT_TOKENS
        if not isinstance(output, int) or output < 1:
            raise RefusedRequest("max_tokens is no positive number")
        if len(tokens) + output > self._most_positions:
            raise RefusedRequest(
                f"{len(tokens)} + {output} tokens; there is room for {self._most_positions}"
            )
        with self._lock:
            self._number += 1
            request = AskedRequest(self._number, arrival_ns, len(tokens), output, tokens)
        self._asked.put(request)
        return request

    def now_ns(self) -> int:
        """The time in ns by the clock of the engine's loop."""
        return self._now_ns()

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        prompt = body.get("prompt")
        if "messages" in body:
            messages = body["messages"]
            if not isinstance(messages, list):
                raise RefusedRequest("messages is no list")
            prompt = " ".join(
                str(message.get("content", "")) for message in messages if isinstance(message, dict)
            )
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            tokens = [token % self._vocabulary for token in prompt]
        elif isinstance(prompt, str):
            with TOKENIZE:
                words = prompt.split()
                spend(self._tokenizer_us * len(words))
                tokens = [zlib.crc32(word.encode()) % self._vocabulary for word in words]
        else:
            raise RefusedRequest("give a prompt: text, or a list of token numbers")
        if not tokens:
            raise RefusedRequest("the prompt is empty")
        return tokens


# Of Linux, which Python does not name: the moment at which what is read came, beside it.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")


class _Received(io.RawIOBase):
    """What a connection sends, and in `received_ns` when the last of what was read came to this
    machine, in time.time_ns(), 0 where the kernel does not say: no thread of Python takes it while
    another collects garbage."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.received_ns = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        room = socket.CMSG_SPACE(_TIMESPEC.size)
        size, extra, _, _ = self._connection.recvmsg_into([buffer], room)
        for level, kind, data in extra:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                self.received_ns = 10**9 * seconds + nanoseconds
        return size


class _Listener(ThreadingHTTPServer):
    def server_bind(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        super().server_bind()


class _Handler(BaseHTTPRequestHandler):
    routes: Routes
    _received: _Received
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60.0

    def setup(self) -> None:
        super().setup()
        self._received = _Received(self.connection)
        self.rfile = io.BufferedReader(self._received)

    def do_GET(self) -> None:
        routes = self.routes
        if self.path == "/metrics":
            self._send(200, "text/plain; version=0.0.4", routes.metrics.page())
        elif self.path == "/health":
            self._send(200, "text/plain", "")
        elif self.path == "/v1/models":
            model = {"id": routes.model, "object": "model", "owned_by": "gputui"}
            self._send_json(200, {"object": "list", "data": [model]})
        else:
            self._refuse(404, "there are /v1/completions, /v1/chat/completions and /metrics")

    def do_POST(self) -> None:
        arrival_ns = self.routes.now_ns()
        if self._received.received_ns:
            arrival_ns -= max(0, time.time_ns() - self._received.received_ns)
        is_chat = self.path == "/v1/chat/completions"
        if not is_chat and self.path != "/v1/completions":
            self._refuse(404, "there are /v1/completions and /v1/chat/completions")
            return
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 <= length <= _MOST_BODY:
                raise ValueError
            body = json.loads(self.rfile.read(length))
            request = self.routes.ask(body, arrival_ns)
        except RefusedRequest as error:
            self._refuse(400, str(error))
            return
        except (ValueError, RecursionError):
            self.close_connection = True
            self._refuse(400, "the body is no JSON of up to 16 MiB")
            return
        if body.get("stream"):
            self._stream(request, is_chat)
        else:
            text = "".join(_word(token) for token in self._tokens(request))
            self._send_json(200, self._answer(request, is_chat, text, "length"))

    def _tokens(self, request: AskedRequest) -> Iterator[int]:
        """Each as it is written; one counts once what asked for it has sent it and comes back: in a
        loop that collects garbage that is up to a second later."""
        sent_ns: list[int] = []
        while True:
            try:
                token = request.answer.get(timeout=_LONGEST_WAIT_S)
            except queue.Empty:
                return
            if token is None:
                return
            yield token
            sent_ns.append(self.routes.now_ns())
            self.routes.metrics.count_sent(request, sent_ns)

    def _stream(self, request: AskedRequest, is_chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for token in self._tokens(request):
                part = self._answer(request, is_chat, _word(token), None, is_part=True)
                self.wfile.write(f"data: {json.dumps(part)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            return  # the client is gone; the loop writes the rest for nobody

    def _answer(
        self,
        request: AskedRequest,
        is_chat: bool,
        text: str,
        reason: str | None,
        *,
        is_part: bool = False,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
        if is_chat:
            message = {"role": "assistant", "content": text}
            choice["delta" if is_part else "message"] = message
        else:
            choice["text"] = text
        kind = "chat.completion" if is_chat else "text_completion"
        answer: dict[str, Any] = {
            "id": f"cmpl-{request.number}",
            "object": f"{kind}.chunk" if is_part and is_chat else kind,
            "created": int(time.time()),
            "model": self.routes.model,
            "choices": [choice],
        }
        if not is_part:
            answer["usage"] = {
                "prompt_tokens": request.prompt,
                "completion_tokens": request.output,
                "total_tokens": request.prompt + request.output,
            }
        return answer

    def _refuse(self, status: int, message: str) -> None:
        self._send_json(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def _send_json(self, status: int, document: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(document))

    def _send(self, status: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing: standard error is the workload's."""


def _word(token: int) -> str:
    return f" w{token}"
