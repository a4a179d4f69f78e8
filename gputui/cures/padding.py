"""Padding that a whole batch of texts has, where a model of transformers is given them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import (
    ANY,
    ROUNDING,
    CannotApply,
    Cure,
    instances,
    model_calls,
    replaced,
)
from .data import COLUMNS, NO_LABEL
from .later import Value, class_of_later
from .logits import LEAST_WORDS

if TYPE_CHECKING:
    from . import Undo


class TextsTrimmed(Cure):
    """A model of transformers computes a batch of texts without the columns at their end that its
    attention_mask leaves out of all, and that have no label. In what it gives for each token these
    are zeros."""

    name = "texts_trimmed"
    title = "models of transformers leave out columns that are padding in a whole batch"
    answers = (ANY, "padding")
    result = ROUNDING
    is_certain = True
    change = 'padding="longest" where batches are made, not "max_length"'
    library = "transformers.modeling_utils"
    forecast = None

    unused = "no batch of texts is padded as a whole"
    _models: list[Any] | None = None
    _texts: tuple[_Texts, ...] = ()

    def prepare(self, modeling: Any) -> None:
        model_calls.watch(modeling)

    def apply(self, modeling: Any) -> Undo:
        if self._models is None:
            if not model_calls.is_padded_at_end():
                raise CannotApply(self.unused)
            made = instances(modeling.PreTrainedModel) or []
            held = {id(child) for each in made for child in each.modules() if child is not each}
            self._models = [each for each in made if id(each) not in held]
        if not self._models:
            raise CannotApply("there is no model of transformers")
        self._texts = self._texts or tuple(map(_Texts, self._models))
        return replaced(
            *(model_calls.with_forward(each.model, each.forward) for each in self._texts)
        )

    def look(self) -> None:
        """How many batches were trimmed, of those that it was given."""
        if any(each.calls for each in self._texts):
            self.used = sum(each.trimmed for each in self._texts)


_OF_TOKENS = ("start_logits", "end_logits")
"""What has a number for each token. Others of that shape may be of classes: 64 of a batch that was
cut to 64 columns."""


class _Texts:
    """What one model is given."""

    def __init__(self, model: Any) -> None:
        self.model, self._forward = model, model.forward
        self._torch = torch = sys.modules["torch"]
        self._later = class_of_later(torch, lambda *_: NotImplemented)
        self._is_off = False
        """Whether it was seen to give what cannot be made as long as the texts."""
        self.calls = self.trimmed = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives for texts without the padding that all of them end with."""
        torch = self._torch
        given = dict(kwargs)
        if len(args) == 1:
            given.setdefault(getattr(self.model, "main_input_name", "input_ids"), args[0])
        mask, ids = given.get("attention_mask"), given.get("input_ids")
        if (
            self._is_off or len(args) > 1
            or not isinstance(mask, torch.Tensor) or not isinstance(ids, torch.Tensor)
            or mask.dim() != 2 or ids.shape != mask.shape or torch.compiler.is_compiling()
            or given.get("past_key_values") is not None or given.get("output_attentions")
            or given.get("output_hidden_states") or not given.get("return_dict", True)
            or given.get("decoder_input_ids") is not None or given.get("logits_to_keep")
        ):  # fmt: skip
            return self._forward(*args, **kwargs)
        self.calls += 1
        length, whole = self._used(mask, given.get("labels")), mask.shape[1]
        if whole - length < model_calls.LEAST_TRIMMED * whole:
            return self._forward(*args, **kwargs)
        shorter = {
            key: value[:, :length]
            if isinstance(value, torch.Tensor) and value.shape[:2] == mask.shape
            else value
            for key, value in given.items()
        }
        made = self._forward(**shorter)
        size = len(mask), length
        if not hasattr(made, "items") or any(
            getattr(value, "shape", None) == size and key not in _OF_TOKENS
            for key, value in made.items()
        ):
            self._is_off = True
            return self._forward(*args, **kwargs)
        self.trimmed += 1
        for key, value in list(made.items()):
            if isinstance(value, torch.Tensor) and value.shape[:2] == size:
                made[key] = self._as_long(value, whole)
            elif key == "past_key_values":
                made[key] = None
        return made

    def _used(self, mask: Any, labels: Any) -> int:
        """Columns up to the last that counts in any text."""
        counts = mask != 0
        if labels is not None and labels.shape == mask.shape:
            counts = counts | (labels != NO_LABEL)
        places = self._torch.arange(1, mask.shape[1] + 1, device=mask.device)
        used = int((counts.any(0) * places).max())
        return min(int(mask.shape[1]), -(-max(1, used) // COLUMNS) * COLUMNS)

    def _as_long(self, value: Any, whole: int) -> Any:
        """With zeros for what was left out."""
        torch = self._torch
        more = [0, 0] * (value.dim() - 2) + [0, whole - value.shape[1]]

        def padded() -> Any:
            return torch.nn.functional.pad(value, more)

        if value.dim() != 3 or value.shape[2] < LEAST_WORDS:
            return padded()
        shape = (len(value), whole, value.shape[2])
        has_graph = value.requires_grad and torch.is_grad_enabled()
        return self._later(shape, value.dtype, value.device, Value(torch, padded), has_graph)
