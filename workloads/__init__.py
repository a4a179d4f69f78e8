"""The catalogue of workloads: programs that do on a GPU what language models do.

Each is declared once (`workloads.declaration`), found by name (`workloads.registry`), and runs in a
process of its own: `python -m workloads NAME [--KEY VALUE ...]`. It shows what it does through NVTX
ranges, and its progress through a pipe of JSON lines (`workloads.report`); it depends on no
monitor, so it also runs by itself or under another profiler.

To write one, copy `workloads.template`; `workloads/inference` is a complete example.
"""
