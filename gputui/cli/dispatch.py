"""Words typed → a command or a mode, and what their errors come to; nothing else."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from gputui.base.errors import FAILED, GputuiError
from gputui.base.standard_streams import complete, release, say, tolerate
from gputui.cli import options
from gputui.cli.parsing import parse
from gputui.cli.values import UsageError

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


def _dispatch(words: list[str]) -> int:
    command = options.command(words[0]) if words else None
    if command is not None:
        module = import_module(f"gputui.cli.{command.name}")  # none pays for importing another
        if words[:2] == ["completion", "words"]:
            module.words(words[2:])  # of any kind, none of them meant for our parser
            return 0
        run_command: Callable[[argparse.Namespace], int] = module.run
        status = run_command(parse(command, words[1:]))
        sys.stdout.flush()  # what cannot be written is an error now, not at the exit
        return status
    typed: list[str] | None = None
    if "--" in words:
        at = words.index("--")
        words, typed = words[:at], words[at + 1 :]
        if not typed:
            raise UsageError("nothing to run after --; see gputui --help")
    from gputui.cli import main

    return main.run(words, typed)
