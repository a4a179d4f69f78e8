"""Words typed → one of the modes, and what their errors come to; nothing else."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from gputui.base.errors import FAILED, GputuiError
from gputui.base.standard_streams import complete, release, say, tolerate
from gputui.cli.parsing import UsageError

_SUBCOMMANDS = {
    "workloads": "about",
    "doctor": "about",
    "summary": "files",
    "export": "export",
    "compare": "files",
}
"""Name, and the module of gputui.cli that has it: none pays for importing another."""

_CANNOT_WRITE = {errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
"""Of a stream, which has no file name: files are written under their names."""


def run(arguments: Sequence[str]) -> int:
    """Do what `arguments` say; the exit status."""
    complete()
    tolerate()
    try:
        return _dispatch(list(arguments))
    except BrokenPipeError:
        # The reader of our output has seen enough.
        return 0
    except KeyboardInterrupt:
        return 130
    except GputuiError as error:
        say(str(error))
        return error.exit_status
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        say(f"cannot write to standard output: {(error.strerror or str(error)).lower()}")
        return FAILED
    finally:
        release()


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
