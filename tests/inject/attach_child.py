"""A program of torch's and nvtx's that nobody prepared: it checks its results, and counts.

Imports nothing of gputui. Lines of standard input ask: "steps N" makes N steps and tells how many
results were wrong; "block PATH" waits in C code that holds the interpreter's lock until somebody
writes to that pipe.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import warnings

import nvtx
import torch

torch.set_num_threads(1)
torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.second = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x)))


model = torch.nn.Sequential(*[Block() for _ in range(3)]).eval()
example = torch.randn(4, 16)
known = nvtx.annotate("made before", domain="early")


@nvtx.annotate("decorated before")
def decorated() -> None:
    pass


def step() -> bool:
    with nvtx.annotate("step"), known:
        decorated()
        nvtx.push_range("pushed", domain="early")
        right = torch.equal(model(example), expected)
        nvtx.pop_range(domain="early")
    return right


def keep_computing() -> None:
    with torch.no_grad():
        while not ended.is_set():
            if not torch.equal(model(example), expected):
                wrong.append(1)


wrong: list[int] = []
ended = threading.Event()
with torch.no_grad():
    expected = model(example)
    print("ready", flush=True)
    for line in sys.stdin:
        what, _, number = line.strip().partition(" ")
        if what == "steps":
            print(sum(not step() for _ in range(int(number))) + len(wrong), flush=True)
        elif what == "threads":
            for _ in range(int(number)):
                threading.Thread(target=keep_computing, daemon=True).start()
            print("started", flush=True)
        elif what == "block":
            pipe, byte = os.open(number, os.O_RDWR), ctypes.create_string_buffer(1)
            print("blocking", flush=True)
            ctypes.PyDLL(None).read(pipe, byte, 1)
            os.close(pipe)
        elif what == "filters":
            print(len(warnings.filters), flush=True)
