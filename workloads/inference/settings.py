"""What a run of inference was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..declaration import Value


@dataclass(frozen=True)
class Settings:
    """The parameters in effect: the device is no longer "auto"."""

    size: str
    model: str
    text: str
    batch: int
    prompt: int
    tokens: int
    precision: str
    attention: str
    compile: bool
    graphs: bool
    snapshot: bool
    device: str
    seed: int
    warmup: int

    @classmethod
    def from_values(cls, values: Mapping[str, Value], device: torch.device) -> Settings:
        return cls(
            size=str(values["size"]),
            model=str(values["model"]),
            text=str(values["text"]),
            batch=int(values["batch"]),
            prompt=int(values["prompt"]),
            tokens=int(values["tokens"]),
            precision=str(values["precision"]),
            attention=str(values["attention"]),
            compile=bool(values["compile"]),
            graphs=bool(values["graphs"]),
            snapshot=bool(values["snapshot"]),
            device=str(device),
            seed=int(values["seed"]),
            warmup=int(values["warmup"]),
        )
