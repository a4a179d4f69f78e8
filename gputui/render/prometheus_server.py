"""A recording's newest figures, served to Prometheus over HTTP."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from gputui.base.errors import WRONG_USAGE, GputuiError
from gputui.base.sanitize import sanitize
from gputui.state import Session

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LOOPBACK = "127.0.0.1"


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
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise PrometheusError(
                "--prometheus needs the package prometheus-client: pip install 'gputui[prometheus]'"
            ) from None
        from gputui.render.prometheus import metrics

        self.lock = threading.Lock()
        self._metrics = metrics
        self._session = session
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        host, port = address
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise PrometheusError(
                f"--prometheus: cannot listen on {host} port {port}: {error.strerror or error}"
            ) from None

    def collect(self) -> list[Metric]:
        """The response to a scrape."""
        with self.lock:
            return list(self._metrics(self._session))

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
