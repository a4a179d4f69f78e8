"""What to try where the CPU runs the program's own code: by the line that it is at, and by kernels
that show what may be behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gputui.model.events import KernelDefined
from gputui.model.leaves import Leaf
from gputui.report.explain.causes import CAUSES
from gputui.report.explain.counted import all_steps
from gputui.report.explain.launches import launch_advice
from gputui.report.explain.lines import MOSTLY, LikeliestLine, beside, line_shares
from gputui.state import Run

_OF_CUDNN = re.compile(r"cudnn.*sdpa", re.I)

_NO_CUDNN = "torch.backends.cuda.enable_cudnn_sdp(False)"
PLANS = f"{_NO_CUDNN} if attention's length changes: cuDNN plans each new one; else "
IN_ATTENTION = (
    f"{_NO_CUDNN}: cuDNN's attention makes a plan for each new length; a KV cache (use_cache=True) "
    "if each step goes through a text again"
)
"""Tens of milliseconds for each new length (48 ms a token on an H100, torch 2.11, a cache that
grows)."""

IN_A_PROCESS = (
    "move what {where} computes to a process: Python's lock (the GIL) lets one thread run at a "
    "time; a lock of the program's, hold for less"
)
LET_GO = "if the thread in {where} holds a lock, let it go before it sleeps or waits"
"""Screens show what to try without the evidence: it names the other thread's function itself."""

LESS = "do it less often, or off this thread"
COMPUTE = "compute it on the GPU, or once before the loop"
LOAD = f"{LESS}: DataLoader workers (num_workers > 0)"
SAVE = f"{LESS}: a thread that saves and logs"

_SAYS = {
    LOAD: re.compile(
        r"(?<![a-z])(augment\w*|collate|data(set|loader)?s?|fetch|(get|next|make)_?batch|getitem|"
        r"images?|load(er)?|prepare(?!_)|preprocess\w*|token(ize\w*|izer)|transforms?)(?![a-z])",
        re.I,
    ),
    SAVE: re.compile(
        r"(?<![a-z])(checkpoint\w*|dump|log(ger|ging)|log_\w+|report|save)(?![a-z])", re.I
    ),
    COMPUTE: re.compile(r"(?<![a-z])(attention|backward|forward|model)(?![a-z])", re.I),
}
"""What to try, by words in the names of the functions and files of most lines, or of the library's
function that they are in."""

_LAUNCHES = re.compile(r"\(torch/(autograd|optim)/")
"""Parts of PyTorch whose time on the CPU is that of preparing launches, where a line is in them."""

_MAY_ATTEND = re.compile(
    r"(?<![a-z])(att(entio)?n|backward|blocks?|decode\w*|forward|generate|layers?|model|sdpa|"
    r"transformer)(?![a-z])",
    re.I,
)
"""Names of functions and files that attention may be called in."""

_CONVOLVES = re.compile(r"\(torch/nn/modules/conv")
"""One that takes long only where cuDNN has to choose an algorithm."""

FEW_SIZES = (
    "pad or crop to few different sizes: cuDNN chooses how to convolve anew for each new one; else "
)
"""31 of 50 ms a step of random crops on an H200 (torch 2.11)."""

_COMPUTES = re.compile(r"\(torch/nn/functional")
"""One whose functions take long only where their tensors are the CPU's."""


def host_advice(run: Run, names: Mapping[int, KernelDefined]) -> str:
    """Better than what is true of any program, where the line or the kernels say more."""
    lines = line_shares(run, leaf=Leaf.HOST)
    advice = next((advice for advice, says in _SAYS.items() if _mostly(says, lines)), None)
    if advice is None and lines:
        advice = next((one for one in (LOAD, SAVE) if _SAYS[one].search(lines[0].function)), None)
    if advice is None and lines and _LAUNCHES.search(lines[0].inside):
        advice = launch_advice(run, names) or CAUSES[Leaf.LAUNCH].advice
    may = not lines or _MAY_ATTEND.search(f"{lines[0].where} {lines[0].inside}") is not None
    if advice not in (LOAD, SAVE) and may and _plans(run, names):
        in_attention = any("attention" in line.inside for line in lines[:1])
        return IN_ATTENTION if in_attention else PLANS + (advice or LESS)
    if any(_CONVOLVES.search(line.inside) for line in lines[:2]):
        return FEW_SIZES + (advice or LESS)
    if advice is None and lines and _COMPUTES.search(lines[0].inside):
        return COMPUTE
    return advice or CAUSES[Leaf.HOST].advice


def is_of_plans(advice: str) -> bool:
    """Whether it says that cuDNN's attention plans each new length."""
    return advice.startswith(_NO_CUDNN)


def wait_advice(run: Run, leaves: Mapping[Leaf, int]) -> str | None:
    """Where what it waits for is a report of the program's, or another thread of it; None
    elsewhere."""
    if (other := beside(run, leaves)) is not None:
        return (IN_A_PROCESS if other.ran else LET_GO).format(where=other.where)
    lines = line_shares(run, leaf=Leaf.WAIT)[:1]
    says = _SAYS[SAVE]
    reports = any(says.search(line.where) or says.search(line.function) for line in lines)
    return SAVE if reports else None


def _mostly(says: re.Pattern[str], lines: list[LikeliestLine]) -> bool:
    seen = sum(line.seen for line in lines if says.search(line.where))
    return bool(lines) and seen >= MOSTLY * lines[0].samples


def _plans(run: Run, names: Mapping[int, KernelDefined]) -> bool:
    """Whether cuDNN's attention runs each step."""
    steps = all_steps(run)
    calls = sum(
        times.time.count
        for key, times in run.kernels.items()
        if (known := names.get(key.kernel)) is not None and _OF_CUDNN.search(known.name)
    )
    return calls > 0 and calls >= steps
