"""A checkpoint on disk: made here, or the user's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import nvtx
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import CannotRun
from ..train.model import Decoder
from ..train.shapes import Shape

WRITE = nvtx.annotate("write")


@contextmanager
def made_checkpoint(shape: Shape, seed: int) -> Iterator[Path]:
    """A temporary file with the fp32 weights of a model of `shape`.

    Raises CannotRun, with the sum, if the temporary folder's disk cannot hold it.
    """
    with TemporaryDirectory(prefix="gputui-checkpoint-") as folder:
        needed, free = 4 * shape.parameters, shutil.disk_usage(folder).free
        if needed > free:
            raise CannotRun(
                f"needs {needed / 2**30:.1f} GiB of disk = 4 bytes × {shape.parameters:,} "
                f"parameters; {folder} has {free / 2**30:.1f} GiB free; set TMPDIR or a smaller "
                "size"
            )
        path = Path(folder, "model.safetensors")
        with WRITE:
            model = Decoder(shape, 1, naive=True)
            model.initialise(seed)
            # Each storage once: GPT-2's head is its token table.
            save_file({name: weight.detach() for name, weight in model.named_parameters()}, path)
        del model
        yield path


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of the file, each in its own memory. Raises CannotRun if it is not such a
    file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        line = " ".join(str(error).split())[:200]
        raise CannotRun(f"file: {str(path)!r} cannot be read as safetensors: {line}") from error


def checked_path(name: str) -> Path:
    """The user's file. Raises CannotRun if it cannot be read."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise CannotRun(f"file: {name[:200]!r} is not a file; name a .safetensors file")
    if not os.access(path, os.R_OK):
        raise CannotRun(f"file: {name[:200]!r} is not readable by this user")
    return path


def flat(tensors: dict[str, Tensor]) -> Tensor:
    """All bytes of `tensors`, concatenated."""
    byte_views = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors.values()]
    return torch.cat(byte_views) if byte_views else torch.empty(0, dtype=torch.uint8)
