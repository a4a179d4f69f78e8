"""What a GPU's hardware counters say of the kernels that ran on it, where they are sampled."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gputui.model.events.base import (
    About,
    Amount,
    Event,
    Integer,
    KernelNumber,
    ProcessNumber,
    RangeNumber,
    ShapeNumber,
)

MOST_COUNTED = 64
"""Kernels, and phases, of one event: those that ran longest."""


class CountedKernel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A kernel of one launch shape (0: of all), by the counters of `GpuCounters.counters`: its time
    in the samples, how much of it nothing else ran, and of each counter the rate while it ran and
    half of its 90 % interval; null where the samples cannot tell.

    A rate is in percent where the counter's name ends in `_percent`, else per second.
    """

    kernel: KernelNumber
    shape: ShapeNumber
    time_ns: Amount
    alone_ns: Amount
    rates: tuple[float | None, ...] = ()
    errors: tuple[float | None, ...] = ()


class CountedPhase(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The same of what a range launched, and of nothing inside it."""

    range: RangeNumber
    time_ns: Amount
    alone_ns: Amount
    rates: tuple[float | None, ...] = ()
    errors: tuple[float | None, ...] = ()


class GpuCounters(Event, frozen=True, kw_only=True, tag="gpu_counters"):
    """A GPU's sampled counters, from the first sample to `time_ns`: sums, of which a later event
    replaces an earlier one. `device` is the process's own number, and one of several processes
    stands for all on that GPU.

    `unavailable_reason` is one line for people, where nothing is sampled, or no more.
    """

    about = About.PROCESS
    repeated_for = ("process", "device")

    process: ProcessNumber
    device: Integer
    unavailable_reason: str | None = None
    chip: str = ""
    cupti_version: Integer | None = None
    interval_ns: Amount | None = None
    """How long a sample is meant to be."""
    counters: tuple[str, ...] = ()
    samples: Amount = 0
    unused_samples: Amount = 0
    """Taken while it was not known what ran: between windows of tracing, or of other processes."""
    lost_samples: Amount = 0
    clock_offset_ns: Integer | None = None
    """What was added to the samples' times so that they fit the kernels'."""
    mean: tuple[float, ...] = ()
    """Of each counter over all samples that are used: the whole GPU's, busy or not."""
    kernels: Annotated[tuple[CountedKernel, ...], Meta(max_length=MOST_COUNTED)] = ()
    phases: Annotated[tuple[CountedPhase, ...], Meta(max_length=MOST_COUNTED)] = ()
