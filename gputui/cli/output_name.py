"""`-o 'runs/{job}/{host}.gputui'`: a file of its own for each host or rank of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from gputui.cli.values import UsageError

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID")


def expanded(
    name: str, environment: Mapping[str, str] | None = None, host: str | None = None
) -> str:
    """A file name with `{host}` (this one, or `host`), `{rank}` and `{job}` filled in from the
    environment.

    Raises UsageError where one of them is not known.
    """
    known = os.environ if environment is None else environment

    def value(found: re.Match[str]) -> str:
        word = found[1]
        if word == "host":
            return plain(os.uname().nodename if host is None else host)
        names = RANKS if word == "rank" else JOBS
        text = next((known[one] for one in names if known.get(one)), None)
        if text is None:
            raise UsageError(f"-o {name}: {{{word}}} is not known: none of {', '.join(names)} set")
        return plain(text)

    return re.sub(r"\{(host|rank|job)\}", value, name)


def plain(text: str) -> str:
    """As a part of a file's name, whatever the environment holds."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:100] or "unknown"
