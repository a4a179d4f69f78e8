"""Which part of a run shares are of. A run cut to a part gives the part's figures by the same rules
as the whole one's: the time tree, the verdict and what a step takes follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from gputui.model.events import LoopDelta, Scope, StepBlock
from gputui.model.merge import merger_of
from gputui.model.sketch import Accumulator
from gputui.model.step_blocks import StepBlocks
from gputui.model.units import count
from gputui.report.explain.rank_waits import rank_processes
from gputui.report.explain.time_tree import main_loops
from gputui.state import Run
from gputui.state.keys import LeafKey, LoopKey
from gputui.state.timing import LeafNs, LoopSums


class Part(Enum):
    """A kind of scope."""

    STEADY = "steady steps"
    TURNS = "all steps"
    STEPS = "some steps"
    RUN = "the whole run"


@dataclass(frozen=True, slots=True)
class RunScope:
    """A part of a run; of STEPS the first and the last of the steady steps, counted from 1."""

    part: Part = Part.STEADY
    first: int = 0
    last: int = 0


STEADY = RunScope()

TURNS = (Scope.WARMUP, Scope.EVALUATION, Scope.PAUSE)
"""Turns of the main loop that the steady steps leave out."""


def scopes(run: Run) -> list[RunScope]:
    """Those that a run has besides a stretch of steps; one only where no steps were found."""
    found = main_loops(run)
    if not found:
        return [STEADY]
    places = [RunScope(Part.STEADY), RunScope(Part.TURNS), RunScope(Part.RUN)]
    if not any(_turns_beside(run, found).values()):
        places.remove(RunScope(Part.TURNS))
    return places


def why_no_stretch(run: Run) -> str | None:
    """Why shares cannot be of a few steps; None where they can."""
    if len(rank_processes(run)) > 1:
        return "of several ranks only all steps: who waited for whom is not known of a few"
    return None


def in_words(run: Run, scope: RunScope) -> str:
    """The scope, as a person reads it."""
    if scope.part is Part.STEPS:
        return f"steps {scope.first:,} to {scope.last:,} of the steady ones"
    if scope.part is Part.TURNS:
        beside = _turns_beside(run, main_loops(run))
        parts = [f"{count(steps)} {_NAMES[kind]}" for kind, steps in beside.items() if steps]
        return f"all steps, with {', '.join(parts)}"
    return "all time since the first kernel" if scope.part is Part.RUN else scope.part.value


Key = TypeVar("Key", LoopKey, LeafKey)

_NAMES = {Scope.WARMUP: "of warm-up", Scope.EVALUATION: "of evaluation", Scope.PAUSE: "pauses"}


def cut(run: Run, scope: RunScope) -> Run:
    """The run as if it had been nothing but its scope."""
    if scope.part is Part.STEADY:
        return run
    if scope.part is Part.RUN:
        return replace(run, loops=_merged((_unstepped(key), sums) for key, sums in
                                          run.loops.items()), step_blocks={})  # fmt: skip
    loops = main_loops(run)
    if scope.part is Part.STEPS:
        return _cut_to_steps(run, loops, scope)

    def turned(key: Key) -> Key:
        is_main = loops.get((key.process, key.device)) == key.loop and key.scope in TURNS
        return key._replace(scope=Scope.STEADY) if is_main else key

    times: dict[LeafKey, LeafNs] = {}
    for key, time in run.leaf_times.items():
        to = turned(key)
        times[to] = LeafNs(times[to].ns + time.ns) if to in times else LeafNs(time.ns)
    # The steady ones last: theirs are the newest lengths.
    ordered = sorted(run.loops.items(), key=lambda one: one[0].scope == Scope.STEADY)
    return replace(
        run, leaf_times=times, loops=_merged((turned(key), sums) for key, sums in ordered)
    )


def _cut_to_steps(run: Run, loops: dict[tuple[int, int], int], scope: RunScope) -> Run:
    """Of each block of steps the part that is in the scope: its steps are alike."""
    times: dict[LeafKey, LeafNs] = {}
    sums: dict[LoopKey, LoopSums] = {}
    kept: dict[int, StepBlocks] = {}
    for (process, device), loop in loops.items():
        blocks = list(_within(_blocks(run, (process, device), loop), scope))
        steps, ns = sum(block.steps for block in blocks), sum(block.ns for block in blocks)
        if not steps:
            continue
        for block in blocks:
            for leaf, part_ns in block.leaves:
                key = LeafKey(process, device, Scope.STEADY, loop, leaf)
                times.setdefault(key, LeafNs()).ns += part_ns
        whole = run.loops[LoopKey(process, device, Scope.STEADY, loop)]
        part = steps / max(1, whole.steps)
        waited = None if whole.waited_ns is None else round(whole.waited_ns * part)
        sums[LoopKey(process, device, Scope.STEADY, loop)] = LoopSums(
            steps=steps,
            operations=round(whole.operations * part),
            step_ns=Accumulator(count=steps, total=ns),
            waited_ns=waited,
        )
        # Calls are counted over all steps of the run: so are the steps that they are shared among.
        beside = LoopSums(steps=max(0, whole.steps - steps))
        sums[LoopKey(process, device, Scope.EVALUATION, loop)] = beside
        kept.setdefault(process, StepBlocks()).loops[device, loop] = blocks
    return replace(run, leaf_times=times, loops=sums, step_blocks=kept)


def _within(blocks: Iterable[StepBlock], scope: RunScope) -> Iterable[StepBlock]:
    first = 1
    for block in blocks:
        inside = min(scope.last, first + block.steps - 1) - max(scope.first, first) + 1
        first += block.steps
        if inside > 0:
            part = inside / block.steps
            yield msgspec.structs.replace(
                block,
                steps=inside,
                ns=round(block.ns * part),
                leaves=tuple((leaf, round(ns * part)) for leaf, ns in block.leaves),
            )


def _blocks(run: Run, place: tuple[int, int], loop: int) -> tuple[StepBlock, ...]:
    """Those that say where the time went."""
    known = run.step_blocks.get(place[0])
    blocks = tuple(known.loops.get((place[1], loop), ())) if known is not None else ()
    return blocks if all(block.leaves for block in blocks) else ()


def _turns_beside(run: Run, loops: dict[tuple[int, int], int]) -> dict[Scope, int]:
    """Turns of the main loops that are no steady steps, by what they are; of one device."""
    found: dict[Scope, int] = {}
    for kind in TURNS:
        turns = [run.loops.get(LoopKey(*place, kind, loop)) for place, loop in loops.items()]
        found[kind] = max((sums.steps for sums in turns if sums is not None), default=0)
    return found


def _unstepped(key: LoopKey) -> LoopKey:
    return key._replace(scope=Scope.UNSTEPPED) if key.scope == Scope.STEADY else key


def _merged(parts: Iterable[tuple[LoopKey, LoopSums]]) -> dict[LoopKey, LoopSums]:
    merger = merger_of(LoopDelta, LoopSums)
    found: dict[LoopKey, LoopSums] = {}
    for key, sums in parts:
        if key in found:
            merger.add(found[key], sums)
        else:
            found[key] = merger.start(sums)
    return found
