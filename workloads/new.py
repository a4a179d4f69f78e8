"""Writes a package that adds a workload, with the template as its module."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import CannotRun, WrongUsage

_TEMPLATE = Path(__file__).with_name("template.py")

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"

[project.entry-points."gputui.workloads"]
{name} = "{name}:{name_upper}"
"""


def write_package(name: str, folder: Path) -> Path:
    """A folder `name` in `folder` with a project and its module. Raises WrongUsage, CannotRun."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        raise WrongUsage(f"{name[:64]!r}: use lower-case letters, digits and underscores")
    text = _TEMPLATE.read_text(encoding="utf-8")
    _, _, text = text.partition("\nRules:")
    text = f'"""The workload `{name}`.\n\nRules:{text}'
    text = text.replace("saxpy", name).replace("SAXPY", name.upper())
    project = folder / name
    try:
        project.mkdir()
        (project / f"{name}.py").write_text(text, encoding="utf-8")
        toml = _PROJECT.format(name=name, name_upper=name.upper())
        (project / "pyproject.toml").write_text(toml, encoding="utf-8")
    except OSError as error:
        raise CannotRun(f"{project}: {error.strerror}") from None
    return project
