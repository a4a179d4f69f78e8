"""A far end that does what none should: `misbehaving.py KIND gputui stream --token HEX …`.

It imports nothing of gputui, so that it starts quickly.
"""

from __future__ import annotations

import os
import signal
import sys
import time

HEADER = (
    b'{"event":"header","time_ns":1760000000000000000,"schema":3,"gputui_version":"0.1.0",'
    b'"python_version":"3.12.3","monotonic_ns":0,"interval_s":1.0,'
    b'"host":{"hostname":"\\u001b[31mred","system":"Linux","cpu_count":1,"memory_total_bytes":1}}\n'
)
SAMPLE = b'{"event":"sample","time_ns":1760000000000000000,"host":{"cpu_percent":93.0}}\n'


def put(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


STARTED = (
    b'{"event":"run_started","time_ns":1760000000000000000,"run":1,"kind":"command","name":"x",'
    b'"arguments":["x"],"parameters":{},"pid":7}\n'
)


def hello(schema: int = 3, more: bytes = b"") -> None:
    put(b'gputui %s {"schema":%d,"version":"9.9"%s}\n' % (token, schema, more))


def end(text: str, status: int) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    os._exit(status)


def listen() -> None:
    """Until the near end is gone, as a far end does."""
    while os.read(0, 4096):
        pass


kind, token = sys.argv[1], sys.argv[sys.argv.index("--token") + 1].encode()
if kind == "missing":
    end("bash: line 1: gputui: command not found", 127)
elif kind == "no-python":
    end("bash: /usr/local/bin/gputui: /opt/py/bin/python3: bad interpreter: No such file", 126)
elif kind == "old":
    end("gputui: there is no command 'stream' (did you mean --trace?)", 2)
elif kind == "newer":
    hello(schema=99)
elif kind == "latin":
    hello(more=b',"error":"\xe9"')
elif kind == "killed":
    hello()
    put(HEADER)
    os.kill(os.getpid(), signal.SIGKILL)
elif kind == "mute":
    listen()
elif kind == "noisy":
    while True:
        put(b"x" * 4096)
elif kind == "other":
    hello()
    put(b"<html>\n")
    listen()
elif kind == "frozen":
    hello()
    put(HEADER + SAMPLE[:20])
    time.sleep(600)
elif kind == "complains":
    hello()
    put(HEADER)
    end("x" * 100_000 + "\n\x1b]0;title\x07gputui: cannot go on", 1)
elif kind == "returns":  # a first time for a moment, then for good
    is_first = not os.path.exists(sys.argv[2])
    open(sys.argv[2], "w").close()
    hello()
    put(HEADER + SAMPLE)
    if is_first:
        end("Killed", 137)
    listen()
elif kind == "refuses" and "--run-id" in sys.argv:
    hello(more=b',"error":"there is no process 17"')
    end("", 1)
elif kind == "forgets" and "--run-id" in sys.argv:  # its recorder was killed
    hello(more=b',"recording":"/x.gputui"')
    put(HEADER + STARTED)
elif kind in ("answers", "refuses", "forgets"):  # as a far end of a machine without GPUs
    hello()
    put(HEADER + SAMPLE)
    while asked := os.read(0, 4096):
        for line in asked.splitlines():
            number = int(line.split()[1])
            put(b'{"event":"clock_read","time_ns":%d,"asked_ns":%d}\n' % (time.time_ns(), number))
