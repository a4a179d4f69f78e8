"""What there is to type: `gputui help`, the pages of gputui/docs and the help of commands; `gputui
workloads`; and `gputui completion`, for shells.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from gputui.base import GputuiError, did_you_mean, manual_pages
from gputui.base.sanitize import sanitize
from gputui.base.standard_streams import say
from gputui.cli import options as declared
from gputui.cli.declaration import Completes, Option, UsageError
from gputui.cli.dispatch import parser_of, print_json
from gputui.cli.options import COMMANDS, MAIN, command

_PAGER = "less -FR"


def run_help(options: argparse.Namespace) -> int:
    """Print a topic, or the list of topics; return the exit status. Raises UsageError."""
    if options.topic:
        _show(text_of(options.topic))
    else:
        sys.stdout.write(listing())
    return 0


def listing() -> str:
    """Every topic, and what it is about."""
    topics = {name: page.title for name, page in manual_pages().items()}
    commands = {command.name: command.help for command in declared.COMMANDS}
    width = max(map(len, (*topics, *commands)))

    def lines(entries: dict[str, str]) -> str:
        return "".join(f"  {name:<{width}}  {words}\n" for name, words in entries.items())

    return (
        f"gputui help TOPIC prints one of these\n\npages:\n{lines(topics)}\n"
        f"commands:\n{lines(commands)}"
    )


def text_of(topic: str) -> str:
    """A page, or the help of a command. Raises UsageError where there is no such topic."""
    by_name = manual_pages()
    for name in (topic, f"recipes/{topic}"):
        if name in by_name:
            return by_name[name].read()
    command = declared.command(topic)
    if command is not None:
        return parser_of(command).format_help()
    names = (*by_name, *(command.name for command in declared.COMMANDS))
    raise UsageError(
        f"there is no topic {topic!r}{did_you_mean(topic, names)}; known: {', '.join(names)}"
    )


def _show(text: str) -> None:
    """Through a pager on a terminal, where there is one."""
    if sys.stdout.isatty():
        words = shlex.split(os.environ.get("PAGER") or _PAGER)
        try:
            subprocess.run(words, input=text, encoding="utf-8", check=False)
        except OSError:
            pass
        else:
            return
    sys.stdout.write(text)


def run_workloads(options: argparse.Namespace) -> int:
    """List the workloads, describe one, or write a new one; return the exit status. Raises
    CatalogueError."""
    import msgspec

    from gputui.collect.catalogue import load_catalogue, new_workload, workload_text

    if options.new:
        return new_workload(options.new)
    catalogue = load_catalogue()
    if options.name:
        workload = catalogue.find(options.name)
        if options.json:
            print_json({"schema": catalogue.schema, **msgspec.to_builtins(workload)})
        else:
            print(workload_text(workload), end="")
        return 0
    if options.json:
        print_json(catalogue)
        return 0
    width = max((len(workload.name) for workload in catalogue.workloads), default=0)
    for workload in catalogue.workloads:
        print(f"{workload.name:<{width}}  {workload.summary}")
    for broken in catalogue.broken:
        say(f"{broken.name} cannot be run: {broken.error}")
    return 0


FILES, FOLDERS = ":files", ":folders"
"""Lines that ask the shell for names of its own."""

_BASH = """\
# bash completion of gputui
_gputui() {
    local line word=() before=${COMP_LINE:0:COMP_POINT} IFS=$' \\t\\n'
    read -ra word <<< "$before"
    [[ $before == *[[:space:]] ]] && word+=("")
    local current=${word[-1]} IFS=$'\\n'
    # bash replaces only what follows the last = or :
    local kept=${current%"${current##*[=:]}"}
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :files) compopt -o filenames; COMPREPLY+=($(compgen -f -- "${current#"$kept"}")) ;;
            :folders) compopt -o filenames; COMPREPLY+=($(compgen -d -- "${current#"$kept"}")) ;;
            *=$'\\t'*) compopt -o nospace; line=${line%%$'\\t'*}; COMPREPLY+=("${line#"$kept"}") ;;
            *) line=${line%%$'\\t'*}; COMPREPLY+=("${line#"$kept"}") ;;
        esac
    done < <("${word[0]}" completion words "${word[@]:1}" 2> /dev/null)
}
complete -F _gputui gputui
"""

_ZSH = """\
#compdef gputui
# zsh completion of gputui
_gputui() {
    local line
    local -a values
    for line in "${(@f)$("${words[1]}" completion words "${(@)words[2,CURRENT]}" 2> /dev/null)}"; do
        case $line in
            :files) _files ;;
            :folders) _files -/ ;;
            ?*) values+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}") ;;
        esac
    done
    if (( $#values )); then _describe gputui values; fi
}
if [[ $funcstack[1] == _gputui ]]; then _gputui "$@"; else compdef _gputui gputui; fi
"""

_FISH = """\
# fish completion of gputui
function __gputui_words
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    for line in ($before[1] completion words $before[2..] "$current" 2> /dev/null)
        switch $line
            case :files
                __fish_complete_path "$current"
            case :folders
                __fish_complete_directories "$current"
            case '*'
                echo $line
        end
    end
end
complete -c gputui -f -a '(__gputui_words)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def run_completion(options: argparse.Namespace) -> int:
    """Print the script for the shell that `options` name; return the exit status."""
    sys.stdout.write(_SCRIPTS[options.shell])
    return 0


def words(typed: Sequence[str]) -> None:
    """Print what may stand in the place of the last word typed: a line each, its meaning after a
    tab."""
    before, current = list(typed[:-1]), typed[-1] if typed else ""
    try:
        offered = list(candidates(before, current))
    except GputuiError:
        return  # what a workload or a file refuses is no help while typing
    for value, meaning in offered:
        if value.startswith(current) or value in (FILES, FOLDERS):
            print(f"{sanitize(value)}\t{sanitize(meaning)}" if value[0] != ":" else value)


def candidates(before: Sequence[str], current: str) -> Iterator[tuple[str, str]]:
    """The words that may follow the words `before`, and what each means."""
    chosen = (command(before[0]) if before else None) or MAIN
    if chosen is MAIN and "--" in before:
        yield FILES, ""
        return
    by_flag = {flag: option for option in chosen.options for flag in option.flags}
    asked = by_flag.get(before[-1]) if before else None
    flag, equals, _ = current.partition("=")
    if asked is not None and asked.metavar:
        yield from _values(asked, before)
    elif equals and flag in by_flag:
        values = _values(by_flag[flag], before)
        yield from ((v if v[0] == ":" else f"{flag}={v}", meaning) for v, meaning in values)
    elif current.startswith("-"):
        yield from (
            (option.flag, option.help)
            for option in chosen.options
            if option.many or not set(option.flags) & set(before)
        )
    elif chosen is MAIN:
        yield from ((one_command.name, one_command.help) for one_command in COMMANDS if not before)
    elif chosen.name == "help":
        yield from (
            (name, "")
            for name in (*manual_pages(), *(one_command.name for one_command in COMMANDS))
        )
    elif chosen.arguments:
        argument = chosen.arguments[-1]
        yield from ((value, "") for value in argument.choices)
        yield from _named(argument.completes, before)


def _values(option: Option, before: Sequence[str]) -> Iterator[tuple[str, str]]:
    if option.choices:
        yield from ((value, "") for value in option.choices())
    yield from _named(option.completes, before)


def _named(kind: Completes, before: Sequence[str]) -> Iterator[tuple[str, str]]:
    if kind == "workload":
        yield from _workloads()
    elif kind == "parameter":
        yield from _parameters(before)
    elif kind == "theme":
        from gputui.tui.themes import NAMES

        yield from ((name, "") for name in NAMES)
    elif kind == "table":
        from gputui.render.traces import EVENT_TABLES
        from gputui.report.tables import run_tables

        yield from ((name, "") for name in (*run_tables(), *EVENT_TABLES))
    elif kind:
        if kind == "recording":
            yield from _recordings()
        yield FILES, ""


def _workloads() -> Iterable[tuple[str, str]]:
    from gputui.collect.catalogue import load_catalogue

    return ((workload.name, workload.summary) for workload in load_catalogue().workloads)


def _parameters(before: Sequence[str]) -> Iterator[tuple[str, str]]:
    from gputui.collect.catalogue import load_catalogue

    named = [after for word, after in pairwise(before) if word == "--workload"]
    for workload in load_catalogue().workloads:
        if workload.name in named:
            for parameter in workload.parameters:
                yield f"{parameter.name}=", parameter.help
                yield from ((f"{parameter.name}={value}", "") for value in parameter.choices)


def _recordings() -> Iterator[tuple[str, str]]:
    """The recordings in the folder where the screen records, the newest first."""
    from gputui.store import default_folder

    try:
        paths = sorted(default_folder().glob("*.gputui*"), reverse=True)
    except OSError:
        return
    yield from ((str(path), "") for path in paths if not path.name.endswith("-trace"))
