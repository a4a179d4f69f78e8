"""Words typed → one of the modes, and what their errors come to; nothing else."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from gputui.base.standard_streams import release, say, tolerate
from gputui.cli.parsing import UsageError

USAGE_ERROR = 2

_SUBCOMMANDS = {
    "workloads": "about",
    "doctor": "about",
    "summary": "files",
    "export": "export",
    "compare": "files",
}
"""Name, and the module of gputui.cli that has it: none pays for importing another."""

# By name: importing where they are defined would cost every start.
_ONE_LINE_USAGE = {"SettingsError", "CatalogueError", "AddressError", "OnlyError"}
_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
"""Of a stream, which has no file name: files are written under their names."""

_ONE_LINE = {"JournalError", "ExportError", "PrometheusError"}


def run(arguments: Sequence[str]) -> int:
    """Do what `arguments` say; the exit status."""
    tolerate()
    try:
        return _dispatch(list(arguments))
    except BrokenPipeError:
        # The reader of our output has seen enough.
        return 0
    except KeyboardInterrupt:
        return 130
    except UsageError as error:
        return _fail(error, USAGE_ERROR)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _CANNOT_WRITE and error.filename is None:
            say(f"cannot write to standard output: {(error.strerror or str(error)).lower()}")
            return 1
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if kinds & _ONE_LINE_USAGE:
            return _fail(error, USAGE_ERROR)
        if kinds & _ONE_LINE:
            return _fail(error, 1)
        raise
    finally:
        release()


def _fail(error: Exception, status: int) -> int:
    say(str(error))
    return status


def _dispatch(arguments: list[str]) -> int:
    command: list[str] | None = None
    if "--" in arguments:
        at = arguments.index("--")
        arguments, command = arguments[:at], arguments[at + 1 :]
        if not command:
            raise UsageError("nothing to run after --; see gputui --help")
    name = arguments[0] if arguments else ""
    if name in _SUBCOMMANDS and command is None:
        module = import_module(f"gputui.cli.{_SUBCOMMANDS[name]}")
        subcommand: Callable[[list[str]], int] = getattr(module, name)
        status = subcommand(arguments[1:])
        sys.stdout.flush()  # what cannot be written is an error now, not at the exit
        return status
    from gputui.cli.main import main_mode

    return main_mode(arguments, command)
