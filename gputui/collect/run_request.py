"""What a person asks to run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gputui.collect.catalogue import MODULE
from gputui.model.units import parameter


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run: a workload by name with its parameters, or a command. With `pid`, a process that
    runs already.
    """

    kind: Literal["workload", "command"]
    name: str
    command: tuple[str, ...]
    parameters: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    step_range: str | None = None
    pid: int | None = None

    @classmethod
    def of_workload(
        cls,
        name: str,
        parameters: Mapping[str, str | int | float | bool],
        step_range: str | None,
    ) -> RunRequest:
        """A workload of the catalogue, with parsed parameters."""
        words = [
            word for key, value in parameters.items() for word in (f"--{key}", parameter(value))
        ]
        command = (sys.executable, "-P", "-m", MODULE, name, *words)
        return cls("workload", name, command, dict(parameters), step_range)

    @classmethod
    def of_command(cls, command: Sequence[str]) -> RunRequest:
        return cls("command", os.path.basename(command[0]) or command[0], tuple(command))
