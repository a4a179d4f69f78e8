"""Sending gputui to a host that lacks it, into a private folder of its cache."""

from __future__ import annotations

import contextlib
import hashlib
import io
import platform
import re
import secrets
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from gputui.base.errors import GputuiError
from gputui.base.sanitize import clean_output
from gputui.collect.hosts import failures, far_loader
from gputui.collect.hosts.bundle import STARTER, bundle, misfit
from gputui.collect.hosts.hello import read_line
from gputui.collect.hosts.pipe import Pipe, SilentError
from gputui.collect.hosts.target import Target

FOLDER = "~/.cache/gputui/remote"
PATIENCE_S = 60.0
_LEAST_PYTHON = (3, 11)

T = TypeVar("T")


class ShipError(GputuiError):
    """gputui was not sent. One line."""


class _Facts(msgspec.Struct, frozen=True):
    python: tuple[int, int]
    machine: str
    system: str
    glibc: str = ""


class _Place(msgspec.Struct, frozen=True):
    folder: str
    executable: str
    has: bool


class _Done(msgspec.Struct, frozen=True):
    done: bool = False
    error: str = ""


class _EndedError(GputuiError):
    """The other end closed its output."""


def ship(target: Target) -> Target:
    """The target with a gputui of its own, sent unless it is there from an earlier time.

    Raises ShipError.
    """
    token = secrets.token_hex(8)
    source = Path(far_loader.__file__).read_text(encoding="utf-8")
    try:
        pipe = Pipe(target.argv(["python3", "-c", source, token]), PATIENCE_S)
    except OSError as error:
        raise ShipError(str(error)) from None
    with contextlib.closing(pipe):
        try:
            return _sent(target, token, pipe)
        except SilentError:
            raise ShipError(f"no answer within {PATIENCE_S:g} s") from None
        except (_EndedError, OSError):
            ended = failures.ended(target, *pipe.status(), was_up=False)
            raise ShipError(ended.line) from None


def _sent(target: Target, token: str, pipe: Pipe) -> Target:
    stream: BinaryIO = io.BufferedReader(pipe)
    facts = _answer(stream, token, _Facts)
    if facts.python < _LEAST_PYTHON:
        there, least = (".".join(map(str, one)) for one in (facts.python, _LEAST_PYTHON))
        raise ShipError(f"Python there is {there}, and it takes {least}")
    if wrong := misfit(facts.python, facts.machine, facts.system):
        raise ShipError(clean_output(wrong, 200))
    archive = bundle(libraries=_version(facts.glibc) >= _version(platform.libc_ver()[1]))
    pipe.send(f"{hashlib.sha256(archive).hexdigest()} {len(archive)}\n".encode())
    place = _answer(stream, token, _Place)
    if not place.has:
        pipe.send(archive)
        done = _answer(stream, token, _Done)
        if not done.done:
            raise ShipError(clean_output(done.error, 200) or "it was not unpacked")
    return msgspec.structs.replace(target, there=(place.executable, f"{place.folder}/{STARTER}"))


def _answer(stream: BinaryIO, token: str, kind: type[T]) -> T:
    found = read_line(stream, token, kind, PATIENCE_S)
    if found is None:
        raise _EndedError
    return found


def _version(text: str) -> tuple[int, ...]:
    """Of the C library; the lowest where there is none, as on musl."""
    return tuple(map(int, re.findall(r"\d{1,6}", text)))
