"""A small training program that knows nothing of gputui, for four minutes at most."""

import argparse
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--say", action="store_true", help="what each step computed with")
parser.add_argument("--report-ms", type=float, default=0.0)
parser.add_argument("--dies-of-tf32", action="store_true")
parser.add_argument("--pid-file")
options = parser.parse_args()


class Rows(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.full((16,), (index % 7) / 7)


def report(step):
    if options.report_ms:
        time.sleep(options.report_ms / 1e3)
    return step


def train():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    began = time.monotonic()
    for step, rows in enumerate(DataLoader(Rows(), batch_size=4)):
        loss = model(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        precision = torch.get_float32_matmul_precision()
        if options.dies_of_tf32 and precision == "high":
            print("tf32 is not for me", flush=True)
            os._exit(3)
        at = time.perf_counter()
        number = report(step)
        took_ms = 1e3 * (time.perf_counter() - at)
        if options.say:
            print("step", step, precision, number, loss.item(), took_ms, flush=True)
        optimizer.step()
        time.sleep(0.001)
        if options.pid_file and step == 3:
            with open(options.pid_file, "w") as file:
                file.write(str(os.getpid()))
        if time.monotonic() - began > 240:
            break


if __name__ == "__main__":
    train()
