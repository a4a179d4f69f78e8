"""One rank of tests/gpu/late_trials.py: data parallel steps, trial after trial."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

import nvtx
import torch
import torch.distributed as dist
from torch import nn

SPEC = json.loads(sys.argv[1])
STEPS, MORE_STEPS, WARMUP = 16, 24, 20
"""Of a trial; more of one in which nobody is late, in which chance says more."""

SLEEP_S = 0.03  # more than the GPU's part of a step, which would hide it
WIDTH, LAYERS, ROWS = (64, 2, 64) if SPEC["cpu"] else (4096, 6, 6144)


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu" if SPEC["cpu"] else f"cuda:{os.environ['LOCAL_RANK']}")
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if SPEC["cpu"] else "nccl")
    with device:
        layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
        model = nn.Sequential(*layers)
        rows = torch.randn(2 * ROWS, WIDTH)
    gradients = [parameter for parameter in model.parameters() if parameter.ndim > 1]

    def reduce() -> None:
        for parameter in gradients:
            # Gloo has no ranges of its own.
            gloo = nvtx.annotate("all_reduce", domain="comm", payload=parameter.nbytes)
            with gloo if SPEC["cpu"] else contextlib.nullcontext():
                dist.all_reduce(parameter.grad)

    def step(kind: str, late: list[int], synchronized: bool) -> None:
        with nvtx.annotate("step"):
            with nvtx.annotate("load"):
                x = rows[: ROWS + (ROWS // 2 if kind == "longer" and rank in late else 0)]
                if kind in ("sleep", "two") and rank in late:
                    time.sleep(SLEEP_S)
            with nvtx.annotate("forward"):
                loss = model(x).square().mean()
            with nvtx.annotate("backward"):
                loss.backward()
            with nvtx.annotate("sync"):
                reduce()
            with nvtx.annotate("optimizer"):
                for parameter in model.parameters():
                    parameter.grad = None
            if synchronized:
                with nvtx.annotate("log"):
                    loss.item()

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()

    def is_over() -> bool:
        over = torch.tensor(float(time.time() > SPEC["until_s"]), device=device)
        dist.all_reduce(over)  # or one rank goes on, and waits for the others
        return bool(over)

    for _ in range(WARMUP):
        step("none", [], False)
    kinds = ["none", "sleep", *(() if SPEC["cpu"] else ("longer",)), *(("two",) * (ranks > 3))]
    trials = []
    for number in range(SPEC["trials"] * len(kinds)):
        kind = kinds[number % len(kinds)]
        first = (number // len(kinds)) % ranks
        others = [(first + 1) % ranks] if kind == "two" else []
        late = [] if kind == "none" else sorted([first, *others])
        settle()
        time.sleep(SPEC["rest_s"])
        if is_over():
            break
        settle()
        began_ns = time.time_ns()
        # Every other time CPUs run ahead of their GPUs. Then two that sleep stay as far apart as
        # they began, and the later one hides the other: two late ones log in each step.
        synchronized = kind == "two" or (number // len(kinds)) % 2 == 1
        for _ in range(MORE_STEPS if kind == "none" else STEPS):
            step(kind, late, synchronized)
        settle()
        trials.append((kind, late, began_ns, time.time_ns()))
    time.sleep(SPEC["rest_s"])
    if rank == 0:
        with open(SPEC["out"], "w", encoding="utf-8") as file:
            json.dump(trials, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
