"""Parsing arguments: the parser, its one error, and values with units."""

from __future__ import annotations

import argparse
import re
import sys
from typing import NoReturn

from gputui.base.errors import WRONG_USAGE, GputuiError


class UsageError(GputuiError):
    """The arguments are wrong. One line."""

    exit_status = WRONG_USAGE


class Parser(argparse.ArgumentParser):
    """An argparse that answers an error with one line and status 2."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(f"{message}; see gputui --help")


def seconds(text: str, flag: str, *, may_be_none: bool = False) -> float:
    """The seconds of "500ms", "30s", "5m" or "1h"; of "0" too if it `may_be_none`.

    Raises UsageError naming `flag`.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text)
    if not match or not (may_be_none or float(match[1])) or float(match[1]) >= 1e9 / 3600:
        raise UsageError(f"{flag} {text}: give a time like 30s, 5m or 1h")
    return float(match[1]) * {"ms": 1e-3, "s": 1, "": 1, "m": 60, "h": 3600}[match[2]]


def size_bytes(text: str, flag: str) -> int:
    """The bytes of "500k", "100MB" or "2GiB", in either case, with factors of 1024. Raises
    UsageError naming `flag`.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", text, re.ASCII | re.IGNORECASE)
    size = float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ") if match else 0
    if not 1 <= size < 2**60:
        raise UsageError(f"{flag} {text}: give a size like 500k, 100M or 2G")
    return int(size)


def print_json(document: object) -> None:
    """A document for programs on stdout."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()
