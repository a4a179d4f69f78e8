"""A finding, as people and programs read it, and the words that several rules use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from gputui.model.leaves import LEAF_OF_KEY, Leaf
from gputui.model.units import duration


class Gain(msgspec.Struct, frozen=True):
    """How many times faster a step is once a cure is applied: between `low` and `high`. `cure` says
    which, where the advice has several that differ in it; empty for the advice as it is."""

    low: float
    high: float
    cure: str = ""

    @property
    def middle(self) -> float:
        """The geometric mean of both ends: gains multiply."""
        return math.sqrt(self.low * self.high)

    @property
    def is_open(self) -> bool:
        """Whether the interval is so wide that only its low end is said."""
        return self.low >= WORTH_SAYING and self.high > VERY_WIDE * self.low

    @property
    def text(self) -> str:
        """ "2.0 to 2.6× faster", and with which cure; empty where it is little. Of an interval
        that is very wide its low end only, "at least 2.0× faster", of one that begins with none its
        high one."""
        if self.high < WORTH_SAYING:
            return ""
        low, high = (_times(end).rstrip("×") for end in (self.low, self.high))
        ends = low if low == high else f"{low} to {high}"
        if self.low < WORTH_SAYING:
            ends = f"up to {high}"
        elif self.is_open:
            ends = f"at least {low}"
        return f"{self.cure}: {ends}× faster" if self.cure else f"{ends}× faster"

    def step_left(self, step_ns: float) -> str:
        """What a step of `step_ns` then takes, "32.6 to 57.3 ms", as `text` has its ends."""
        least, most = (duration(step_ns / end) for end in (self.high, self.low))
        if self.low < WORTH_SAYING:
            return f"{least} or more"
        if self.is_open or least == most:
            return most if least == most else f"{most} or less"
        figure, _, unit = least.partition(" ")
        return f"{figure if most.endswith(f' {unit}') else least} to {most}"


class FindingDocument(msgspec.Struct, frozen=True, kw_only=True, rename={"advice": "try"}):
    """A finding, for programs. `cause` is the key of a leaf of the time tree, whose share of the
    wall time and time a step are given, or the name of a rule.

    `gains` are what its cures bring, the first cure's first; where these are not known
    `gain_unknown` says why, and beside the gains of some cures what is not known of others. `value`
    and `threshold` share a unit. `source` says what the value was measured by; for a leaf, where
    the share that a cure frees comes from. `with_pauses` is whether the share is of the loop with
    its pauses, not of its steps.
    """

    cause: str
    word: str
    share_percent: float | None = None
    with_pauses: bool = False
    step_ns: float | None = None
    gains: tuple[Gain, ...] = ()
    gain_unknown: str = ""
    sentence: str
    advice: str
    evidence: tuple[str, ...] = ()
    value: float
    threshold: float
    source: str


class Finding(FindingDocument, frozen=True, kw_only=True):
    """Something that costs time, or that a person must know, with what to try. Beside the document
    it has what decides its place among other findings, and where a screen shows it.

    `word` is what a screen says of it in a few words; `sentence` has the figure. `recoverable` is
    the share of the time, 0 to 1, that a usual cure of such a cause saves: it decides whether the
    cause is worth a finding, and which finding comes first. `gains` are what this program would
    gain.
    """

    recoverable: float = 0.0
    modelled: tuple[Gain, ...] = ()
    """The gains as their model has them, before `calibrated` widens them."""
    model: str = ""
    """Which of several models of the cause the gains are from; empty if the cause has one model."""
    place: str = ""
    """The line of the program where the cause is, as a rule."""
    kernel: str = ""
    """The kernel that takes the longest, if the finding is about several."""
    alone: float = 0.0
    """How many times faster a step is if all of the idle time goes, of a leaf that is idle, else if
    its own time does, and nothing else: a cure may take other work with it. 0 where not known."""
    covers: tuple[str, ...] = ()
    """The leaves that the finding is about besides its cause: share, time and gain are of all of
    them together."""
    view: str = ""
    """The name of the screen's view that shows what the finding is about; empty if none does."""
    leads: bool = False
    """Whether the finding is the answer where no leaf is worth one."""
    urgent: bool = False
    """Whether the run will soon end for this cause: the finding then comes before all that only
    take time."""
    is_timed: bool = False
    """Whether the time is known at least from calls of the cause's own, and not from samples: of
    two findings that save about as much, such a one comes first."""
    ends_run: bool = False
    """Whether the run ended for this cause: then the finding is the answer, whatever leaves there
    are."""
    explains: tuple[str, ...] = ()
    """Causes of other findings that follow from this one. They no longer lead beside it; if one of
    them is urgent, this finding is."""

    @property
    def headline(self) -> str:
        """For a screen that shows other things too."""
        return (
            self.word if self.share_percent is None else f"{self.word}: {self.share_percent:.0f} %"
        )

    @property
    def text(self) -> str:
        """The sentence where no evidence stands beside it."""
        return f"{self.sentence} {self.placed}".rstrip()

    @property
    def placed(self) -> str:
        """Where the cause is, as a sentence; empty if that is not known."""
        return f"Mostly at {self.place}." if self.place else ""

    @property
    def of_leaves(self) -> tuple[Leaf, ...]:
        """The leaves of the time tree that it is about; none of a rule's own measure."""
        keys = (self.cause, *self.covers)
        return tuple(LEAF_OF_KEY[key] for key in keys if key in LEAF_OF_KEY)

    @property
    def gain_text(self) -> str:
        """What its cures gain, as a sentence: empty where that is little."""
        return self._gain(self._steps)

    @property
    def gain_beside_bars(self) -> str:
        """The same without what a step then takes, which bars beside it show."""
        return self._gain("")

    def _gain(self, steps: str) -> str:
        if self.gains:
            texts = [gain.text for gain in self.gains if gain.text]
            return f"{capital('; '.join(texts))}{steps}{self._condition}." if texts else ""
        if not self.gain_unknown:
            return ""
        share = (self.share_percent or 0.0) / 100
        bounds = f" ({_times(self.alone)} if all idle time goes)" if self._is_idle else ""
        if not self.cause.startswith("idle.") and SAYS_OWN < share < NEARLY_ALL:
            bounds = f" ({_times(1.0 / (1.0 - share))} if only this time goes)"
        return f"How much faster is not known: {self.gain_unknown}{bounds}."

    @property
    def _is_idle(self) -> bool:
        return self.cause.startswith("idle.") and self.alone > 1.0

    @property
    def _steps(self) -> str:
        """What a step takes now and then, of one cure; empty where it is not known."""
        if len(self.gains) != 1 or not self.step_ns or not self.share_percent or self.with_pauses:
            return ""
        step_ns, [gain] = 100 * self.step_ns / self.share_percent, self.gains
        return f" ({duration(step_ns)} a step → {gain.step_left(step_ns)})"

    @property
    def _condition(self) -> str:
        """What an interval depends on, and what the bar of the step's time says of it: what is
        gained if only the cause's own time goes, and if all idle time does, as far as these lie in
        the interval, and why it may end beyond them."""
        low, high = self.gains[0].low, max(gain.high for gain in self.gains)
        is_idle, is_wide = self.cause.startswith("idle."), high >= WIDE * low
        depends = DEPENDS_ON.get(f"{self.cause}: {self.model}") or DEPENDS_ON.get(self.cause)
        if not is_wide or self.gains[0].cure:
            depends = None
        share = (self.share_percent or 0.0) / 100
        own = 1.0 / max(1.0 - MOST_GONE, 1.0 - share)
        whole = self.alone or own
        beyond = bool(self.alone or share) and high > whole * WORTH_SAYING
        bounds: list[str] = []
        is_in = (
            bool(share) and low / WORTH_SAYING <= own <= high * WORTH_SAYING and share < NEARLY_ALL
        )
        is_own = own < whole / WORTH_SAYING and not depends if is_idle else True
        if is_in and is_own and not self.gain_unknown:
            bounds.append(f"{_times(own)} if only this {'waiting' if is_idle else 'time'} goes")
        if is_idle and low / WORTH_SAYING <= whole <= high * WORTH_SAYING:
            bounds.append(f"{_times(whole)} if all idle time goes")
        if self.gain_unknown:
            bounds.append(self.gain_unknown)
        elif beyond and share < NEARLY_ALL:
            what = "if copies or kernels go, too" if is_idle else "with what is around it"
            bounds.append(f"more {what}")
        text = ", ".join(bounds if beyond or is_wide or self.gain_unknown else [])
        if not depends:
            return f": {text}" if text else ""
        return f": it depends on {depends}{f' ({text})' if text else ''}"


def _times(gain: float) -> str:
    return f"{gain:.{int(gain < TENS)}f}×"


WORTH_SAYING = 1.05
"""Gain below which none is printed: steps of one program differ by as much from run to run."""

WIDE = 1.15
"""High over low from which an interval is said with what it depends on."""

DEPENDS_ON = {
    "attention_fp32": "how much of the model then runs in bf16",
    "busy.attention_unfused": "the width of a head and the mask",
    "busy.copy_pageable": "how much of what is copied is needed at all",
    "busy.elementwise_chain": "how many kernels a compiler joins",
    "copies": "what the copies are for",
    "idle.compile": "how often a longer run compiles",
    "idle.host": "how much of the other idle time only waits behind this code",
    "idle.input": "how many cores the workers have",
    "idle.launch": "what is launched instead",
    "idle.launch: blocked": "how much of the kernels then runs beside the launches",
    "idle.sync": "how much is computed only to be read",
    "prime_fft": "how fast the padded length is",
    "slow_kernels": "how well a better kernel uses the GPU",
}
"""What a recording would have to hold for a cause's intervals to be narrower."""

SAYS_OWN = 0.05
"""Share of the time of a cause from which it is said what goes with it alone."""

NEARLY_ALL = 0.95
"""Share of the time of a cause of which "if only this goes" says nothing."""

VERY_WIDE = 6.0
"""High over low from which the high end says nothing."""

TENS = 9.95
"""Gain from which it has no decimals."""

MOST_GONE = 0.999
"""Share of the time that no cure frees: something of a step is always left."""


def gain_of(least: float, most: float | None = None, cure: str = "") -> tuple[Gain, ...]:
    """The gain where at least and at most this share of the time goes, 0 to 1, as a finding has it;
    none where nothing goes."""
    ends = sorted((least, least if most is None else most))
    low, high = (1.0 / (1.0 - min(max(end, 0.0), MOST_GONE)) for end in ends)
    return (Gain(low, high, cure),) if high > 1.0 else ()


GIVEN_WIDTH = 0.3
"""What is added to the half-width of a model's interval, in log odds of the time that goes, before
it is widened: models that are surest of themselves were wrong most often."""

WIDENED = {
    "attention_fp32": 0.7,
    "busy.attention_unfused": 0.75,
    "busy.copy_pageable": 0.78,
    "busy.copy_pinned": 0.79,
    "busy.elementwise_chain": 0.71,
    "busy.matmul_simt": 0.51,
    "busy.matmul_unaligned": 0.56,
    "busy.shared": 0.8,
    "compiler_gave_up": 0.71,
    "copies": 3.17,
    "cudnn_plans": 0.79,
    "depthwise": 0.97,
    "few_blocks": 0.72,
    "float64": 0.82,
    "garbage_collection": 2.16,
    "idle.alloc": 0.8,
    "idle.compile": 0.8,
    "idle.compile: usual step": 1.42,
    "idle.host": 0.82,
    "idle.host: beside the GPU": 0.89,
    "idle.host: usual step": 1.0,
    "idle.input": 1.22,
    "idle.input: usual step": 1.13,
    "idle.launch": 1.7,
    "idle.launch: CUDA graphs": 0.82,
    "idle.launch: blocked": 0.85,
    "idle.launch: by tensor": 0.96,
    "idle.launch: micro-batches": 1.27,
    "idle.launch: one batched call": 1.38,
    "idle.launch: one call for the loop (cuDNN's RNN, torch.bmm)": 1.17,
    "idle.launch: operators": 0.9,
    "idle.launch: tables": 0.95,
    "idle.launch: values one by one": 1.15,
    "idle.sync": 1.19,
    "idle.sync: usual step": 1.12,
    "idle.sync: values one by one": 1.11,
    "idle.wait": 1.06,
    "layout": 0.66,
    "optimizer": 0.73,
    "other_work": 0.86,
    "prime_fft": 0.73,
    "recomputation": 0.83,
    "serial_scatter": 0.87,
    "slow_kernels": 1.65,
    "steps_grow": 1.88,
}
"""By how much models of a cause are widened, each by how far it is off for programs whose gain was
measured, drawn towards the mean of causes that know as much where these are few:
`tests/report/gains.py` computes these from `docs/gains.md`'s pairs."""

WIDENED_OTHERS = 0.87
"""The same of causes without a pair."""

SAYS_NOTHING = 5.0
"""Gain up to which an interval says something that begins with none."""

NEXT_TO_NOTHING, TELLS_LITTLE = 1.3, 40.0
"""Gains between which an interval says as little: "at least 1.1×" stood beside 4.2 and 5.1."""

LEAST_ODDS = 0.01
"""Gain beyond 1 that a log of it can be taken of."""


ONLY_IDLE = frozenset(
    (
        "cudnn_plans: attention",
        "idle.alloc",
        "idle.input",
        "idle.launch: CUDA graphs",
        "idle.sync",
        "idle.wait",
        "usual step",
    )
)
"""Models of causes whose cures spare no kernels, as a rule: no widening goes beyond all idle time,
or what the model has gone with it. Of 18 programs two gained 1.2 times as much: fewer bytes were
copied, sums to be read were no longer made. Of other launches a third gained more, up to nine
times; of the CPU's own code 3 of 17, up to 1.3 times."""


NO_MORE = frozenset(("copies",))
"""Causes whose models have all go that can."""

BESIDE = "beside the GPU"
"""The cure of the CPU's own code that leaves all of it, and the model of it."""

MERGED_BATCHES = "micro-batches"
"""The model of launches that several passes make and one could: a step becomes no shorter than one
of them."""


def calibrated(finding: Finding) -> Finding:
    """With its gains as wide as models of its cause have been wrong: about a middle in log odds of
    the time that goes, log(gain - 1), in which errors up and down are alike. What calls of its own
    say goes at least: only what waits behind it is of a model."""
    gains: list[Gain] = []
    for gain in finding.gains:
        factor = WIDENED.get(model_of(finding, gain), WIDENED_OTHERS)
        low, high = log_odds(gain)
        half = factor * ((high - low) / 2 + GIVEN_WIDTH)
        least, most = (1.0 + math.exp((low + high) / 2 + sign * half) for sign in (-1, 1))
        if gain.low <= 1.0 + LEAST_ODDS:  # no log of nothing: 1 to 2.9 was said as 1.0 to 1.9
            most = max(most, gain.high)
        gains.append(Gain(gain.low if finding.is_timed else least, most, gain.cure))
    for number, (gain, modelled) in enumerate(zip(gains, finding.gains, strict=True)):
        limit = modelled.high
        if finding.model != MERGED_BATCHES and finding.cause not in NO_MORE:
            if not finding.alone or ONLY_IDLE.isdisjoint((model_of(finding, gain), finding.model)):
                continue
            limit = max(finding.alone, limit)  # its cure may spare copies, too
        gains[number] = Gain(min(gain.low, limit), min(gain.high, limit), gain.cure)
    if gains:
        low, high = gains[0].low, gains[0].high
        lowest = f"{low:.1f}×" if low >= WORTH_SAYING else "nothing"
        if low < NEXT_TO_NOTHING and high > (SAYS_NOTHING if low < WORTH_SAYING else TELLS_LITTLE):
            unknown = f"between {lowest} and {high:.0f}×, by what was measured"
            return replace(finding, gains=(), gain_unknown=unknown, modelled=finding.gains)
    return replace(finding, gains=tuple(gains), modelled=finding.gains)


def model_of(finding: Finding, gain: Gain) -> str:
    """Which model says a gain, a key of WIDENED: the cause, and which of its cures where their
    models are others."""
    has_own = bool(gain.cure) and (bool(finding.model) or gain.cure == BESIDE)
    kind = gain.cure if has_own else finding.model
    return f"{finding.cause}: {kind}" if kind else finding.cause


def log_odds(gain: Gain) -> tuple[float, float]:
    """Of the time that goes against the time that stays, at both ends of an interval."""
    low, high = (math.log(max(end - 1.0, LEAST_ODDS)) for end in (gain.low, gain.high))
    return low, high


def finding_documents(findings: Iterable[Finding]) -> list[FindingDocument]:
    """The findings without what only gputui itself needs of them."""
    names = FindingDocument.__struct_fields__
    return [
        FindingDocument(**{name: getattr(finding, name) for name in names}) for finding in findings
    ]


def gpu_names(indices: Iterable[int]) -> str:
    """ "GPU 3", "GPUs 0 to 7", "GPUs 0, 2 and 5"."""
    ordered = sorted(set(indices))
    if len(ordered) == 1:
        return f"GPU {ordered[0]}"
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"GPUs {ordered[0]} to {ordered[-1]}"
    return f"GPUs {_listed(ordered)}"


MOST_NAMED = 4
"""Of more ranks or hosts their number is enough."""


def capital(text: str) -> str:
    """As it begins a sentence."""
    return f"{text[0].upper()}{text[1:]}"


def rank_names(ranks: Iterable[int], most: int | None = None) -> str:
    """ "rank 3", "ranks 0, 2 and 5"; of more than `most` only how many."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if most is not None and len(ordered) > most:
        return f"{len(ordered)} ranks"
    return f"ranks {_listed(ordered)}"


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def percents(values: Sequence[float]) -> str:
    """ "25 %", or "25 to 40 %" if several differ."""
    least, most = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{most} %" if least == most else f"{least} to {most} %"
