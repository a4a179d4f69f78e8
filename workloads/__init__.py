"""The catalogue of workloads: programs that do on a GPU what language models do.

Each is declared once (`workloads.declaration`), found by name (`workloads.registry`), and runs
in a process of its own: `python -m workloads NAME [--KEY VALUE ...]`. It tells what it does
through NVTX ranges, and how far it is through a pipe of JSON lines (`workloads.report`); it
knows no monitor, so that it runs as well by itself or under another profiler.

Before writing one, copy `workloads.template`; `workloads/inference` is a whole one to read.
"""
