"""README and gputui/docs: links lead somewhere, and what they name exists."""

from __future__ import annotations

import contextlib
import functools
import html
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.cli.dispatch import run
from gputui.cli.options import MAIN
from gputui.imports import kineto_columns
from tests.conftest import DATA

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "gputui" / "docs").rglob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
OF_OTHERS = {
    "--nproc-per-node",
    "--type",
    "--gpm-metrics",
    "--trace=cuda,nvtx",
    "--pytorch=autograd",
    "--trace=cublas,cudnn",
    "--capture-range=nvtx",
    "--nvtx-capture=measure",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--ntasks-per-node",
    "--jobid",
    "--overlap",
    "--no-deps",  # of pip
    "--enable-metrics",  # of SGLang
    "--enable-layerwise-nvtx-marker",
    "--rate",  # of the client of the workload serve
    "--requests",
}


@functools.cache
def gputui(*arguments: str) -> tuple[str, str]:
    """What it writes to standard output and to standard error."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.suppress(SystemExit),  # --help
    ):
        run(arguments)
    return out.getvalue(), err.getvalue()


@functools.cache
def commands() -> frozenset[str]:
    code = "\n".join(_code(page) for page in PAGES)
    return frozenset(re.findall(r"(?:^|`)(?:\S*/)?gputui ([a-z]+)\b", code, re.MULTILINE))


@functools.cache
def known_options() -> frozenset[str]:
    words = [sys.executable, "-m", "workloads", "attention", "--help"]
    of_workloads = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    helps = [gputui(*words, "--help")[0] for words in ((), *((one,) for one in commands()))]
    found = re.findall(r"--?[a-zA-Z][a-z-]*", " ".join([*helps, of_workloads.stdout]))
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("https://", "http://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_is_short_and_names_every_page() -> None:
    readme = PAGES[0].read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    assert readme.split("```")[1].strip().startswith("git clone ")
    for page in (ROOT / "gputui" / "docs").glob("*.md"):
        assert f"(gputui/docs/{page.name})" in readme


def test_every_command_named_exists() -> None:
    assert {"summary", "export", "compare", "doctor"} <= commands()
    for command in commands():
        assert gputui(command, "--help")[0].startswith(f"usage: gputui {command} "), command


def test_every_option_named_exists() -> None:
    words = r"(?<![\w-])--[a-z][a-z-]*(?:=[a-z,]+)?"
    named = {option for page in PAGES for option in re.findall(words, _code(page))}
    assert {"--trace-steps", "--fail-if"} <= named
    assert named - OF_OTHERS - known_options() == set()


def test_every_table_named_exists() -> None:
    _, listed = gputui("summary", str(DATA / "h200-medium.gputui"), "--table", "?")
    known = set(re.findall(r"[\w:]+", listed.partition("known: ")[2]))
    named = set(re.findall(r"--table[ `\n]+([a-z]\w+)", TEXT))
    assert {"processes", "cuda_gpu_kern_sum"} <= named
    assert named - known - {kineto_columns.TABLE} == set()  # of some imported traces only


def test_every_file_named_exists() -> None:
    paths = re.findall(r"`((?:tests|gputui|workloads|screenshots|\.ci)/[\w./]+)`", TEXT)
    assert len(paths) > 5
    for path in paths:
        if "NAME" not in path and "KEY" not in path:
            assert (ROOT / path).exists(), path


SOURCES = [*PAGES, *(p for p in (ROOT / "gputui").rglob("*") if p.suffix in {".c", ".h"})]
_FILE = re.compile(r"(?<![/<\w*.])((?:[\w.]+/)*\w+(?:\.inc)?\.(?:py|c|h))\b(?![>])")
_FILES_OF_OTHERS = {
    "train.py", "mine.py", "moe_lm_pretrain.py", "gpt.py",  # a reader's
    "signal.c", "signal_64.c", "library_types.h", "cublasLt.h", "nvtx_payload_schemas.h",
}  # fmt: skip


def test_every_source_file_named_exists() -> None:
    """In the pages, and in comments of C; a name may stand with or without its folders."""
    files = {
        f"/{path.relative_to(ROOT)}"
        for folder in ("gputui", "tests", "workloads", "screenshots")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".c", ".h"}
    }
    named = {name for path in SOURCES for name in _FILE.findall(path.read_text(encoding="utf-8"))}
    assert {"layout.h", "host_threads.py", "cupti_records.inc.c"} <= named
    missing = {name for name in named if not any(path.endswith(f"/{name}") for path in files)}
    ours = {name for name in missing if "NAME" not in name}
    assert {name for name in ours if name.rpartition("/")[2] not in _FILES_OF_OTHERS} == set()


def test_the_page_lists_the_calls_that_are_recorded() -> None:
    source = (ROOT / "gputui/inject/src/cupti_calls.inc.c").read_text(encoding="utf-8")
    recorded = {
        name
        for calls in re.findall(r"\*const \w+_calls\[\] = \{([^}]*)\}", source)
        for name in re.findall(r'"(cu\w+)"', calls)
    }
    assert {"cudaMemcpy", "cuGraphLaunch"} <= recorded
    page = (ROOT / "gputui/docs/measuring.md").read_text(encoding="utf-8")
    _, _, listed = page.partition("those whose names begin as follows")
    assert set(re.findall(r"`(\w+)`", listed.partition("No other call")[0])) == recorded


@functools.cache
def code() -> str:
    return "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("gputui", "workloads", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".c", ".h"} and path != Path(__file__)
    )


def test_every_field_and_function_that_a_recipe_names_exists() -> None:
    docs = ROOT / "gputui" / "docs"
    recipes = [docs / "architecture.md", *(docs / "recipes").glob("*.md")]
    word = r"`@?(?:\w+\.)*([A-Za-z]\w{2,})(?:\([^`]*\))?`"
    named = {name for page in recipes for name in re.findall(word, page.read_text("utf-8"))}
    assert {"utilization_percent", "computed_once", "analysis_of", "TableSpec", "KEYS"} <= named
    of_others = {"KIND_", "cudaStreamWaitEvent", "toml"}
    assert named - of_others - set(re.findall(r"\w+", code())) == set()


def test_every_variable_named_is_read() -> None:
    # Settings are read under names made of their options'.
    settings = {option.variable for option in MAIN.options}
    for name in set(re.findall(r"GPUTUI_[A-Z_]+", TEXT)) - settings:
        assert name in code(), name


def test_what_is_said_of_a_picture_is_in_it() -> None:
    picture = html.unescape((ROOT / "screenshots" / "phases.svg").read_text(encoding="utf-8"))
    words = re.sub("<[^>]*>|\xa0", " ", picture)
    found = re.search(r"▾ step .* ([\d.]+) ms +(\d+) +[\d.]+ ms +[\d.]+ s +(\d+) ms ", words)
    assert found is not None
    step_ms, steps, on_gpu_ms = map(float, found.groups())
    told = re.search(r"a step takes ([\d.]+) ms, ([\d.]+) ms of them on the GPU", TEXT)
    assert told is not None
    assert told.groups() == (f"{step_ms:.1f}", f"{on_gpu_ms / steps:.1f}")


def _code(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return " ".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
