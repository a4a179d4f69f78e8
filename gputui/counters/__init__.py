"""The counters of one run: a sampler for each GPU that its processes use, and what the samples say
of the kernels and phases that ran.

Operations come from the attribution of each process, samples from the samplers; both wait here
until all operations of a time have arrived. A sampler that fails is one line, and the run goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from gputui.counters.sampler import (
    CounterSampler,
    amounts_to_percents,
    cupti_places,
    percents_to_amounts,
)
from gputui.counters.separation import (
    FEWEST_SAMPLES,
    MOST_SAMPLES,
    NOTHING_RAN,
    OTHERS,
    CounterSamples,
    Int64s,
    Operations,
    Rates,
    Separation,
    fit_clock,
    joined_operations,
    joined_samples,
)
from gputui.model.events import (
    MOST_COUNTED,
    MOST_SAMPLES_AT_ONCE,
    AnyEvent,
    CountedKernel,
    CountedPhase,
    GpuCounters,
    SampledCounters,
)

Bools = npt.NDArray[np.bool_]

LATE_NS = 1_000_000_000
"""How long samples wait beyond the moment up to which operations that ended have come: for those
that go on. Longer ones look as if nothing ran, and such samples are not used."""

MOST_OPERATIONS = 1 << 20
"""Kept of a GPU while they wait for their samples, 32 MiB; the oldest go first."""

MOST_WAITING = 1 << 17
"""Samples that wait, 15 MiB."""

FIRST_REFIT_NS, LAST_REFIT_NS = 4_000_000_000, 60_000_000_000
"""When the clock's offset is measured anew, each time after four times as long: CUPTI's clocks
drift apart, and at its beginning a program may hardly run anything yet."""

REFIT_SAMPLES = 600
"""What then waits until it can be measured, in samples."""

BYTES_PER_S = 200
"""What the figures may add to a recording, a device."""

USUAL_BYTES = 3000
"""Of an event with 18 kernels; the first ones have fewer."""

FIRST_PAUSE_NS = 2_000_000_000
LEAST_PAUSE_NS = 5_000_000_000

ACTIVE_PERCENT = 5.0
"""SM activity from which a sample without any operation is of something that was not seen."""

MOST_UNSEEN = 0.1
"""Share of such samples from which no figures are given: it then runs beside kernels too."""

# Share of the time in which nothing runs from which it is asked what the SMs do then.
_LEAST_IDLE = 0.02

OTHERS_USE_IT = "something that is not traced uses this GPU: its counters cannot be separated"

_TELLING = ("sm_active_percent", "tensor_active_percent", "memory_read_bytes", "issue_percent")
"""Counters by which the clock's offset is found: they follow what runs, and the others' noise would
only take longer."""

_SHAPE_BITS = 32
# The key of what is no kernel; keys of kernels are larger.
_COPIES = 1


class CountedOperations(NamedTuple):
    """Operations of one process as they were attributed: its devices' numbers, times, the session's
    numbers of the kernel (0 for what is none), its launch shape and the range that it counts in.
    """

    devices: Int64s
    starts_ns: Int64s
    ends_ns: Int64s
    kernels: Int64s
    shapes: Int64s
    ranges: Int64s


class CountedProcess(NamedTuple):
    """A process at a moment: until when all that had ended has come (None: all has), and which of
    some intervals touch a time in which operations were not recorded."""

    number: int
    until_ns: int | None
    is_unknown: Callable[[Int64s, Int64s], Bools]


class RunCounters:
    """Operations of a run's processes in, events out; `close` ends the samplers."""

    def __init__(self, keeps_samples: bool = False, in_windows: bool = False) -> None:
        """With `keeps_samples`, samples are among the events, too; `in_windows` says that kernels
        are traced now and then only."""
        self._in_windows = in_windows
        self._keeps_samples = keeps_samples
        self._gpus: dict[str, _CountedGpu] = {}

    def add(
        self, process: int, pid: int, operations: CountedOperations, gpu_of: Callable[[int], str]
    ) -> None:
        """Add operations of a process; `gpu_of` names a device as CUDA_VISIBLE_DEVICES would."""
        for device in np.unique(operations.devices).tolist():
            name = gpu_of(device)
            gpu = self._gpus.get(name)
            if gpu is None:
                gpu = self._gpus[name] = _CountedGpu(
                    CounterSampler(name, cupti_places([pid]), in_windows=self._in_windows),
                    process,
                    device,
                    self._keeps_samples,
                )
            of_device = operations.devices == device
            gpu.add(process, CountedOperations(*(column[of_device] for column in operations)))

    def hurry(self) -> None:
        """Say that a window of tracing has opened."""
        for sampler in self.samplers:
            sampler.hurry()

    def collect(
        self, now_ns: int, processes: Sequence[CountedProcess], ended: bool = False
    ) -> list[AnyEvent]:
        """What there is to say now; with `ended`, for the last time."""
        events: list[AnyEvent] = []
        for gpu in self._gpus.values():
            event = gpu.collect(now_ns, processes, ended)
            events += gpu.take_samples(now_ns)
            events += [event] if event is not None else []
        return events

    @property
    def samplers(self) -> list[CounterSampler]:
        """Of the GPUs used so far."""
        return [gpu.sampler for gpu in self._gpus.values()]

    def close(self) -> None:
        """End the samplers; may be called more than once."""
        for gpu in self._gpus.values():
            gpu.sampler.close()


class _CountedGpu:
    """One GPU: its sampler, what waits, and the sums by kernel and by phase."""

    def __init__(
        self, sampler: CounterSampler, process: int, device: int, keeps_samples: bool
    ) -> None:
        self.sampler = sampler
        self._keeps_samples = keeps_samples
        self._kept: list[CounterSamples] = []
        self._process = process
        self._device = device
        self._users: set[int] = set()
        self._samples: list[CounterSamples] = []
        self._operations: list[Operations] = []
        self._phases: list[Int64s] = []
        self._dropped_until_ns = 0
        """Until then operations are missing: they were too many to keep."""
        self._sums: SampleSums | None = None
        self._lengths: dict[int, tuple[int, float]] = {}
        """Of each key: how many operations there were, in samples or not, and how long together."""
        self._offset_ns: int | None = None
        self._fitted_ns, self._refit_ns = 0, FIRST_REFIT_NS
        self._due_ns = 0
        self._began_ns = 0
        self._bytes = 0
        self._said: str | None = None

    def add(self, process: int, operations: CountedOperations) -> None:
        """Keep operations until their samples have come."""
        self._users.add(process)
        if self.sampler.failure is not None and not self._samples:
            return
        keys = np.where(
            operations.kernels > 0,
            operations.kernels << _SHAPE_BITS | operations.shapes,
            _COPIES,
        )
        timed = operations.starts_ns > 0
        came = Operations(operations.starts_ns[timed], operations.ends_ns[timed], keys[timed])
        self._count(came)
        self._operations.append(came)
        self._phases.append(operations.ranges[timed])
        while sum(len(part.keys) for part in self._operations) > MOST_OPERATIONS:
            ends_ns = self._operations.pop(0).ends_ns
            self._dropped_until_ns = int(ends_ns.max(initial=self._dropped_until_ns))
            del self._phases[0]

    def _count(self, operations: Operations) -> None:
        """Take note of how long operations are."""
        keys, rows = np.unique(operations.keys, return_inverse=True)
        counts = np.bincount(rows, minlength=len(keys)).tolist()
        lengths = np.bincount(rows, operations.ends_ns - operations.starts_ns, len(keys)).tolist()
        for key, count, length in zip(keys.tolist(), counts, lengths, strict=True):
            if key in self._lengths or len(self._lengths) < _MOST_KEYS:
                before = self._lengths.get(key, (0, 0.0))
                self._lengths[key] = before[0] + count, before[1] + length

    def collect(
        self, now_ns: int, processes: Sequence[CountedProcess], ended: bool
    ) -> GpuCounters | None:
        users = [process for process in processes if process.number in self._users]
        batches = self.sampler.read()
        if ended:
            self.sampler.close()
        facts = self.sampler.facts
        if facts is not None:
            if self._sums is None:
                self._sums = SampleSums(facts.counters, self._lengths)
            self._samples += [percents_to_amounts(batch, facts.counters) for batch in batches]
            self._use_samples(self._sums, now_ns, users, ended)
        elif ended and self.sampler.failure is None:
            self.sampler.failure = "the run was over before its counters were sampled"
        failure = self.sampler.failure
        is_due = ended or failure != self._said or now_ns >= self._due_ns
        if not is_due or (facts is None and failure is None):
            return None
        self._said = failure
        return self._event(now_ns)

    def _use_samples(
        self, sums: SampleSums, now_ns: int, users: Sequence[CountedProcess], ended: bool
    ) -> None:
        samples = joined_samples(self._samples, len(sums.counters))
        samples = samples.pick(slice(-MOST_WAITING, None))
        complete = [user.until_ns for user in users if user.until_ns is not None]
        until_ns = min(complete, default=now_ns) - (0 if ended else LATE_NS)
        ready = int(np.searchsorted(samples.ends_ns, until_ns, side="right"))
        operations, phases = self._joined_operations()
        if not ready or not self._fit(samples.pick(slice(ready)), operations, now_ns, ended):
            self._samples = [samples]
            return
        self._samples = [samples.pick(slice(ready, None))]
        due = samples.pick(slice(ready)).moved(self._offset_ns or 0)
        unknown = due.starts_ns < self._dropped_until_ns
        for user in users:
            unknown |= user.is_unknown(due.starts_ns, due.ends_ns)
        sums.add(due, unknown, operations, phases)
        if self._keeps_samples:
            self._kept.append(due)
        needed = operations.ends_ns > due.ends_ns[-1]
        self._operations, self._phases = [operations.pick(needed)], [phases[needed]]

    def take_samples(self, now_ns: int) -> list[SampledCounters]:
        """The samples used since the last time, as events."""
        kept, self._kept = self._kept, []
        facts = self.sampler.facts
        if facts is None or not kept:
            return []
        samples = amounts_to_percents(joined_samples(kept, len(facts.counters)), facts.counters)
        firsts = range(0, len(samples.starts_ns), MOST_SAMPLES_AT_ONCE)
        return [
            self._samples_event(
                now_ns, facts.counters, samples.pick(slice(first, first + MOST_SAMPLES_AT_ONCE))
            )
            for first in firsts
        ]

    def _samples_event(
        self, now_ns: int, counters: tuple[str, ...], samples: CounterSamples
    ) -> SampledCounters:
        return SampledCounters(
            time_ns=now_ns,
            process=self._process,
            device=self._device,
            counters=counters,
            starts_ns=tuple(np.maximum(0, now_ns - samples.starts_ns).tolist()),
            lengths_ns=tuple((samples.ends_ns - samples.starts_ns).tolist()),
            values=tuple(
                tuple(_rounded(value) for value in row) for row in samples.amounts.tolist()
            ),
        )

    def _joined_operations(self) -> tuple[Operations, Int64s]:
        phases = np.concatenate(self._phases) if self._phases else np.empty(0, np.int64)
        return joined_operations(self._operations), phases

    def _fit(
        self, samples: CounterSamples, operations: Operations, now_ns: int, ended: bool
    ) -> bool:
        """Measure the clock's offset where that is due; whether samples can be used."""
        if self._fitted_ns and now_ns - self._fitted_ns < self._refit_ns:
            return True
        needed = REFIT_SAMPLES if self._fitted_ns else MOST_SAMPLES
        if len(samples.starts_ns) < needed and not ended:
            return False
        counters = self.sampler.facts.counters if self.sampler.facts is not None else ()
        telling = [place for place, name in enumerate(counters) if name in _TELLING]
        if telling:
            samples = samples._replace(amounts=samples.amounts[:, telling])
        fit = fit_clock(samples, operations, self._offset_ns)
        if self._fitted_ns:
            self._refit_ns = min(LAST_REFIT_NS, 4 * self._refit_ns)
        self._fitted_ns = now_ns
        if fit is not None:
            self._offset_ns = fit.offset_ns
        return True

    def _event(self, now_ns: int) -> GpuCounters:
        facts, sums = self.sampler.facts, self._sums
        event = GpuCounters(
            time_ns=now_ns,
            process=self._process,
            device=self._device,
            unavailable_reason=self.sampler.failure,
        )
        if facts is None or sums is None:
            self._due_ns = now_ns + LEAST_PAUSE_NS
            return event
        kernels, phases = sums.rows()
        event = replace(
            event,
            unavailable_reason=event.unavailable_reason
            or (OTHERS_USE_IT if sums.is_shared else None),
            chip=facts.chip,
            cupti_version=facts.cupti_version,
            interval_ns=facts.interval_ns,
            counters=facts.counters,
            samples=sums.samples,
            unused_samples=sums.unused,
            lost_samples=self.sampler.lost,
            clock_offset_ns=self._offset_ns,
            amounts_per_s=_UNIT,
            mean=sums.mean,
            kernels=tuple(kernels),
            phases=tuple(phases),
        )
        # As much as they may take since the first of them.
        self._began_ns = self._began_ns or now_ns
        pause_ns = FIRST_PAUSE_NS if not sums.samples else LEAST_PAUSE_NS
        size = len(msgspec.json.encode(event))
        self._bytes += size
        # The next one and that of the end are of this size, too.
        ahead = self._bytes + 2 * max(size, USUAL_BYTES)
        within_ns = self._began_ns + ahead * 1_000_000_000 // BYTES_PER_S
        self._due_ns = max(now_ns + pause_ns, within_ns)
        return event


class SampleSums:
    """Sums of the samples of one GPU that can be used, by kernel and by phase."""

    def __init__(self, counters: tuple[str, ...], lengths: Mapping[int, tuple[int, float]]) -> None:
        """`lengths` has of each key how many operations there are, and how long together."""
        self.counters = counters
        self._by_kernel = Separation(len(counters), [name not in _BY_TIME for name in counters])
        self._lengths = lengths
        self._usual_ns: dict[int, float] = {}
        """How long an operation of each key was in the median when it first came."""
        self._kinds: dict[int, dict[tuple[int, int], int]] = {}
        """Of each key the numbers of its kinds, by class of length and the key before."""
        self._key_of_kind: list[int] = []
        self._by_phase = Separation(len(counters))
        self._amounts = np.zeros(len(counters))
        self._length_ns = 0.0
        self.unused = 0
        self._unseen = 0
        self._idle_activity = 0.0
        """Percent of the SMs that are surely active while nothing is known to run."""

    @property
    def samples(self) -> int:
        """How many samples the figures are of."""
        return self._by_kernel.samples

    @property
    def is_shared(self) -> bool:
        """Whether something that was not seen runs on the GPU, and so beside what was seen: in many
        samples nothing else ran, or the SMs work while nothing runs."""
        if self._unseen > max(FEWEST_SAMPLES, MOST_UNSEEN * (self.samples + self._unseen)):
            return True
        return self._idle_activity > ACTIVE_PERCENT

    @property
    def mean(self) -> tuple[float, ...]:
        """Of each counter over all samples used."""
        if not self._length_ns:
            return ()
        rates = (self._amounts / self._length_ns).tolist()
        return tuple(_rounded(rate) for rate in rates)

    def add(
        self, samples: CounterSamples, unknown: Bools, operations: Operations, phases: Int64s
    ) -> None:
        """Add samples, but those for which it is unknown what ran, with all operations that did;
        `phases` has the range of each."""
        unseen = self._see_nothing(samples, operations) & ~unknown
        used = samples.pick(~(unknown | unseen))
        self._unseen += int(np.count_nonzero(unseen))
        self.unused += len(samples.starts_ns) - len(used.starts_ns)
        self._by_kernel.add(used, self._by_kind(operations))
        self._by_phase.add(used, operations._replace(keys=phases))
        self._amounts += used.amounts.sum(0)
        self._length_ns += float((used.ends_ns - used.starts_ns).sum())

    def _over_all(self, rates: Rates) -> Rates:
        """Amounts by how long operations are on average, in samples or not: they move as much each
        time, but the first second has half the samples of a short run, and a GPU that is cool is
        faster. Products of 8,192³ seemed 3 % faster than they were (H200)."""
        factors = np.ones(len(rates.keys))
        for row, key in enumerate(rates.keys.tolist()):
            count, length_ns = self._lengths.get(key, (0, 0.0))
            if length_ns > 0 and rates.mean_ns[row] > 0:
                factors[row] = rates.mean_ns[row] * count / length_ns
        factors = np.clip(factors, 1 / _MOST_UNLIKE, _MOST_UNLIKE)[:, None]
        is_amount = np.array([not name.endswith("_percent") for name in self.counters])
        scale = np.where(is_amount, factors, 1.0)
        return rates._replace(rates=rates.rates * scale, errors=rates.errors * scale)

    def _by_kind(self, operations: Operations) -> Operations:
        """The same, in order, with numbers of kinds as keys: by how long each was, too, and by what
        ran before it. Products of one kernel and grid may have matrices of other sizes, and were
        said to move 21 % more than they did where such of 19 and 50 MB were taken together. What
        ran before decides what is in the L2 cache: products of 52 MB of which 15 were there took 5
        from one neighbour and gave 5 to another (H200)."""
        operations = operations.in_order()
        lengths_ns = np.maximum(1, operations.ends_ns - operations.starts_ns).astype(np.float64)
        keys, rows = np.unique(operations.keys, return_inverse=True)
        for row, key in enumerate(keys.tolist()):
            if key not in self._usual_ns:
                if len(self._usual_ns) >= _MOST_KEYS:
                    self._usual_ns.clear()
                self._usual_ns[key] = float(np.median(lengths_ns[rows == row]))
        usual_ns = np.array([self._usual_ns[key] for key in keys.tolist()])[rows]
        steps = np.rint(np.log(lengths_ns / usual_ns) / _LENGTH_STEP).astype(np.int64)
        classes = np.clip(steps + _LENGTHS // 2, 0, _LENGTHS - 1)
        before = np.concatenate((rows[:1], rows[:-1]))
        codes = (rows * _LENGTHS + classes) * len(keys) + before
        distinct, places = np.unique(codes, return_inverse=True)
        shares = np.bincount(places, lengths_ns) / max(1.0, lengths_ns.sum())
        numbers = np.empty(len(distinct), np.int64)
        for place in np.argsort(-shares, kind="stable").tolist():
            code = int(distinct[place])
            row, of_length = divmod(code // len(keys), _LENGTHS)
            key_before = int(keys[code % len(keys)])
            is_worth = bool(shares[place] >= _WORTH_A_KIND)
            numbers[place] = self._kind(int(keys[row]), of_length, key_before, is_worth)
        return operations._replace(keys=numbers[places])

    def _kind(self, key: int, of_length: int, before: int, is_worth: bool) -> int:
        """The number of a kind; of what is hardly there that of the same key most like it, as what
        it does would else be taken for that of all other operations."""
        of_key = self._kinds.get(key, {})
        kind = of_key.get((of_length, before))
        if kind is not None:
            return kind
        is_full = len(self._key_of_kind) >= _MOST_KEYS
        if of_key and (not is_worth or is_full):
            return of_key[min(of_key, key=lambda k: (k[1] != before, abs(k[0] - of_length)))]
        if is_full:
            return OTHERS
        self._kinds[key] = of_key | {(of_length, before): len(self._key_of_kind)}
        self._key_of_kind.append(key)
        return len(self._key_of_kind) - 1

    def _see_nothing(self, samples: CounterSamples, operations: Operations) -> Bools:
        """Which samples saw the SMs work while no operation is known to have run."""
        if "sm_active_percent" not in self.counters:
            return np.zeros(len(samples.starts_ns), np.bool_)
        active = samples.amounts[:, self.counters.index("sm_active_percent")]
        active = active / (samples.ends_ns - samples.starts_ns)
        begun = np.searchsorted(np.sort(operations.starts_ns), samples.ends_ns)
        ended = np.searchsorted(np.sort(operations.ends_ns), samples.starts_ns, side="right")
        unseen: Bools = (active > ACTIVE_PERCENT) & (begun == ended)
        return unseen

    def rows(self) -> tuple[list[CountedKernel], list[CountedPhase]]:
        """Of kernels and phases, those that ran longest; none where the GPU is shared."""
        rates = self._over_all(_over_kinds(self._by_kernel.rates(), self._key_of_kind))
        self._idle_activity = self._activity_without(rates)
        if self.is_shared:
            return [], []
        kernels = [
            CountedKernel(key >> _SHAPE_BITS, key & ((1 << _SHAPE_BITS) - 1), *figures)
            for key, figures in _largest(rates, _COPIES + 1)
        ]
        phases = [
            CountedPhase(key, *figures) for key, figures in _largest(self._by_phase.rates(), 1)
        ]
        return kernels, phases

    def _activity_without(self, rates: Rates) -> float:
        idle = int(np.flatnonzero(rates.keys == NOTHING_RAN)[0])
        if (
            "sm_active_percent" not in self.counters
            or rates.time_ns[idle] < _LEAST_IDLE * rates.time_ns.sum()
        ):
            return 0.0
        place = self.counters.index("sm_active_percent")
        return float(rates.rates[idle, place] - rates.errors[idle, place])


# Classes of lengths, each a quarter longer than the one before, and keys whose usual one is kept.
_LENGTHS = 16
_LENGTH_STEP = math.log(1.25)
_MOST_KEYS = 1 << 14

# Times that operations in samples may be longer or shorter than all of their key.
_MOST_UNLIKE = 1.5

# Counters of which an operation counts as much in each nanosecond, whatever it does.
_BY_TIME = {"sm_cycles", "sm_active_percent", "occupancy_percent"}

# Share of the time from which operations of a length, after the same one, are a kind.
_WORTH_A_KIND = 0.005

# Share of a key's time whose rates must be known: the rest may be a length that was hardly sampled.
_LEAST_TOLD = 0.5

# How far the rest's rates may be from those, as a share: a class of lengths.
_UNLIKE_TOLD = 0.25


def _over_kinds(rates: Rates, key_of_kind: Sequence[int]) -> Rates:
    """The rates of keys whatever their kinds, by time; errors as if all were one."""
    kinds = rates.keys.tolist()
    keys = np.array([key_of_kind[kind] if kind >= 0 else kind for kind in kinds], np.int64)
    is_finite = np.isfinite(rates.errors)
    errors = np.where(is_finite, rates.errors, 0.0)
    merged = []
    for key in dict.fromkeys(keys.tolist()):
        of_key = keys == key
        time_ns = rates.time_ns[of_key]
        told_ns = time_ns @ is_finite[of_key]
        told_share = told_ns / max(1.0, float(time_ns.sum()))
        share = np.maximum(told_ns, 1.0)
        mean_rates = time_ns @ (rates.rates[of_key] * is_finite[of_key]) / share
        unlike = (1 - told_share) * _UNLIKE_TOLD * np.abs(mean_rates)
        merged.append(
            (
                key,
                time_ns.sum(),
                rates.alone_ns[of_key].sum(),
                time_ns.sum() / max(1e-9, (time_ns / np.maximum(1.0, rates.mean_ns[of_key])).sum()),
                mean_rates,
                np.where(
                    told_share >= _LEAST_TOLD, time_ns @ errors[of_key] / share + unlike, np.inf
                ),
            )
        )
    return Rates(*(np.array(column) for column in zip(*merged, strict=True)))


# A nanosecond's amounts, as those of the samples: GB/s.
_UNIT = 1e9

_DIGITS = 4
# Of the time of everything: what ran less is no row.
_LEAST_SHARE = 0.01

_MOST_ROWS = 24


# Of a row: time, time alone, rates, errors.
_Figures = tuple[int, int, tuple[float | None, ...], tuple[float | None, ...]]


def _largest(rates: Rates, least_key: int) -> list[tuple[int, _Figures]]:
    """The keys that ran longest, with what a row of the event has of each."""
    rows = np.flatnonzero(rates.keys >= least_key)
    rows = rows[rates.time_ns[rows] > _LEAST_SHARE * max(1.0, float(rates.time_ns[1:].sum()))]
    rows = rows[np.argsort(-rates.time_ns[rows], kind="stable")][: min(_MOST_ROWS, MOST_COUNTED)]
    figures_by_key: list[tuple[int, _Figures]] = []
    for row in rows.tolist():
        values, errors = [], []
        for value, error in zip(rates.rates[row].tolist(), rates.errors[row].tolist(), strict=True):
            is_known = math.isfinite(error)
            values.append(_rounded_by(max(0.0, value), error) if is_known else None)
            errors.append(float(f"{error:.2g}") if is_known else None)
        figures = (int(rates.time_ns[row]), int(rates.alone_ns[row]), tuple(values), tuple(errors))
        figures_by_key.append((int(rates.keys[row]), figures))
    return figures_by_key


def _rounded_by(value: float, error: float) -> float:
    """To a tenth of its error, and to four digits at most."""
    if error > 0:
        value = round(value, min(15, 1 - math.floor(math.log10(error))))
    return _rounded(value)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
