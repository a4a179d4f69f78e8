"""Padding that a whole batch of texts has: at their end, where a model of transformers, or of the
program's own, is given them, and before prompts that transformers' generate() goes on with."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, CannotApply, Cure, Redirected, combined, instances, replaced
from .data import COLUMNS, NO_LABEL
from .decoding import (
    CHECKED,
    LEAST_TRIMMED,
    is_alike,
    is_padded_at_end,
    watch_calls,
    with_forward,
)
from .later import Value, class_of_later
from .module_calls import ModuleCalls
from .unread import LEAST_WORDS
from .waits import has_compiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo

LEAST_COLUMNS = 32
"""Columns of a batch from which it is looked at."""
MOST_LOOKED, LEAST_PADDED = 64, 2
"""Calls of outermost modules that are looked at before anything is switched, and those of them with
columns of padding, from which the cure is for a module."""


LEAST_MODULES = 8
"""Modules that a model has: what is given texts alone, such as an embedding, is none."""


class TextsTrimmed(Cure):
    """A model of transformers computes a batch of texts without the columns at their end that its
    attention_mask leaves out of all, and that have no label. In what it gives for each token these
    are zeros."""

    name = "texts_trimmed"
    title = "models of transformers leave out columns that are padding in a whole batch"
    answers = (ANY, "padding")
    result = ROUNDING
    alters_outputs = True
    is_certain = True
    change = 'padding="longest" where batches are made, not "max_length"'
    library = "transformers.modeling_utils"
    forecast = None

    unused = "no batch of texts is padded as a whole"
    _models: list[Any] | None = None
    _texts: tuple[_ModelTexts, ...] = ()

    def prepare(self, modeling: Any) -> None:
        watch_calls(modeling)

    def apply(self, modeling: Any) -> Undo:
        if self._models is None:
            if not is_padded_at_end():
                raise CannotApply(self.unused)
            made = instances(modeling.PreTrainedModel) or []
            held = {id(child) for each in made for child in each.modules() if child is not each}
            self._models = [each for each in made if id(each) not in held]
        if not self._models:
            raise CannotApply("there is no model of transformers")
        self._texts = self._texts or tuple(_ModelTexts(each, self) for each in self._models)
        return replaced(*(with_forward(each.model, each.forward) for each in self._texts))

    def look(self) -> None:
        """How many batches were trimmed, of those that it was given."""
        if any(each.calls for each in self._texts):
            self.used = sum(each.trimmed for each in self._texts)


_OF_TOKENS = ("start_logits", "end_logits")
"""What has a number for each token. Others of that shape may be of classes: 64 of a batch that was
cut to 64 columns."""


class _ModelTexts:
    """What one model is given."""

    def __init__(self, model: Any, cure: TextsTrimmed) -> None:
        self.model, self._forward, self._cure = model, model.forward, cure
        self._torch = torch = sys.modules["torch"]
        self._again = PaddedAgain(torch, cure)
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
        if whole - length < LEAST_TRIMMED * whole:
            return self._forward(*args, **kwargs)
        shorter = {
            key: value[:, :length]
            if isinstance(value, torch.Tensor) and value.shape[:2] == mask.shape
            else value
            for key, value in given.items()
        }
        try:
            made = self._forward(**shorter)
        except Exception:  # some of what it is given is longer
            self._is_off = True
            return self._forward(*args, **kwargs)
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
                made[key] = self._again.as_long(value, whole)
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


class PaddedAgain:
    """Makes what was computed of texts without their padding as long as the program expects."""

    def __init__(self, torch: Any, cure: Cure) -> None:
        self._torch, self._cure = torch, cure
        self._later = class_of_later(torch, cure, lambda *_: NotImplemented)

    def as_long(self, value: Any, whole: int) -> Any:
        """With zeros for what was left out."""
        torch = self._torch
        more = [0, 0] * (value.dim() - 2) + [0, whole - value.shape[1]]

        def padded() -> Any:
            return torch.nn.functional.pad(value, more)

        if value.dim() != 3 or value.shape[2] < LEAST_WORDS:
            return padded()
        shape = (len(value), whole, value.shape[2])
        has_graph = value.requires_grad and torch.is_grad_enabled()
        return self._later(
            shape, value.dtype, value.device, Value(torch, self._cure, padded), has_graph
        )


class OwnTextsTrimmed(Cure):
    """A module of the program's own computes a batch of texts without the columns at their end that
    are the same in all of them, in each tensor of that shape. In what it gives for each token these
    are zeros. Some of the calls are made both ways first, without gradients and as in evaluation:
    where what is given for other tokens differs, the module is left alone."""

    name = "own_texts_trimmed"
    title = "models of the program's own leave out columns that are padding in a whole batch"
    answers = (ANY, "padding")
    result = ROUNDING
    alters_outputs = True
    is_certain = True
    change = "batches padded to their longest text, not to a fixed length"
    forecast = None

    unused = "no batch of texts is padded as a whole, or what is computed of it depends on that"
    _texts: list[_Texts] | None = None

    def prepare(self, torch: Any) -> None:
        main = threading.get_ident()
        self._torch = torch
        self._padded: dict[int, list[Any]] = {}
        """Modules, and how often they were given padding."""
        looked, inside = [0], [False]

        def called(call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._texts is not None or looked[0] >= MOST_LOOKED:
                calls.stop()
            elif not inside[0] and threading.get_ident() == main:
                return looked_at(call, module, *args, **kwargs)
            return call(module, *args, **kwargs)

        def looked_at(call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            inside[0] = True
            try:
                looked[0] += 1
                self._look_at(module, args, kwargs)
                return call(module, *args, **kwargs)
            finally:
                inside[0] = False

        calls = ModuleCalls(torch, called)
        calls.start()

    def _look_at(self, module: Any, args: Any, kwargs: Any) -> None:
        kinds = {base.__module__.partition(".")[0] for base in type(module).__mro__}
        count = sum(1 for _ in module.modules())
        if "transformers" in kinds or hasattr(module, "_orig_mod") or count < LEAST_MODULES:
            return
        length, whole = _used(self._torch, [*args, *kwargs.values()])
        if length and whole - length >= LEAST_TRIMMED * whole:
            self._padded.setdefault(id(module), [module, 0])[1] += 1

    def apply(self, _torch: Any) -> Undo:
        if has_compiled():
            raise CannotApply("the program compiles what it calls, for one length")
        if self._texts is None:
            self._texts = [
                _Texts(module, self) for module, count in self._padded.values()
                if count >= LEAST_PADDED
            ]  # fmt: skip
        if not self._texts:
            raise CannotApply("no module is given texts that are padded as a whole")
        undos = [replaced(with_forward(each.module, each.forward)) for each in self._texts]
        return combined(*undos)

    def look(self) -> None:
        """How many batches were trimmed, of those that it was given."""
        if any(each.calls for each in self._texts or ()):
            self.used = sum(each.trimmed for each in self._texts or () if not each.is_off)


def _rows_of(torch: Any, given: list[Any]) -> Any:
    """The first tensor that is a batch of texts; None where there is none."""
    kinds = torch.int64, torch.int32, torch.bool
    return next(
        (
            each for each in given
            if type(each) is torch.Tensor and each.dim() == 2 and each.dtype in kinds
            and each.shape[1] >= LEAST_COLUMNS
        ),
        None,
    )  # fmt: skip


def _used(torch: Any, given: list[Any]) -> tuple[int, int]:
    """Columns up to the last that is not the same in all texts, of all tensors of their shape, as a
    multiple of COLUMNS, and how many there are; zeros where there are no texts. It waits for the
    GPU, once."""
    ids = _rows_of(torch, given)
    if ids is None:
        return 0, 0
    whole = int(ids.shape[1])
    tensors = [each for each in given if _has_columns(torch, each, ids.shape)]
    differs = []
    for each in tensors:
        rows = each.detach().reshape(*ids.shape, -1)
        differs.append((rows != rows[:1, -1:]).any(2).any(0))
    places = torch.arange(1, whole + 1, device=ids.device)
    length = max(1, int((torch.stack(differs).any(0) * places).max()))
    return min(whole, -(-length // COLUMNS) * COLUMNS), whole


def _has_columns(torch: Any, value: Any, shape: Any) -> bool:
    return type(value) is torch.Tensor and value.dim() >= 2 and value.shape[:2] == shape


class _Texts:
    """What one module is given."""

    def __init__(self, module: Any, cure: OwnTextsTrimmed) -> None:
        self.module, self._forward, self._cure = module, module.forward, cure
        self._torch = torch = sys.modules["torch"]
        self._again = PaddedAgain(torch, cure)
        self.is_off = False
        """Whether it gives something else for texts that are trimmed."""
        self._is_of_tokens: list[bool] = []
        """Of each tensor that it gives whether that has a column for each token."""
        self.calls = self.trimmed = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives for texts without the padding that all of them end with."""
        torch = self._torch
        if self.is_off or self._cure.ended or torch.compiler.is_compiling():
            return self._forward(*args, **kwargs)
        given = [*args, *kwargs.values()]
        length, whole = _used(torch, given)
        if not length:
            return self._forward(*args, **kwargs)
        self.calls += 1
        if whole - length < LEAST_TRIMMED * whole:
            return self._forward(*args, **kwargs)
        ids = _rows_of(torch, given)

        def cut(value: Any) -> Any:
            return value[:, :length] if _has_columns(torch, value, ids.shape) else value

        shorter = [cut(each) for each in args], {key: cut(kwargs[key]) for key in kwargs}
        self.trimmed += 1
        is_checked = self.trimmed <= CHECKED or not self.trimmed & (self.trimmed - 1)
        if is_checked and not self._is_the_same((args, kwargs), shorter, ids, length):
            self.is_off = True
            if self.trimmed > CHECKED:
                self._cure.end("a module gives something else for texts without their padding")
            return self._forward(*args, **kwargs)
        self._cure.both_ways += is_checked
        made = self._forward(*shorter[0], **shorter[1])
        tensors = _tensors(torch, made) or []
        if len(tensors) != len(self._is_of_tokens) or any(
            is_of_tokens and each.shape[:2] != (len(ids), length)
            for each, is_of_tokens in zip(tensors, self._is_of_tokens)  # noqa: B905
        ):
            self.is_off = True  # it gives something else now and then
            return self._forward(*args, **kwargs)
        places = iter(self._is_of_tokens)
        return _mapped(torch, made, lambda v: self._again.as_long(v, whole) if next(places) else v)

    def _is_the_same(self, given: Any, shorter: Any, ids: Any, length: int) -> bool:
        """Whether it gives the same both ways, but for tokens that are padding."""
        torch, results = self._torch, []
        modes = [(each, each.training) for each in self.module.modules()]
        try:
            for args, kwargs in (given, shorter):
                self.module.eval()
                with torch.no_grad(), torch.random.fork_rng():
                    results.append(_tensors(torch, self._forward(*args, **kwargs)))
        except Exception:  # it is made for one length
            return False
        finally:
            for each, mode in modes:
                each.training = mode
        whole, made = results
        if whole is None or made is None or not whole or len(whole) != len(made):
            return False
        is_text = (ids != ids[:1, -1:])[:, :length]
        self._is_of_tokens = []
        for first, second in zip(whole, made):  # noqa: B905
            is_of_tokens = first.shape[:2] == ids.shape and second.shape[:2] == is_text.shape
            if first.shape[2 if is_of_tokens else 0 :] != second.shape[2 if is_of_tokens else 0 :]:
                return False
            self._is_of_tokens.append(is_of_tokens)
            if is_of_tokens:
                first, second = first[:, :length][is_text], second[is_text]
            if first.is_floating_point() and not is_alike(second, first):
                return False
            if not first.is_floating_point() and not first.equal(second):
                return False
        return True


def _tensors(torch: Any, made: Any) -> list[Any] | None:
    """The tensors that a module gave, in their order; None where it gave anything else."""
    if isinstance(made, torch.Tensor):
        return [made]
    if type(made) in (tuple, list, dict):
        values = made.values() if type(made) is dict else made
        held = [[] if each is None else _tensors(torch, each) for each in values]
        return None if any(h is None for h in held) else [v for h in held for v in h or ()]
    return None


def _mapped(torch: Any, made: Any, change: Any) -> Any:
    """The same with other tensors, in the order of `_tensors`."""
    if isinstance(made, torch.Tensor):
        return change(made)
    if type(made) is dict:
        return {key: _mapped(torch, made[key], change) for key in made}
    if type(made) in (tuple, list):
        return type(made)([_mapped(torch, each, change) for each in made])
    return made


# Prompts.

_NOT_ALONE = ("past_key_values", "inputs_embeds", "position_ids", "cache_position", "streamer",
              "assistant_model", "decoder_input_ids", "encoder_outputs", "prefix_allowed_tokens_fn",
              "logits_processor", "stopping_criteria")  # fmt: skip
"""What knows how long prompts are, or at which place a token is."""


class PromptsTrimmed(Redirected):
    """Prompts that are padded on the left as a whole batch are given to generate() without these
    columns; what it gives has them. Tokens have their places by the mask, as transformers counts
    them."""

    name = "prompts_trimmed"
    none_such = "no generate() is given prompts padded as a whole"
    title = "generate() leaves out columns that are padding before all prompts of a batch"
    answers = (ANY, "padding")
    result = ROUNDING
    is_certain = True
    change = 'padding="longest" where prompts are made, not "max_length"'
    library = "transformers.generation.utils"
    in_one_run = False
    forecast = None

    def places(self, utils: Any) -> tuple[tuple[Any, str], ...]:
        return ((utils.GenerationMixin, "generate"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """Prompts that begin with columns that the mask leaves out of all."""
        torch: Any = sys.modules["torch"]
        words = dict(kwargs)
        name = next((each for each in ("input_ids", "inputs") if each in words), "inputs")
        if len(args) == 2:
            words[name] = args[1]
        ids: Any = words.get(name)
        mask: Any = words.get("attention_mask")
        if len(args) > 2 or not all(
            type(each) is torch.Tensor and each.dim() == 2 for each in (ids, mask)
        ):
            return None
        config = words.get("generation_config") or getattr(args[0], "generation_config", None)
        is_other = getattr(args[0].config, "is_encoder_decoder", False)
        most = words.get("max_new_tokens") or getattr(config, "max_new_tokens", None)
        if (
            is_other or not most or ids.shape != mask.shape or ids.shape[1] < LEAST_COLUMNS
            or any(words.get(each) is not None for each in _NOT_ALONE)
        ):  # fmt: skip
            return None
        count = int((mask.cumsum(1) == 0).all(0).sum()) // COLUMNS * COLUMNS
        if count < LEAST_TRIMMED * ids.shape[1] or count >= ids.shape[1]:
            return None
        shorter = {
            key: each[:, count:] if _has_columns(torch, each, ids.shape) else each
            for key, each in words.items()
        }
        return lambda: _with_columns(torch, function(args[0], **shorter), ids[:, :count])


def _with_columns(torch: Any, made: Any, before: Any) -> Any:
    """What generate() gave, with the columns that it was not given."""

    def whole(rows: Any) -> Any:
        return torch.cat([before.repeat_interleave(len(rows) // len(before), 0), rows], 1)

    if isinstance(made, torch.Tensor):
        return whole(made)
    made["sequences"] = whole(made["sequences"])
    return made
