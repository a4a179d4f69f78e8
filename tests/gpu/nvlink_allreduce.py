"""NVLink rates that gputui shows beside the bytes an all-reduce moved.

    NCCL_NVLS_ENABLE=0 python tests/gpu/nvlink_allreduce.py

Needs torch and two GPUs or more. A ring over n GPUs sends, and receives, 2 (n - 1) / n times the
buffer from each of them (NCCL's own account of bus bandwidth); with NVLink SHARP, which the
variable turns off, the switch would add up and less would move.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

SIZE_BYTES = 512 << 20
WINDOWS = 6
BATCH = 8


def work(rank: int, world: int, done: Any, stop: Any) -> None:
    """All-reduces until `stop`; `done` counts those that ended, on rank 0."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    buffer = torch.zeros(SIZE_BYTES // 2, dtype=torch.bfloat16, device="cuda")
    more = torch.ones(1, device="cuda")
    while more.item():
        for _ in range(BATCH):
            dist.all_reduce(buffer)
        if rank == 0 and stop.is_set():
            more.zero_()
        dist.broadcast(more, 0)
        torch.cuda.synchronize()
        if rank == 0:
            done.value += BATCH
    dist.destroy_process_group()


def main() -> None:
    """Runs one process a GPU and prints a line a window."""
    from gputui.collect.machine_reader import MachineReader
    from gputui.model.events import GpuStatus, MachineSample

    machine = MachineReader(None, (), 1.0)
    world = len(machine.header.gpus)
    for facts in machine.header.gpus:
        print(
            f"GPU {facts.index}: {facts.nvlink_count} links of {facts.nvlink_link_bytes_per_s} "
            f"bytes/s each way, topology {facts.topology}"
        )
    if world < 2:
        sys.exit("needs two GPUs")
    context = multiprocessing.get_context("spawn")
    done, stop = context.Value("q", 0), context.Event()
    workers = [
        context.Process(target=work, args=(rank, world, done, stop)) for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    while done.value < 5 * BATCH:
        if not all(worker.is_alive() for worker in workers):
            sys.exit("a worker ended")
        time.sleep(0.1)
    factor = 2 * (world - 1) / world
    print("\n| window | all-reduce | GPU | NVLink in | difference | NVLink out | difference |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    machine.tick()
    before, at = done.value, time.perf_counter()
    for window in range(WINDOWS):
        time.sleep(1.0)
        events = machine.tick()
        now, now_at = done.value, time.perf_counter()
        rate = factor * SIZE_BYTES * (now - before) / (now_at - at) / 1e9
        before, at = now, now_at
        (sample,) = [event for event in events if isinstance(event, MachineSample)]
        for gpu in sample.gpus:
            cells = []
            for told in (gpu.nvlink_rx_bytes_per_s, gpu.nvlink_tx_bytes_per_s):
                if told is None:
                    cells += ["n/a", "-"]
                else:
                    cells += [f"{told / 1e9:.1f} GB/s", f"{100 * (told / 1e9 / rate - 1):+.1f} %"]
            print(f"| {window} | {rate:.1f} GB/s | {gpu.index} | {' | '.join(cells)} |")
        for event in events:
            if isinstance(event, GpuStatus):
                print(f"GPU {event.gpu}: {event.nvlink_active_count} links up")
    stop.set()
    for worker in workers:
        worker.join(30)
    machine.close()


if __name__ == "__main__":
    main()
