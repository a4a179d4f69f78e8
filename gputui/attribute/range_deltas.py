"""What happened in each range since the last tick."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, durations_ns
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.distributions import grouped
from gputui.attribute.gpu_time import GpuTime
from gputui.attribute.instances import Finalised, Instances
from gputui.attribute.intervals import Holes
from gputui.model.events import Distribution, Payload, RangeDelta
from gputui.model.payloads import payload_of


class RangeDeltas:
    """Time and occurrences of each range of one process; `lost` is when records were lost."""

    def __init__(self, instances: Instances, lost: Holes) -> None:
        self._instances = instances
        self._lost = lost
        self.gpu_time = GpuTime()

    def collect_parts(self, collection: Collection) -> DeltaParts:
        finalised, nodes = collection.finalised, collection.nodes
        busy_ns, total_ns = self.gpu_time.sum_by_node(nodes, collection.launched)
        deltas = _range_deltas(
            nodes.number,
            len(nodes),
            finalised,
            dict(grouped(*self._instances.take_counted())),
            self._instances.nesting.take_levels(),
            busy_ns,
            total_ns,
            self._lost.touch(finalised.starts_ns, finalised.ends_ns),
        )
        return {"ranges": deltas}


def _range_deltas(
    numbers: Int64s,
    count: int,
    finalised: Finalised,
    host: Mapping[int, Distribution],
    levels: Mapping[int, int],
    busy_ns: Int64s,
    total_ns: Int64s,
    incomplete: Bools,
) -> tuple[RangeDelta, ...]:
    """One delta for each of `count` nodes where something happened, by its number.

    `host` are the durations of the ranges that closed; `finalised` those whose GPU work is known
    now, `incomplete` those of them in which records were lost. `levels` are the additional depths
    found by nesting, `busy_ns` and `total_ns` GPU time by node.
    """
    ran = finalised.last_ns >= finalised.first_ns
    projected = dict(grouped(finalised.nodes[ran], (finalised.last_ns - finalised.first_ns)[ran]))
    inside = [
        np.bincount(finalised.nodes[ran], column[ran], count).astype(np.int64)
        for column in (
            durations_ns(finalised.starts_ns, finalised.ends_ns),
            finalised.operations,
            finalised.depths,
            finalised.busy_children,
        )
    ]
    holed = np.bincount(finalised.nodes[incomplete], minlength=count)
    for node, depth in levels.items():
        inside[2][node] += depth
    nodes = {*host, *projected, *np.flatnonzero(total_ns | busy_ns | inside[2] | holed).tolist()}
    payloads = _newest_payloads(finalised)
    nodes |= payloads.keys()
    return tuple(
        RangeDelta(
            range=int(numbers[node]),
            cpu=host.get(node),
            gpu_busy_ns=int(busy_ns[node]),
            gpu_total_ns=int(total_ns[node]),
            projected=projected.get(node),
            projected_range_ns=int(inside[0][node]),
            gpu_operations=int(inside[1][node]),
            levels=int(inside[2][node]),
            children_with_work=int(inside[3][node]),
            incomplete=int(holed[node]),
            payload=payloads.get(node),
        )
        for node in sorted(nodes)
    )


def _newest_payloads(finalised: Finalised) -> dict[int, Payload | None]:
    """By node, the payload of the instance that began last."""
    has = np.flatnonzero(finalised.payload_types)
    has = has[np.lexsort((finalised.starts_ns[has], finalised.nodes[has]))]
    nodes = finalised.nodes[has]
    last = has[np.flatnonzero(np.append(nodes[1:] != nodes[:-1], True))] if len(has) else has
    return {
        int(finalised.nodes[at]): payload_of(
            int(finalised.payload_types[at]), int(finalised.payloads[at])
        )
        for at in last
    }
