"""`gputui completion`: scripts for shells, which ask `gputui completion words` what may follow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from gputui.base.errors import GputuiError
from gputui.base.sanitize import sanitize
from gputui.cli.declaration import Completes, Option
from gputui.cli.options import COMMANDS, MAIN, command

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


def run(options: argparse.Namespace) -> int:
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
    """What may follow the words `before`, and what it means."""
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
        from gputui.cli.help import pages

        yield from (
            (name, "") for name in (*pages(), *(one_command.name for one_command in COMMANDS))
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
    """Those in the folder where the screen records, the newest first."""
    from gputui.store.places import default_folder

    try:
        paths = sorted(default_folder().glob("*.gputui*"), reverse=True)
    except OSError:
        return
    yield from ((str(path), "") for path in paths if not path.name.endswith("-trace"))
