"""A recording's newest figures, served to Prometheus over HTTP."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gputui.base import WRONG_USAGE, GputuiError
from gputui.base.sanitize import sanitize
from gputui.render.prometheus import CONTENT_TYPE, prometheus_text
from gputui.state import Session

LOOPBACK = "127.0.0.1"

CONNECTIONS = 8
"""Connections at a time; Prometheus needs one."""

SILENCE_S = 5.0
"""A connection that sends or takes nothing for so long is closed."""

REQUEST_S = 10.0
"""How long a request and its answer may take together: a client that sends a byte now and then
keeps a connection no longer. Prometheus itself gives up after 10 s (its scrape_timeout)."""

_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class PrometheusError(GputuiError):
    """The figures cannot be served. One line for people."""


class AddressError(GputuiError):
    """An invalid address. One line for people."""

    exit_status = WRONG_USAGE


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "[HOST:]PORT"; loopback without a host. Raises AddressError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise AddressError(f"--prometheus {sanitize(text, 80)}: give [HOST:]PORT, as 9400")
    if colon and not host:
        raise AddressError(f"--prometheus {sanitize(text, 80)}: no host before the colon")
    return host or LOOPBACK, int(port)


class Exporter:
    """Serves `session` on `address`. Whoever folds events into it holds `lock` meanwhile.

    Raises PrometheusError if that fails. Close it.
    """

    def __init__(self, session: Session, address: tuple[str, int]) -> None:
        self.lock = threading.Lock()
        self._session = session
        host, port = address
        try:
            self._server = _Server(address, self._text)
        except OSError as error:
            raise PrometheusError(
                f"--prometheus: cannot listen on {host} port {port}: {error.strerror or error}"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="prometheus", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving, and wait for the thread that served."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _text(self) -> bytes:
        with self.lock:
            return prometheus_text(self._session).encode()


class _Server(ThreadingHTTPServer):
    """A thread a connection, and at most `CONNECTIONS` of them."""

    daemon_threads = True
    request_queue_size = 64  # with 5, socketserver's, a burst of clients waits for a second

    def __init__(self, address: tuple[str, int], text: Callable[[], bytes]) -> None:
        host, port = address
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, place = addresses[0][0], addresses[0][4]
        self.text = text
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        # A request as a whole has a time: eight clients that sent a byte every two seconds kept
        # everybody out.
        self._began: dict[socket.socket, float] = {}
        super().__init__((str(place[0]), port), _Handler)
        self._names = None if not _is_loopback(str(place[0])) else {host.casefold(), "localhost"}

    def answers_to(self, header: str | None) -> bool:
        """Whether a request's Host header fits.

        A page whose name its owner points at 127.0.0.1 (DNS rebinding) could read the figures
        through a browser on this machine: its requests bear that name. So on loopback the header
        must be an IP address, localhost or the HOST that was given. Elsewhere any name may lead
        here, and whoever reaches the port may read it anyway.
        """
        if self._names is None or header is None:
            return True
        name = re.sub(r":[0-9]*$", "", header.strip()).casefold()
        return name in self._names or _address_of(name.strip("[]")) is not None

    def server_bind(self) -> None:
        """Without asking for the host's name, which may take seconds and is not used."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Turns away whoever comes while all threads are taken."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.sendall(_BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers in a thread of its own, which `service_actions` ends after REQUEST_S."""
        self._began[request] = time.monotonic()
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._began[request]
            self._free.release()

    def service_actions(self) -> None:
        """Called by serve_forever twice a second."""
        for request, began in list(self._began.items()):
            if time.monotonic() - began > REQUEST_S:
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that leaves early is no news for the terminal."""


def _address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_loopback(text: str) -> bool:
    address = _address_of(text.partition("%")[0])
    return address is not None and address.is_loopback


class _Handler(BaseHTTPRequestHandler):
    timeout = SILENCE_S

    def do_GET(self) -> None:
        """Answer with the figures at /metrics, and with 404 anywhere else."""
        assert isinstance(self.server, _Server)
        if not self.server.answers_to(self.headers.get("Host")):
            self.send_error(421, explain="The Host header is no name of this machine's loopback.")
            return
        if self.path.partition("?")[0] not in ("/metrics", "/"):
            self.send_error(404)
            return
        text = self.server.text()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing: the terminal is the child's."""
