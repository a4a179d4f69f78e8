"""Reads the metrics of serving engines in a thread of its own: a server that hangs delays no sample
of the machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from gputui.base import GputuiError
from gputui.base.sanitize import sanitize
from gputui.model.events import AnyEvent, ServerSample

if TYPE_CHECKING:
    import socket

    from gputui.collect.serving_pages import Page

INSTALL = "reading metrics needs prometheus_client: pip install 'gputui[serving]'"

TIMEOUT_S = 2.0
"""For all of a page: an engine whose loop is busy answers late, one that hangs not at all."""

MAX_PAGE = 8 << 20
"""Bytes of a page; vLLM's has some hundred kilobytes."""

SEARCH_S = 1.0
"""The time from one search for engines to the next while none was found; afterwards ten times as
long."""

_STOP_S = TIMEOUT_S + 1.0


class PageError(GputuiError):
    """Why a page could not be read, in one line."""


class ClosedPageError(PageError):
    """A server answers, but shows no metrics of an engine."""


_OFF = "its metrics are off (SGLang has --enable-metrics, llama.cpp --metrics)"
_KEY = "it asks for a key, which gputui does not have"
_CLOSED = {401: _KEY, 403: _KEY, 404: _OFF, 501: _OFF}
"""What the status of an engine without a page means: llama.cpp answers 501, SGLang 404."""


def address_of(url: str) -> SplitResult:
    """The parts of an address of a page of metrics, "/metrics" where it has no path. Raises
    ValueError."""
    typed = url if "://" in url else f"http://{url}"
    address = urlsplit(typed)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ValueError("give an address like http://127.0.0.1:8000/metrics")
    if address.username or address.password:
        raise ValueError("leave the password out: it would be recorded")
    _ = address.port  # raises where it is none
    if any(ord(letter) <= 32 or ord(letter) == 127 for letter in typed):
        raise ValueError("an address has no spaces")
    return address._replace(path="/metrics") if address.path in ("", "/") else address


def fetch_page(url: str, timeout_s: float = TIMEOUT_S) -> str:
    """The text of a page by one GET, with no proxy and no redirect. Raises PageError."""
    # It brings ssl and email: every start would pay for what few read.
    import http.client

    address = address_of(url)
    deadline = time.monotonic() + timeout_s
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.hostname or "", address.port, timeout=timeout_s)
    path = f"{address.path}?{address.query}" if address.query else address.path
    late = PageError(f"it did not answer within {timeout_s:g} s")
    # A socket's own timeout is for each byte: a page in drops would take for ever.
    watch = threading.Timer(timeout_s, lambda: _hang_up(connected))
    watch.daemon = True
    connected: list[socket.socket] = []
    try:
        connection.connect()
        connected.append(connection.sock)  # the answer takes it over
        watch.start()
        connection.request("GET", path, headers={"Accept": "text/plain", "User-Agent": "gputui"})
        answer = connection.getresponse()
        if answer.status != 200:
            said = f"it answered {answer.status} {sanitize(answer.reason, 60)}".rstrip()
            if (why := _CLOSED.get(answer.status)) is not None:
                raise ClosedPageError(f"{said}: {why}")
            raise PageError(said)
        chunks: list[bytes] = []
        size = 0
        while chunk := answer.read1(1 << 16):
            size += len(chunk)
            if size > MAX_PAGE:
                raise PageError(f"its page is larger than {MAX_PAGE >> 20} MiB")
            chunks.append(chunk)
        if time.monotonic() > deadline:
            raise late
        return b"".join(chunks).decode("utf-8", "replace")
    except TimeoutError:
        raise late from None
    except (OSError, http.client.HTTPException, AttributeError) as error:
        if time.monotonic() > deadline:
            raise late from None
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise PageError(sanitize(reason, 120)) from None
    finally:
        watch.cancel()
        connection.close()


def _hang_up(sockets: list[socket.socket]) -> None:
    import socket

    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class _Server:
    """One page of metrics, and what it said last."""

    def __init__(self, url: str, pid: int | None, *, is_new: bool = False) -> None:
        """`is_new`: it began to listen since the last search, so that all it counted is new."""
        self.url, self.pid = url, pid
        self._is_new = is_new
        self._before: Page | None = None
        self._read_ns = 0
        self._reason: str | None = None
        self.engine = ""
        self.is_closed = False
        """Whether it answers without metrics of an engine."""

    def read(self) -> ServerSample | None:
        """The next reading; None if there is nothing new to report, because reading fails as
        before."""
        # Where no server is found nobody pays for the vocabulary of all engines.
        from gputui.collect.serving_pages import Page, read_page, sample_of

        try:
            asked_ns = time.monotonic_ns()
            page = read_page(fetch_page(self.url))
            if page is None:
                raise ClosedPageError("none of its metrics is of an engine that gputui knows")
            if self._before is None and self._is_new:
                self._before = Page(page.engine, page.model, {}, {}, {})
                self._read_ns = asked_ns - round(1e9 * SEARCH_S)
        except ImportError:
            return self._failed(INSTALL)
        except (PageError, ValueError) as error:
            self.is_closed = isinstance(error, ClosedPageError)
            return self._failed(str(error))
        sample = sample_of(
            page,
            self._before,
            (asked_ns - self._read_ns) / 1e9,
            time_ns=time.time_ns(),
            url=self.url,
            pid=self.pid,
        )
        self._before, self._read_ns, self._reason = page, asked_ns, None
        self.engine = page.engine
        return sample

    def _failed(self, reason: str) -> ServerSample | None:
        if reason == self._reason:
            return None
        self._reason = reason
        return ServerSample(
            time_ns=time.time_ns(),
            url=self.url,
            engine=self.engine,
            pid=self.pid,
            unavailable_reason=reason,
        )


_TOLD_AFTER = 3
"""Requests in a row without a page of metrics after which that is reported: before, the engine may
still be starting."""


class ServingOptions(NamedTuple):
    """Which pages are read: those at `urls` and, with `search`, those of engines that run below or
    above the process that gputui looks at."""

    urls: tuple[str, ...] = ()
    search: bool = True


class ServerReader:
    """Emits a ServerSample of each page every `interval_s` seconds until it is stopped."""

    def __init__(
        self,
        options: ServingOptions,
        interval_s: Callable[[], float],
        roots: Callable[[], Sequence[int]],
        emit: Callable[[Sequence[AnyEvent]], None],
    ) -> None:
        """`roots` are the processes that a search begins at; none, and nothing is searched."""
        self._servers = {url: _Server(url, None) for url in options.urls}
        self._search = options.search and not options.urls
        self._interval_s, self._roots, self._emit = interval_s, roots, emit
        self._stopping = threading.Event()
        self._searched_s = 0.0
        self._silent: dict[str, tuple[int, float]] = {}
        """Addresses without a page: how often they were asked, and when they are again. Each time
        twice as late: an engine that loads its model answers soon, what is no page never will."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; nothing where there is nothing to read or to search for."""
        if self._servers or self._search:
            self._thread = threading.Thread(target=self._run, name="serving", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop it, and wait for it as long as a page may take."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            due_s = time.monotonic() + max(0.1, self._interval_s())
            if self._search:
                self.look_for_engines(time.monotonic())
            for server in [*self._servers.values()]:
                if self._stopping.is_set():
                    return
                sample = server.read()
                if sample is not None:
                    self._emit([sample])
            self._stopping.wait(max(0.05, due_s - time.monotonic()))

    def look_for_engines(self, now_s: float) -> None:
        """Ask the ports that are due, and keep those with a page; nothing too soon after the last
        search."""
        pause_s = 10 * SEARCH_S if self._servers else SEARCH_S
        if self._searched_s and now_s - self._searched_s < pause_s:
            return
        self._searched_s = now_s
        roots = self._roots()
        ports = {(server.pid, urlsplit(url).port) for url, server in self._servers.items()}
        for listening in engines_listening(roots) if roots else ():
            times, due_s = self._silent.get(listening.url, (0, 0.0))
            if (listening.pid, listening.port) in ports or now_s < due_s:
                continue
            is_new = os.getpid() in roots and _is_younger(listening.pid)
            server = _Server(listening.url, listening.pid, is_new=is_new)
            # Engines listen on other ports too, for their own processes: only a page counts.
            sample = server.read()
            if sample is not None and (
                not sample.unavailable_reason or sample.unavailable_reason == INSTALL
            ):
                self._servers[listening.url] = server
                ports.add((listening.pid, listening.port))
                self._emit([sample])
                continue
            self._silent[listening.url] = times + 1, now_s + SEARCH_S * 2.0 ** min(times, 16)
            if server.is_closed and times + 1 == _TOLD_AFTER and not self._servers:
                self._emit([] if sample is None else [sample])


# --- Where a known engine listens, found through the tree of processes: the process that answers
# requests is often not the one on the GPU, but its parent or child.
#
# From sockets to processes as `ss` finds it: /proc/PID/net/tcp has the sockets that listen, with
# their inodes, and /proc/PID/fd who holds them (proc(5)).

# Command lines of engines, and of the workload `serve`: nobody else's ports are asked anything. A
# folder of such a name is no engine: environments are called so.
_ENGINE = re.compile(
    r"(?:^|[/\s\0])(?:(?:vllm|sglang|trtllm|tensorrt_llm|text-generation-(?:router|launcher)"
    r"|llama-server|llama_cpp|dynamo|tritonserver)(?:[\s.:_-][^/\0]*)?(?=\0|$)"
    r"|llama\0server?\0|(?:vllm/entrypoints|sglang/launch_server)\b)|workloads\0serve\0",
    re.IGNORECASE,
)

# Processes of engines that compute or schedule, by the titles that they give themselves. What
# listens there are libraries: Gloo keeps each connection of a stranger open for ever, and vLLM's
# worker on a CPU has a dozen such ports.
_WORKER = re.compile(r"(?:vllm|sglang)::(?!apiserver|tokenizer_worker)", re.IGNORECASE)

_LISTENS = "0A"
# Parents to follow from the process that is looked at: an engine's API server is one or two up.
_DEEPEST = 4

MOST_PROCESSES = 500
MOST_PORTS = 8


class Listening(NamedTuple):
    """An engine's process, and a port at which it listens on this machine."""

    pid: int
    host: str
    port: int

    @property
    def url(self) -> str:
        """The engine's page of metrics, at the path that all known engines use."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"


def engines_listening(roots: Iterable[int]) -> list[Listening]:
    """The ports of the engines among these processes, their parents and all below, lowest first.

    Only what this user may look into, and only in this network namespace: a port of another one is
    not reachable through this machine's loopback.
    """
    network = _namespace("self")
    ports: dict[tuple[str, int], Listening] = {}
    for pid in _tree(roots):
        if may_have_page(_command(pid)) and _namespace(pid) == network:
            for host, port in listening_sockets(pid):
                ports.setdefault((host, port), Listening(pid, host, port))
    return sorted(ports.values(), key=lambda each: (each.port, ":" in each.host))[:MOST_PORTS]


def may_have_page(command: str) -> bool:
    """Whether a command line, as /proc has it, is of what answers an engine's requests."""
    return _ENGINE.search(command) is not None and _WORKER.match(command) is None


def _tree(roots: Iterable[int]) -> list[int]:
    import psutil

    pids: dict[int, None] = {}
    for root in roots:
        try:
            process = psutil.Process(root)
            above = [parent for parent in process.parents()[:_DEEPEST] if _is_engine(parent.pid)]
            top = above[-1] if above else process
            for each in (top, *top.children(recursive=True)):
                pids[each.pid] = None
        except (psutil.Error, OSError):
            continue
        if len(pids) > MOST_PROCESSES:
            break
    return [*pids][:MOST_PROCESSES]


def _is_younger(pid: int) -> bool:
    """Whether it was started after gputui."""
    import psutil

    try:
        return bool(psutil.Process(pid).create_time() > psutil.Process().create_time())
    except psutil.Error:
        return False


def _is_engine(pid: int) -> bool:
    return _ENGINE.search(_command(pid)) is not None


def _command(pid: int) -> str:
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            return file.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""


def _namespace(pid: int | str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _sockets(pid: int) -> set[str]:
    """The inodes of its sockets."""
    inodes = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    target = os.readlink(entry.path)
                except OSError:
                    continue
                if target.startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
    except OSError:
        return set()
    return inodes


def listening_sockets(pid: int) -> Iterator[tuple[str, int]]:
    """The addresses through which a process's sockets are reached, and their ports."""
    own = _sockets(pid)
    for table, width in (("tcp", 8), ("tcp6", 32)) if own else ():
        try:
            with Path(f"/proc/{pid}/net/{table}").open() as file:
                lines = file.read(4_000_000).splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) < 10 or words[3] != _LISTENS or words[9] not in own:
                continue
            address, _, port = words[1].partition(":")
            if len(address) != width or not re.fullmatch(r"[0-9A-F]+:[0-9A-F]{4}", words[1]):
                continue
            for host in _reachable(bytes.fromhex(address)):
                yield host, int(port, 16)


def _reachable(address: bytes) -> tuple[str, ...]:
    """Where it is reached on this machine. Addresses are written as 32-bit words in the machine's
    order, all of which are little-endian here."""
    import ipaddress

    words = (address[start : start + 4][::-1] for start in range(0, len(address), 4))
    host = ipaddress.ip_address(b"".join(words))
    if not host.is_unspecified:
        mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
        return (str(mapped or host),)
    # "::" accepts IPv4 too, unless IPV6_V6ONLY is set, as asyncio does.
    return ("127.0.0.1",) if len(address) == 4 else ("127.0.0.1", "::1")
