"""The declarations of the options, and what is made from them: help, completion, manual page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gputui.base import manual_pages
from gputui.cli.declaration import Command
from gputui.cli.dispatch import parser_of
from gputui.cli.help import FILES, candidates, listing, text_of
from gputui.cli.options import COMMANDS, MAIN, MODES
from tests.reference import manual

ROOT = Path(__file__).parents[2]
EVERY = [MAIN, *COMMANDS]


def offered(*words: str) -> set[str]:
    return {value for value, _ in candidates(words[:-1], words[-1]) if value.startswith(words[-1])}


@pytest.mark.parametrize("command", EVERY, ids=lambda command: command.name or "main")
def test_help_and_manual_explain_every_option(command: Command) -> None:
    text, page = parser_of(command).format_help(), manual()
    for option in command.options:
        assert option.flag in text
        assert option.flag.replace("-", "\\-") in page
    assert len({flag for option in command.options for flag in option.flags}) == len(
        [flag for option in command.options for flag in option.flags]
    )


def test_what_an_option_needs_is_there() -> None:
    names = {option.name for option in MAIN.options}
    modes = {mode.name for mode in MODES}
    for option in MAIN.options:
        assert set(option.modes) <= modes
        assert option.needs in names | {""}
        assert option.default is None or option.read(option.default, "") is not None


def test_every_command_has_its_function() -> None:
    for command in COMMANDS:
        module = import_module(f"gputui.cli.{command.module or command.name}")
        assert callable(getattr(module, f"run_{command.name}"))


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff checks the manual page")
def test_the_manual_page_is_sound_roff() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"],
        input=manual(), capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    assert done.stderr == ""


def test_help_lists_and_prints_pages_and_commands() -> None:
    assert {"recipes/option", "usage"} <= set(manual_pages())
    # The title of SKILL was taken for "---", the line above what agents read of it.
    assert all(re.search(r"\w", page.title) for page in manual_pages().values())
    for name in (*manual_pages(), *(command.name for command in COMMANDS)):
        assert f"  {name} " in listing()
        assert text_of(name)


def test_help_is_paged_on_a_terminal_and_printed_without_a_pager(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged; cat > /dev/null\n")
    pager.chmod(0o700)
    for program, shown in ((str(pager), b"paged"), ("/no/such/pager", b"Add an option")):
        main, side = os.openpty()
        subprocess.run(
            [sys.executable, "-m", "gputui", "help", "recipes/option"],
            stdin=side, stdout=side, env=os.environ | {"PAGER": program}, check=True,
        )  # fmt: skip
        os.close(side)
        assert shown in os.read(main, 65536)
        os.close(main)


def test_words_are_completed_where_they_stand() -> None:
    assert offered("") == {command.name for command in COMMANDS}
    assert offered("--rec") == {"--record"}
    assert offered("--record", "--rec") == set()
    assert {"table", "json"} <= offered("summary", "x", "--format", "")
    assert offered("--graph-trace=n") == {"--graph-trace=node"}
    assert "cuda_gpu_kern_sum" in offered("summary", "--table", "cuda_gpu")
    assert offered("--workload", "inf") == {"inference"}
    assert "size=gpt2-tiny" in offered("--workload", "inference", "-p", "size=")
    assert offered("completion", "z") == {"zsh"}
    assert "gputui-light" in offered("--theme", "gp")
    assert "recipes/option" in offered("help", "rec")
    assert (FILES, "") in candidates(["--replay"], "")
    assert list(candidates(["--record", "--"], "--re")) == [(FILES, "")]


def test_recordings_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "gputui" / "sessions"
    folder.mkdir(parents=True)
    for name in ("a.gputui", "b.gputui.gz", "b.gputui-trace"):
        (folder / name).touch()
    assert [value for value, _ in candidates(["summary"], "")] == [
        str(folder / "b.gputui.gz"), str(folder / "a.gputui"), FILES
    ]  # fmt: skip


def completed(shell: str, line: str, folder: Path) -> list[str]:
    """What a shell completes `line` to, asked as that shell asks."""
    program = folder / "gputui"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m gputui "$@"\n')
    program.chmod(0o700)
    made = subprocess.run(
        [program, "completion", shell], capture_output=True, text=True, check=True
    ).stdout
    if shell == "bash":
        ask = (
            f"COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; compopt() {{ :; }}\n_gputui\n"
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
    elif shell == "fish":
        ask = f"complete -C {line!r} | cut -f1"
    else:
        ask = (
            "_describe() { print -l ${(P)2} | sed 's/:.*//' }; _files() { print -l *(N) }\n"
            f"words=({line} ''); CURRENT=${{#words}}\n_gputui"
        )
    prologue = "compdef() { : }\n" if shell == "zsh" else ""
    done = subprocess.run(
        [shell, "-c", f"{prologue}{made}\n{ask}"], capture_output=True, text=True, check=True,
        cwd=folder, env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    assert "summary" in completed(shell, "gputui ", tmp_path)
    assert "json" in completed(shell, "gputui summary --format ", tmp_path)
    (tmp_path / "mine.gputui").touch()
    assert "mine.gputui" in completed(shell, "gputui --replay ", tmp_path)


def test_bash_completes_after_an_equals_sign(tmp_path: Path) -> None:
    assert completed("bash", "gputui --graph-trace=", tmp_path) == ["node", "graph"]
    assert "gpt2-tiny" in completed("bash", "gputui --workload inference -p size=g", tmp_path)
