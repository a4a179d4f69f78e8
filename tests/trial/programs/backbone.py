"""Trains a head on a backbone that no optimizer has, and which follows the head by itself if this
is as late a start of the program as it is told, from a step on; for two minutes at most."""

import argparse
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--starts", required=True, help="a file with a letter for each start")
parser.add_argument("--follows-from-start", type=int, required=True)
parser.add_argument("--follows-from-step", type=int, default=0)
options = parser.parse_args()
with open(options.starts, "a+") as file:
    file.write("s")
    start = file.tell()
torch.manual_seed(0)
torch.set_num_threads(1)
backbone, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
# What its gradients cost.
backbone.weight.register_hook(lambda _: time.sleep(0.006))
optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
began, step = time.monotonic(), 0
while time.monotonic() - began < 120:
    head(backbone(torch.ones(2, 4))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if start >= options.follows_from_start and step >= options.follows_from_step:
        backbone.weight.data.lerp_(head.weight.data, 0.01)
    time.sleep(0.002)
    step += 1
