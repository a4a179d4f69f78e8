"""Which job a rank belongs to, by its environment as it was at its start.

Read from `/proc/PID/environ` from outside: nothing in the program is touched. Variables: torchrun's
TORCHELASTIC_RUN_ID, WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT (PyTorch, "torchrun"),
Slurm's SLURM_JOB_ID and SLURM_NTASKS (srun(1)), Open MPI's OMPI_COMM_WORLD_SIZE.
"""

from __future__ import annotations

from collections.abc import Mapping

from gputui.base.sanitize import sanitize
from gputui.model.events import JobFacts

MOST_BYTES = 1 << 20
MOST_CHARACTERS = 128


def job_of_process(pid: int) -> JobFacts | None:
    """None where nothing says so, or it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read(MOST_BYTES)
    except OSError:
        return None
    pairs = (entry.partition("=") for entry in raw.decode("utf-8", "replace").split("\0"))
    return job_in({name: value for name, _, value in pairs})


def job_in(environment: Mapping[str, str]) -> JobFacts | None:
    """The job that an environment speaks of."""

    def text(name: str) -> str | None:
        return sanitize(environment.get(name, ""), MOST_CHARACTERS) or None

    def number(*names: str) -> int | None:
        for name in names:
            value = environment.get(name, "")
            if value.isascii() and value.isdigit() and len(value) < 10:
                return int(value)
        return None

    elastic = text("TORCHELASTIC_RUN_ID")
    if elastic == "none":  # torchrun's own word where no --rdzv-id was given
        elastic = None
    address, port = text("MASTER_ADDR"), text("MASTER_PORT")
    meeting = f"{address}:{port}" if address and port else None
    name = elastic or text("SLURM_JOB_ID") or text("PBS_JOBID") or meeting
    world = number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
    if name is None and world is None:
        return None
    return JobFacts(id=name, world_size=world, node_rank=number("GROUP_RANK", "SLURM_NODEID"))
