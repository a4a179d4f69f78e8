"""`cuda`: a CUDA C++ program of the user's, compiled here and run.

The program is a child of this process, so whatever monitors this process sees its kernels. Ranges:
`compile` and `run`, once each.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import DEVICE

CUDA = Workload(
    name="cuda",
    summary="CUDA C++ source compiled with nvcc and run; includes a sample matmul",
    description=(
        "Compiles one .cu file with nvcc for this machine's GPU and runs the program. Without "
        "a file it uses a sample from the package: a matrix product as a plain, a "
        "tiled and a register-blocked kernel, each checked on the host. The program's output is "
        "shown line by line; lines that read NAME=NUMBER become rows of a table."
    ),
    parameters=(
        Parameter(
            name="file", kind="text", default="", help="a .cu file; empty for the sample matmul"
        ),
        Parameter(
            name="arguments",
            kind="text",
            default="",
            help="arguments of the program, split at spaces; the sample takes the size: 1024",
        ),
        Parameter(
            name="flags",
            kind="text",
            default="-O3",
            help="arguments of nvcc, split at spaces, after the GPU's architecture",
        ),
        Parameter(
            name="nvcc", kind="text", default="nvcc", help="the compiler, by name or by path"
        ),
        DEVICE,
    ),
    presets=(
        Preset(name="matmul", help="the sample at 1024", values={"arguments": "1024"}),
        Preset(name="large-matmul", help="the sample at 4096", values={"arguments": "4096"}),
    ),
    phases=("compile", "run"),
    results=(
        Figure(name="source", help="what was compiled"),
        Figure(name="compiler", help="nvcc's release"),
        Figure(name="architecture", help="what it was compiled for"),
        Figure(name="compile_s", unit="s", help="nvcc's time"),
        Figure(name="run_s", unit="s", help="the program's time"),
        Figure(name="exit_status", help="the program's"),
        Figure(name="output_lines", help="lines it wrote"),
    ),
    tables=(
        Table(
            name="cuda_output",
            title="Figures the program printed",
            columns=(
                Figure(name="name", help="before the equals sign"),
                Figure(name="value", help="after it"),
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=12,
)
