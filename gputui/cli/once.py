"""Readings of the machine on stdout: one for `--once`, one per interval with `--watch`; and `gputui
stream`, the far end of `gputui --host`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from types import FrameType

from gputui.base import WRONG_USAGE, GputuiError
from gputui.base.standard_streams import columns, say
from gputui.cli.declaration import UsageError
from gputui.collect.live import Sampler, emissions, read_once
from gputui.model.events import AnyEvent, Header, HostUnavailable, MachineSample
from gputui.state import Session
from gputui.state.session import Host, Hosts

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class OnlyError(GputuiError):
    """`--only` names a GPU that does not exist. One line."""

    exit_status = WRONG_USAGE


class _Ended(BaseException):
    """A signal asked to stop; raised wherever the main thread is."""


def print_once(only: Sequence[int] | None, *, as_json: bool) -> None:
    """Print one reading of the GPUs in `only` (None: follow CUDA_VISIBLE_DEVICES).

    Raises OnlyError.
    """
    session = Session.from_events(read_once(only))
    _check_only(session)
    sys.stdout.write(_json(session, indent=2) if as_json else _text(session))
    sys.stdout.flush()


def watch(only: Sequence[int] | None, interval_s: float, *, as_json: bool) -> int:
    """Print a reading each interval until a signal; the exit status.

    As JSON each is a document on its own line; tables are separated by an empty line. A slow reader
    misses readings and never delays later ones. Raises OnlyError, and BrokenPipeError once the
    reader is gone.
    """
    sampler = Sampler(interval_s, only)
    session = Session()
    separator = ""
    try:
        _hear_signals()
        with closing(emissions(sampler)) as emitted:
            for events in emitted:
                session.apply(events)
                _check_only(session)
                if any(isinstance(event, MachineSample) for event in events):
                    text = _json(session) if as_json else separator + _text(session)
                    _write(text)
                    separator = "\n"
                elif reason := _end_of_sampling(events):
                    say(reason)
                    return 1
    except _Ended:
        pass
    return 0


def _hear_signals() -> None:
    """Signals end the program, except those that nohup or a shell's & made it ignore."""
    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]

    def end(_number: int, _frame: FrameType | None) -> None:
        for number in heard:
            signal.signal(number, signal.SIG_IGN)
        raise _Ended

    for number in heard:
        signal.signal(number, end)


def _write(text: str) -> None:
    """Bypass the stream's buffer: a signal must not leave data there that a full pipe holds up."""
    data = text.encode(sys.stdout.encoding, "replace")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def _check_only(session: Session) -> None:
    reason = session.header.gpu_unavailable_reason if session.header else None
    if reason and reason.startswith("--only"):
        raise OnlyError(reason)


def _end_of_sampling(events: Sequence[AnyEvent]) -> str | None:
    """Why no sample will follow; None if one will."""
    for event in events:
        if isinstance(event, HostUnavailable) and "sampler" in event.reasons:
            return event.reasons["sampler"]
        if isinstance(event, Header) and event.gpu_unavailable_reason:
            reason = event.gpu_unavailable_reason
            return reason if reason.startswith("sampling stopped") else None
    return None


def hosts_text(hosts: Hosts, *, as_json: bool) -> str:
    """The newest readings of several hosts."""
    if as_json:
        from gputui.report.machine_now import hosts_document

        return _document(hosts_document(hosts), indent=2)
    return "\n".join(_text_of(host) for host in hosts.values())


def _text_of(host: Host) -> str:
    if host.session.samples:
        return f"{host.name}\n{_text(host.session)}"
    return f"{host.name}\nn/a  {host.link.reason or 'no reading yet'}\n"


def _json(session: Session, indent: int = 0) -> str:
    from gputui.report.machine_now import machine_document

    return _document(machine_document(session), indent)


def _document(document: object, indent: int) -> str:
    import msgspec

    encoded = msgspec.json.encode(document)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode() + "\n"


def _text(session: Session) -> str:
    from gputui.render.text_tables import to_text
    from gputui.report.machine_now import machine_lines, machine_tables, reason_lines

    width = columns(sys.stdout)
    sections = ["\n".join([*machine_lines(session), ""])]
    sections += [f"\n{to_text(table, width)}" for table in machine_tables(session, width)]
    reasons = reason_lines(session, width)
    if reasons:
        sections.append("\n".join(["", *reasons, ""]))
    return "".join(sections)


# --- `gputui stream`.


def run_stream(options: argparse.Namespace) -> int:
    """Serve readings, or follow a run, on standard output for the near end; return the exit status.
    Raises UsageError."""
    if not re.fullmatch(r"[0-9a-f]{1,64}", options.token):
        raise UsageError(f"--token {options.token}: give hexadecimal digits")
    if options.file or options.run_id:
        return _run_of_pipe(options)
    from gputui.collect.hosts import far_end

    only = tuple(options.only) if options.only else None
    return far_end.serve(options.token, options.interval, only, zstandard=options.zstandard)


def _run_of_pipe(options: argparse.Namespace) -> int:
    try:
        return _followed(options)
    except GputuiError as error:  # the near end may not retry, nor take it for a cut
        from gputui.collect.hosts import hello_line

        os.write(1, hello_line(options.token, error=str(error)))
        return error.exit_status


def _followed(options: argparse.Namespace) -> int:
    from gputui.collect.hosts import far_end

    if options.file:
        path = far_end.recording_at(options.file)
    else:
        if not re.fullmatch(r"\d{1,10}-[0-9a-f]{1,16}", options.run_id):
            raise UsageError(f"--run-id {options.run_id}: give SECONDS-HEX")
        path = far_end.begin(options.run_id, options.name or "run", options.words)
    return far_end.follow(options.token, path, options.offset or 0, zstandard=options.zstandard)
