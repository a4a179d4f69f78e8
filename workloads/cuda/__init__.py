"""`cuda`: a CUDA C++ program of the user's, compiled here and run.

The program is a child of this process, so whatever monitors this process sees its kernels. Ranges:
`compile` and `run`, once each.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import DEVICE

CUDA = Workload(
    name="cuda",
    summary="CUDA C++ compiled by nvcc and run; with a sample matmul",
    description=(
        "Compiles one .cu file with nvcc for this machine's GPU and runs the program. Without "
        "a file it uses a sample from the package: a matrix product as a plain, a "
        "tiled and a register-blocked kernel, each checked on the host. The program's output is "
        "shown line by line; lines that read NAME=NUMBER become rows of a table."
    ),
    parameters=(
        Parameter("file", "text", "", "a .cu file; empty for the sample matmul"),
        Parameter("arguments", "text", "",
                  "arguments of the program, split at spaces; the sample takes the size: 1024"),
        Parameter("flags", "text", "-O3",
                  "arguments of nvcc, split at spaces, after the GPU's architecture"),
        Parameter("ptx", "text", "",
                  "a file to write the PTX to, the code for the virtual machine (nvcc -ptx)"),
        Parameter("nvcc", "text", "nvcc", "the compiler, by name or by path"),
        DEVICE,
    ),
    presets=(
        Preset("matmul", "the sample at 1024", {"arguments": "1024"}),
        Preset("large-matmul", "the sample at 4096", {"arguments": "4096"}),
    ),
    phases=("compile", "run"),
    results=(
        Figure("source", "what was compiled"),
        Figure("compiler", "nvcc's release"),
        Figure("architecture", "what it was compiled for"),
        Figure("compile_s", "nvcc's time"),
        Figure("ptx_file", "where the PTX was written"),
        Figure("program", "ran, or why it did not"),
        Figure("runs", "of the program: 0 without a GPU"),
        Figure("run_s", "the program's time"),
        Figure("exit_status", "the program's"),
        Figure("output_lines", "lines it wrote"),
    ),
    tables=(
        Table(
            "cuda_output",
            "Figures the program printed",
            (Figure("name", "before the equals sign"), Figure("value", "after it")),
        ),
        Table(
            "ptx_instructions",
            "PTX instructions, the most frequent first",
            (Figure("kernel", "the function, as the compiler names it"),
             Figure("instruction", "with its types, as in fma.rn.f32"),
             Figure("count", "in the code, not in execution")),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=12,
)  # fmt: skip
