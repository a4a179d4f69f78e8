"""Run in a child: reads the machine as commands on stdin say, prints events as JSON lines.

Waits for the driver's answers as long as they take, unless its argument is "hasty".
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from functools import partial

import msgspec

from gputui.collect.live import Sampler, read_once
from gputui.collect.nvml import start_driver
from gputui.collect.nvml.gpus import Nvml
from gputui.collect.nvml.opening import glance
from gputui.model.events import AnyEvent

if sys.argv[1:] != ["hasty"]:
    import tests.collect.patience  # noqa: F401


def emit(events: Sequence[AnyEvent]) -> None:
    print(msgspec.json.encode(list(events)).decode(), flush=True)


def main() -> None:
    sampler = None
    for line in sys.stdin:
        command = json.loads(line)
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if command.get("visible") is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = command["visible"]
        match command["do"]:
            case "once":
                emit(read_once(command["only"]))
            case "start":
                sampler = Sampler(
                    command["interval_s"], arguments=("--once", "x"),
                    energy=partial(bool, command.get("energy", True)),
                )  # fmt: skip
                sampler.start(emit)
            case "interval":
                assert sampler is not None
                sampler.set_interval(command["interval_s"])
            case "glance":
                print(json.dumps(glance(command["only"])), flush=True)
            case "energy":
                assert sampler is not None
                sampler.read_energy()
            case "stop":
                assert sampler is not None
                sampler.stop()
                names = [thread.name for thread in threading.enumerate()]
                print(json.dumps({"sampler_alive": "sampler" in names}), flush=True)
            case "open":
                start_driver()
                nvml = Nvml(open_timeout_s=command["timeout_s"])
                nvml.close()
                print(json.dumps(nvml.unavailable_reason), flush=True)


main()
