"""A GPU's sampled counters as tracks of a Chrome trace."""

from __future__ import annotations

import json

from gputui.model.events import SampledCounters
from gputui.model.leaves import Leaf
from gputui.render.chrome import counter_lines
from tests.events_for_tests import gpu, header
from tests.report.test_verdict import a_run, delta


def test_each_counter_is_a_track_in_the_order_of_time():
    _, run = a_run(header(gpu()), delta({Leaf.MATMUL: 1.0}))
    event = SampledCounters(
        time_ns=10_000_000,
        process=1,
        device=0,
        counters=("tensor_active_percent", 'memory_read_bytes"\x1b[2J'),
        starts_ns=(2_000_000, 1_800_000),
        lengths_ns=(200_000, 200_000),
        values=((50.0, 2e5), (75.0, float("inf"))),
    )
    lines = [json.loads(line.rstrip(",\n")) for line in counter_lines(run, 0, [event], 1)]
    found = [(line["name"], line["ts"], line["args"]["value"]) for line in lines]
    assert found[:2] == [
        ("sampled tensor active (%)", 8000.0, 50.0),
        ("sampled tensor active (%)", 8200.0, 75.0),
    ]
    [(name, moment_us, rate)] = found[2:]
    assert "\x1b" not in name
    assert (moment_us, rate) == (8000.0, 1e9)
    assert list(counter_lines(run, 0, [event], 2)) == []
