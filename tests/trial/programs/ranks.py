"""Two ranks that train together over gloo, launched by the program itself."""

import os
import subprocess
import sys
import tempfile
import time

if "RANK" not in os.environ:
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, folder],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            )
            for rank in range(2)
        ]
        sys.exit(max(rank.wait() for rank in ranks))

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
began = time.monotonic()
step = 0
while True:
    going_on = torch.tensor([float(time.monotonic() - began < 240)])
    dist.broadcast(going_on, 0)
    if not going_on:
        break
    model(torch.ones(2, 8)).sum().backward()
    dist.all_reduce(model.weight.grad)
    line = f"rank {rank} step {step} {torch.get_float32_matmul_precision()}\n"
    os.write(1, line.encode())  # whole, beside the other's
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.002 * (1 + rank))
    step += 1
