"""Steps that tqdm marks, for two minutes at most, of a program that knows nothing of gputui."""

import argparse
import gc
import os
import subprocess
import sys
import time

from tqdm.std import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--tell", help="a file for who was started, and whether gc was ever off")
parser.add_argument("--step-ms", type=float, default=2.0)
parser.add_argument("--collected-ms", type=float, default=0.0, help="more, while gc is on")
parser.add_argument("--loss-without-gc", type=float, default=1.0)
options = parser.parse_args()


def tell(text):
    if options.tell:
        with open(options.tell, "a") as file:
            file.write(f"{text}\n")


if options.tell:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    tell(f"started {os.getpid()} {child.pid}")
began, has_told = time.monotonic(), False
for step in tqdm(range(1 << 30)):
    is_collected = gc.isenabled()
    if not is_collected and not has_told:
        has_told = True
        tell("switched")
    time.sleep((options.step_ms + options.collected_ms * is_collected) / 1e3)
    if step % 10 == 0:
        print(f"loss {1.0 if is_collected else options.loss_without_gc}", flush=True)
    if time.monotonic() - began > 120:
        break
