"""Every command and every option, declared once.

The parsers, the settings of the environment and the file, the help, completion in shells and the
manual page read these declarations. A command NAME is the function `run_NAME` of the module of this
package that has its name or is declared with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Literal

from gputui.base.standard_streams import WAYS
from gputui.cli.declaration import (
    Argument,
    Command,
    Mode,
    Option,
    address,
    alert,
    capture_range,
    count,
    interval,
    kernel_category,
    line_rate,
    metrics_address,
    moment,
    nanoseconds,
    price,
    rotation,
    seconds,
    share,
    size_bytes,
    speed,
)

MODES = (
    Mode("screen", "[--workload NAME [-p KEY=VALUE ...] | -- CMD ARG ...]",
         "the screen: the machine, and a workload or your command on it"),
    Mode("screen", "--host USER@BOX [--host ...] [--via COMMAND ...] [-- CMD ARG ...]",
         "the screen: other hosts, or your command on one of them, recorded there"),
    Mode("record", "--record [-o FILE|-] [--workload NAME ... | -- CMD ...]",
         "record without a screen; prints a summary at the end"),
    Mode("record", "--record --host USER@BOX [--host ...] [-o '{host}.gputui'] [-- CMD ...]",
         "the same of other hosts, each into a file here"),
    Mode("replay", "--replay FILE|- [--speed X] [--start TIME]", "show a recording"),
    Mode("demo", "--demo [--no-tour]", "show recorded runs of a real GPU, explained"),
    Mode("once", "--once [--json] [--watch]", "print a reading of the machine, or one an interval"),
)  # fmt: skip


def _formats(table: bool = False, comparison: bool = False) -> Callable[[], Sequence[str]]:
    """The formats that fit, a command's default first."""

    def keys() -> Sequence[str]:
        from gputui.render import formats

        fitting = [
            candidate.key
            for candidate in formats.every()
            if (
                candidate.comparison
                if comparison
                else candidate.text and candidate.table
                if table
                else True
            )
        ]
        return sorted(fitting, key=lambda key: key != "table")

    return keys


def _one_of(*names: str) -> Callable[[], Sequence[str]]:
    return lambda: names


def _format_notes() -> str:
    from gputui.render import formats

    lines = []
    for each in formats.every():
        words = [each.title, each.requirements, "-o OUT" if each.needs_path else ""]
        lines.append(f"  {each.key:<12} {'; '.join(filter(None, words))}")
    return "\n".join(["formats:", *lines])


_CONDITIONS = """\
conditions: WHAT.FIGURE, a cause, or a metric's name; > or <; a limit
  'idle.launch>40%'              the GPU waits for launches over 40 % of the time
  'idle.launch>+5%'              that share grew by more than 5 points
  'step.mean_ns>+3%'             a step takes over 3 % longer than in the first run
  'decode.gpu_busy_ns>+5%'       grew by more than 5 % over the first run
  'tokens_per_s<-3%'             shrank by more than 3 %
  'decode.cpu_avg_ns>+200000'    grew by more than 200 µs: + or - without %
  'gpu0.temperature_celsius>80'  is over 80, whatever it was: no sign
Causes are the keys in `gputui summary FILE --table time`, idle and busy. WHAT is step,
a cause, a phase's path (warmup/step), or its last part if only one phase ends in it,
a kernel's name or short name, gpu0, gpu1, ..., gpu for any GPU, or host; `--format json`
lists every figure. `gputui summary` also takes how long it held: '... > 85 for 30s'.
A run that lacks what the condition names, and the baseline has, fails it. Figures of steps
are for the work of one step of the first run. Exit status: 0 no condition holds, 1 one
does, 2 one cannot be understood, 3 none holds, but one is of steps that do other work."""

_ENV = """\
bash, zsh:  eval "$(gputui env)"
fish:       gputui env --shell fish | source
Dockerfile: ENV takes the two variables that it prints.
Every CUDA or NVTX program started there then loads the capture library, asleep: one
waiting thread, no ring, no CUPTI, nothing on disk. `gputui attach PID` wakes it, without
ptrace. nsys and ncu set the same variables for their own programs: theirs win there."""

_TRY = """\
gputui try [RECORDING] [--cure NAME] [--budget 10m] -- CMD ARG ...
The program is run several times, unchanged: once to see why it is slow, then with cures
applied from outside. What can be switched while it runs is switched on and off between blocks of
its own steps; the rest takes a run each. A gain is claimed only where chance would show one in
less than 1 % of such trials, whatever steps take. Nothing is left on, and nothing is edited: the
lines to write are printed."""

_ATTACH = """\
The library is handed over by ptrace at a moment that is known to be safe, or not at all; it
stays in the process, asleep, so that the next time needs no ptrace. Neither does a program
started after eval "$(gputui env)"."""

# The options of recordings and the screen that also fit a running process.
_OF_ATTACH = {
    "record", "output", "duration", "rotate", "max_size", "prometheus", "metrics", "trace",
    "trace_limit", "interval", "only", "alert", "notify", "keep_running", "no_kernels", "counters",
    "trace_steps", "max_cost", "theme", "config", "no_color", "ascii", "reader", "energy_price",
    "gpu_price", "kernel_category", "host", "via", "there", "readonly", "keep_arguments",
}  # fmt: skip
_OF_DETACH = {"readonly", "config"}

_RECORDS = ("screen", "record")
_OF_HOSTS = ("screen", "record", "once", "replay")
_ANYWHERE: tuple[Literal["environment", "file"], ...] = ("environment", "file")

_PRICE = Option("energy_price", "price of a kWh, to show what energy costs", "PRICE", parse=price,
                set_in=_ANYWHERE)  # fmt: skip

_GPU_PRICE = Option(
    "gpu_price", "price of an hour of a GPU, to show what a million tokens cost", "PRICE",
    parse=price)  # fmt: skip

_CATEGORY = Option(
    "kernel_category", "kernels whose names match the regular expression are of that category, "
    "before gputui's own rules", "PATTERN=CATEGORY", parse=kernel_category, many=True,
    set_in=_ANYWHERE)  # fmt: skip

_ALERT = Option(
    "alert", "warn when this holds, as 'gpu.temperature_celsius > 85 for 30s'", "CONDITION",
    parse=alert, many=True, modes=_RECORDS, set_in=_ANYWHERE)  # fmt: skip

_NOTIFY = Option(
    "notify", "have the terminal announce alerts: by its bell, or with a message too",
    "bell|osc9|osc777", choices=lambda: WAYS, modes=_RECORDS,
    set_in=_ANYWHERE)  # fmt: skip

MAIN = Command(
    "",
    "Say why a program on NVIDIA GPUs is slow, live: what its GPUs do in each step and why they\n"
    "idle, by kernel, phase (NVTX range) and line of Python, and what to try.",
    options=(
        Option("workload", "start this workload; gputui workloads lists them", "NAME",
               completes="workload"),
        Option("parameter", "a parameter of the workload", "KEY=VALUE", "-p", many=True,
               needs="workload", completes="parameter"),
        Option("record", "record without a screen"),
        Option("replay", "show a recording; - reads standard input", "FILE", completes="recording"),
        Option("demo", "show recorded runs of a real GPU, explained"),
        Option("once", "print one reading of the machine"),
        Option("json", "as JSON", modes=("once",)),
        Option("watch", "repeat every interval; with --json one document per line",
               modes=("once",)),
        Option("output",
               "record to this file; - is standard output; {host}, {rank}, {job} are filled in",
               "FILE", "-o", modes=_RECORDS, completes="file"),
        Option("duration", "stop after 30s, 5m or 1h", "TIME", parse=seconds, modes=("record",)),
        Option("rotate", "continue in a new file after 100M or 1h", "SIZE|TIME", parse=rotation,
               modes=_RECORDS),
        Option("max_size", "size limit of a recording; with --rotate the oldest files go first",
               "SIZE", parse=size_bytes, modes=_RECORDS),
        Option("prometheus", "serve the newest figures to Prometheus", "[HOST:]PORT",
               parse=address, modes=("record",)),
        Option("metrics", "address of a serving engine's metrics (else they are looked for where "
               "the program listens); none reads none", "URL|none",
               parse=metrics_address, many=True, modes=_RECORDS),
        Option("trace", "keep every range, call and kernel in FILE.gputui-trace"),
        Option("trace_limit", "size limit of a trace; the oldest records go first", "SIZE",
               parse=size_bytes, default="1G", needs="trace"),
        _ALERT,
        _NOTIFY,
        Option("keep_running",
               "let a run outlive its terminal: a hang-up (SIGHUP, a lost ssh) does not end it",
               modes=_RECORDS),
        Option("no_tour", "the demo's recordings, without turning from view to view",
               modes=("demo",)),
        Option("speed", "how fast, 0.25 to 64 times", "X", parse=speed, modes=("replay",)),
        Option("follow", "follow a file or job's folder while it is written", modes=("replay",)),
        Option("start", "where to begin: 30s, 5m or 1h", "TIME", parse=moment, modes=("replay",)),
        Option("host", "watch another host through ssh, with gputui there", "USER@BOX", many=True,
               modes=_OF_HOSTS),
        Option("via", "watch a host through a command that gives a pipe: 'kubectl exec -i POD --'",
               "COMMAND", many=True, modes=_OF_HOSTS),
        Option("there", "the command that starts gputui on other hosts", "COMMAND",
               default="gputui", set_in=_ANYWHERE),
        Option("interval", "seconds between samples, from 0.1 to 3600", "SEC", "-i",
               parse=interval, default="1", set_in=_ANYWHERE),
        Option("only", "show only these GPUs", "INDEX", parse=count, several=True),
        Option("no_kernels", "leave CUDA alone: ranges without kernels"),
        Option("no_lines", "do not sample the lines that Python programs are at"),
        Option("line_rate", "how often a second they are sampled, 1 to 100", "HZ",
               parse=line_rate, default="10"),
        Option("no_step_marks", "do not have Python programs say where their steps are"),
        Option("counters", "sample the GPU's hardware counters: what each kernel used of it",
               set_in=_ANYWHERE),
        Option("graph_trace", "CUDA graphs by kernel, or each launch as a whole (cheaper)",
               "node|graph", choices=_one_of("node", "graph"), default="node"),
        Option("trace_steps",
               "trace kernels of some steps (1/10[:RANGE]) or some of the time (10%, 1s/10s)",
               "SHARE"),
        Option("capture_range",
               "record kernels, copies and calls only inside a range (nvtx:RANGE), from "
               "cudaProfilerStart to Stop (profiler) or in the first steps (steps:N[:RANGE])",
               "PART", parse=capture_range),
        Option("max_cost",
               "trace kernels in windows that cost at most this share of the program's time; "
               "none traces all the time (attach: 2%)", "PERCENT|none", parse=share,
               set_in=_ANYWHERE),
        Option("annotate", "put ranges around torch modules, or operators too, or these with the "
               "shapes of their inputs", "modules|autograd|shapes",
               # Shapes of inputs are kept on request only: each operator's range then has a name of
               # its own.
               choices=_one_of("modules", "autograd", "shapes")),
        Option("library_calls",
               "put ranges around calls of cuBLAS and cuDNN, with types and shapes (LD_PRELOAD)"),
        Option("keep_arguments", "keep secrets in command lines (tokens, passwords) as they are",
               set_in=_ANYWHERE),
        Option("readonly",
               "disable everything that starts, stops, signals or attaches to a process",
               set_in=_ANYWHERE),
        Option("theme", "colours of the screen", "NAME", default="gputui-dark",
               set_in=_ANYWHERE, completes="theme"),
        _PRICE,
        _GPU_PRICE,
        _CATEGORY,
        Option("config", "read settings from this file", "FILE",
               set_in=("environment",), completes="file"),
        Option("no_color", "draw without colours", set_in=_ANYWHERE, variables=("NO_COLOR",)),
        Option("ascii", "draw only ASCII characters", set_in=_ANYWHERE),
        Option("reader", "for screen readers: text without charts, drawn at keys, the cursor "
               "where something is chosen", set_in=_ANYWHERE),
    ),
)  # fmt: skip

FILE_HELP = (
    "a recording, an SQLite export of nsys, a Chrome trace of torch.profiler, CSV tables of nsys "
    "stats (a folder, or the prefix of their names), or a folder with recordings of a job's nodes "
    "or ranks; - reads a recording from standard input"
)
_FILE = Argument("file", "FILE", FILE_HELP, "one or more", completes="recording")
_RAW_NAMES = Option(
    "raw_names", "name phases exactly as their ranges, numbers included (else 'Step 3' is 'Step #')"
)
_RUN = Option("run", "this run of the file (else the newest)", "N", parse=count)
_JSON = Option("json", "as JSON")

COMMANDS = (
    Command(
        "workloads",
        "List the workloads, or describe one.",
        (Argument("name", "NAME", "show this one's parameters", "at most one",
                  completes="workload"),),
        (
            _JSON,
            Option("new", "write a workload of your own, to edit", "NAME"),
        ),
        module="help",
    ),
    Command(
        "summary",
        "Summarize a recorded run.",
        (_FILE,),
        (
            Option("table", "only this table", "NAME", completes="table", many=True),
            Option("full", "the answer, then every table"),
            Option("fail_if", "exit with 1 if this holds; conditions as in compare, but without a "
                   "sign: 'idle.launch>40%', or 'gpu.temperature_celsius > 85 for 30s'",
                   "CONDITION", many=True),
            Option("format", "format of the output", "FORMAT", choices=_formats(table=True),
                   default="table"),
            Option("domain", "only the ranges of this NVTX domain ('default': the unnamed one)",
                   "NAME", many=True),
            Option("phase", "with --table, only what the ranges of this name hold: kernels, calls "
                   "and copies of measure_loop, say", "RANGE"),
            _RAW_NAMES,
            _RUN,
            _PRICE,
            _GPU_PRICE,
            _CATEGORY,
        ),
        module="recordings",
    ),
    Command(
        "export",
        "Write a recorded run for another tool.",
        (_FILE,),
        (
            Option("format", "one of the formats below", "FORMAT", choices=_formats(),
                   required=True),
            Option("table", "only this table, as in summary", "NAME", completes="table"),
            Option("output", "a file, or FOLDER/ for one file per table; stdout without it", "OUT",
                   "-o", completes="file"),
            _RAW_NAMES,
            _RUN,
            _PRICE,
            _GPU_PRICE,
            _CATEGORY,
        ),
        _format_notes,
        module="recordings",
    ),
    Command(
        "compare",
        "Compare runs: which is faster, why, and what is more than noise.",
        (
            Argument("baseline", "FILE", FILE_HELP, completes="recording"),
            Argument("others", "FILE", "compared with the first", "one or more",
                     completes="recording"),
        ),
        (
            Option("full", "the verdict, then every table"),
            Option("format", "format of the output", "FORMAT", choices=_formats(comparison=True),
                   default="table"),
            Option("fail_if", "exit with 1 if this holds for any run after the first", "CONDITION",
                   many=True),
            _RAW_NAMES,
            Option("run", "the run to compare (else the newest); once for all files, or once each",
                   "N", parse=count, many=True),
        ),
        lambda: _CONDITIONS,
        module="recordings",
    ),
    Command(
        "try",
        "Try cures on a program, and print what each gains, measured.",
        (
            Argument("recording", "RECORDING", "the findings are this recording's: nothing is "
                     "captured first", "at most one", completes="recording"),
        ),
        (
            Option("cure", "only these; --list has their names", "NAME[,NAME]", many=True),
            Option("all", "try all that leave results as they are, findings or not"),
            Option("list", "list the cures, or those that would be tried on a recording"),
            Option("budget", "how long it may take in all", "TIME", parse=seconds, default="10m"),
            Option("yes", "do not ask before anything runs"),
            Option("scratch", "run in a copy of the folder, which goes afterwards; absolute paths "
                   "escape it"),
            Option("shared", "try although another program computes on the GPU"),
            Option("with_tracking", "leave W&B, MLflow and others on"),
            Option("seed", "seed of the order in which cures are on and off", "N", parse=count,
                   default="0"),
            Option("calibration", "print what was forecast and measured in all trials so far"),
            _RUN,
            _JSON,
            *(option for option in MAIN.options if option.name == "readonly"),
        ),
        lambda: _TRY,
        runs_command=True,
    ),
    Command(
        "attach",
        "Look inside a running process; it goes on afterwards.",
        (Argument("pid", "[HOST:]PID", "the process, of several hosts one each", "one or more"),),
        (
            *(option for option in MAIN.options if option.name in _OF_ATTACH),
            Option("annotate", "put ranges around torch modules", "modules|none",
                   choices=_one_of("modules", "none"), default="modules"),
            Option("started", "only if the process began then, in ns since 1970", "NS",
                   parse=nanoseconds),
        ),
        lambda: _ATTACH,
    ),
    Command(
        "detach",
        "Make another gputui detach from a process, which keeps running.",
        (Argument("pid", "PID", "the process"),),
        tuple(option for option in MAIN.options if option.name in _OF_DETACH),
        module="attach",
    ),
    Command(
        "env",
        "Print what loads gputui, asleep, into a shell's programs, for gputui attach to wake.",
        (),
        (
            Option("shell", "for which shell", "bash|zsh|fish",
                   choices=_one_of("bash", "zsh", "fish"), default="bash"),
            Option("unset", "undo it"),
        ),
        lambda: _ENV,
        module="attach",
    ),
    Command(
        "stream",
        "Write readings to standard output for gputui --host on another machine.",
        (Argument("words", "WORD", "what gputui is started with for a run", "any number"),),
        (
            Option("token", "begins the first line", "HEX", required=True),
            Option("zstandard", "compress with Zstandard if it is there, else with gzip"),
            Option("run_id", "begin this run unless it was begun, and follow it", "SECONDS-HEX"),
            Option("name", "of its recording", "NAME"),
            Option("file", "follow this recording", "FILE", completes="recording"),
            Option("offset", "from this byte on", "BYTES", parse=count),
            *(option for option in MAIN.options if option.name in ("interval", "only")),
        ),
        module="once",
    ),
    Command("doctor", "Print what works here, and how to fix what does not.", (),
            (_JSON,)),
    Command(
        "help",
        "Print a page of the manual, or list them.",
        (Argument("topic", "TOPIC", "a page or a command", "at most one"),),
    ),
    Command(
        "completion",
        "Print the script that completes gputui's words in a shell.",
        (Argument("shell", "SHELL", "for which shell", choices=("bash", "zsh", "fish")),),
        notes=lambda: (
            "bash:  gputui completion bash > ~/.local/share/bash-completion/completions/gputui\n"
            "zsh:   gputui completion zsh > a folder of $fpath, as _gputui\n"
            "fish:  gputui completion fish > ~/.config/fish/completions/gputui.fish"
        ),
        module="help",
    ),
)  # fmt: skip


def command(name: str) -> Command | None:
    """A command by its name; None if there is none."""
    return next((candidate for candidate in COMMANDS if candidate.name == name), None)


def settings() -> tuple[Option, ...]:
    """What can be set in the file."""
    return tuple(option for option in MAIN.options if "file" in option.set_in)


def has_hosts(options: argparse.Namespace) -> bool:
    """Whether other hosts are to be watched."""
    return bool(options.host or options.via)
