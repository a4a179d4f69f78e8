"""Texts that a model goes through again as a whole for each token: in a program's own loop, and in
transformers' generate()."""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from . import (
    ANY,
    COMPILING_S,
    ROUNDING,
    CannotApply,
    Cure,
    Redirected,
    combined,
    instances,
    replaced,
)
from .copies import free_bytes_of_gpu
from .data import bytes_of
from .later import (
    Given,
    Value,
    as_given,
    class_of_later,
    counting_fused_steps,
    is_written,
    writes_of_weights,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


class TextsKept(Cure):
    """Keys and values of the tokens before, kept for a model of transformers that a program's own
    loop gives the whole text again for each token. Of its logits only the new ones are computed,
    and the others put before them where the program asks for them. It is looked in each call
    whether the text begins as the last one, and the first calls, and some later ones, are made
    both ways: where they differ, nothing is kept any more. A generate() that begins while it is on
    has the cache of transformers: kept from outside, 16 tokens of 24 texts took 157 ms, not 127."""

    name = "texts_kept"
    title = "a model that is given its last text with more tokens computes only these"
    answers = (ANY, "steps_grow")
    result = ROUNDING
    is_certain = True
    change = (
        "model.generate(..., use_cache=True); in a loop of your own "
        "out = model(new_ids, past_key_values=past, use_cache=True); past = out.past_key_values"
    )
    library = "transformers.modeling_utils"
    advice = r"KV cache|past_key_values|use_cache"

    unused = "no model is given its last text with more tokens"
    _texts: list[_Text] | None = None
    _generated = 0
    """Calls of generate() that began while it was on."""

    def prepare(self, modeling: Any) -> None:
        watch_calls(modeling)

    def apply(self, modeling: Any) -> Undo:
        if self._texts is None:
            if not is_gone_through_again():
                raise CannotApply(self.unused)
            self._texts = [
                _Text(each, self)
                for each in instances(modeling.PreTrainedModel) or []
                if each.get_output_embeddings() is not None
                or getattr(each.config, "is_encoder_decoder", False)
            ]
        texts = self._texts
        if not texts:
            raise CannotApply("there is no model of transformers that writes texts")

        def forget() -> None:
            for each in texts:
                each.forget()

        wrapped = [with_forward(each.model, each.forward) for each in texts]
        generation = sys.modules.get("transformers.generation.utils")
        if generation is not None:
            mixin = generation.GenerationMixin
            wrapped.append((mixin, "generate", self._generate_of(mixin.generate)))
        return combined(forget, replaced(*wrapped), counting_fused_steps())

    def _generate_of(self, generate: Any) -> Any:
        @functools.wraps(generate)
        def called(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.ended and is_without_cache((model, *args), kwargs):
                self._generated += 1
                return generated_with_cache(generate, (model, *args), kwargs)
            return generate(model, *args, **kwargs)

        return called

    def look(self) -> None:
        """How many texts were not gone through again."""
        texts = self._texts or []
        if self._generated or sum(each.calls for each in texts) >= LEAST_CALLS:
            self.used = self._generated + sum(each.spared for each in texts)


LEAST_CALLS = 3
"""Calls after which a model whose texts do not grow is known."""
CHECKED = 2
"""Calls that are made both ways at first, then one at each power of two."""
HELD = 8
"""Part of what is free of a GPU that the logits of a text may take."""
ALIKE = 0.05
"""Of the spread of the logits by how much both ways may differ: bf16 rounds by 0.4 % a layer."""

_MASKS = ("attention_mask", "decoder_attention_mask", "token_type_ids", "position_ids")
"""Have a column for each token."""
_LOOSE = ("use_cache", "logits_to_keep", "return_dict", "cache_position")


class _Text:
    """The text that a model was given last."""

    def __init__(self, model: Any, cure: TextsKept) -> None:
        self.model, self._forward, self._cure = model, model.forward, cure
        self._torch = torch = sys.modules["torch"]
        self._later = class_of_later(torch, cure, _last_rows)
        self.forget()
        self._is_off = False
        self._weights: Any = None
        """How often the model's weights had been written to at its last text."""
        self.calls = self.spared = 0
        """Of texts without gradients, and those of them that were not gone through again."""

    def forget(self) -> None:
        """Forget the last text, and all that was kept of it."""
        self._ids = self._cache = self._encoded = None
        self._columns: dict[str, Any] = {}
        self._others: dict[str, Any] = {}
        self._rows: Given | None = []
        """Logits, one after the other; None where they would take too much memory."""
        self._is_whole = True
        """Whether the first were all asked for."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives; of a text that has grown, out of what is kept."""
        torch = self._torch
        if (
            self._is_off or self._cure.ended or torch.is_grad_enabled() or self.model.training
            or torch.compiler.is_compiling() or len(args) > 1
        ):  # fmt: skip
            return self._forward(*args, **kwargs)
        given = {key: value for key, value in kwargs.items() if value is not None}
        if args:
            given[self.model.main_input_name] = args[0]
        key = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
        ids = given.get(key)
        if (
            not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.shape[1] < 2
            or given.get("use_cache") or not given.get("return_dict", True)
            or {"past_key_values", "labels", "inputs_embeds", "cache_params"} & given.keys()
            or given.get("output_hidden_states") or given.get("output_attentions")
            or not isinstance(given.get("logits_to_keep", 0), int)
        ):  # fmt: skip
            self.forget()
            return self._forward(*args, **kwargs)
        self.calls += 1
        weights = writes_of_weights(self.model)
        if weights != self._weights:
            self._weights = weights
            self.forget()
        columns = {name: given[name] for name in _MASKS if name in given and name != key}
        others = {
            name: given[name]
            for name in given
            if name not in columns and name not in _LOOSE and name != key
        }
        if key == "decoder_input_ids" and "attention_mask" in columns:
            others["attention_mask"] = columns.pop("attention_mask")  # the encoder's
        if self._has_grown(ids, columns, others, given):
            made = self._go_on(key, ids, columns, others, given)
            if made is not None:
                return made
        self.forget()
        made = self._forward(**{**given, "use_cache": True, "return_dict": True})
        cache, logits = getattr(made, "past_key_values", None), getattr(made, "logits", None)
        no_cache = given.get("use_cache") is False
        if not _may_grow(cache) or logits is None or logits.dim() != 3:
            self._is_off = True
        else:
            self._is_whole = logits.shape[1] == ids.shape[1]
            self._note(ids, columns, others, cache, logits)
            self._encoded = getattr(made, "encoder_last_hidden_state", None)
            made.past_key_values = None if no_cache else copy_of_cache(cache)
        return made

    def _note(self, ids: Any, columns: Any, others: Any, cache: Any, logits: Any) -> None:
        self._ids, self._cache = ids.clone(), cache
        self._columns = {name: columns[name].clone() for name in columns}
        self._others = {name: (others[name], _writes(others[name])) for name in others}
        if self._rows is not None:
            # What does not count its writes is the program's, too.
            self._rows += as_given(logits.clone() if logits.is_inference() else logits)
            # A text's logits at once are what the program has without it.
            held = sum(bytes_of(each) for each, _ in self._rows)
            if HELD * held > free_bytes_of_gpu(self._torch):
                self._rows = None

    def _has_grown(self, ids: Any, columns: Any, others: Any, given: Any) -> bool:
        """Whether it begins as the last one did, and is longer."""
        before: Any = self._ids
        if before is None or len(before) != len(ids) or before.shape[1] >= ids.shape[1]:
            return False
        keeps = given.get("logits_to_keep", 0)
        if not self._is_whole and not 0 < keeps <= ids.shape[1] - before.shape[1]:
            return False
        if columns.keys() != self._columns.keys() or others.keys() != self._others.keys():
            return False
        for name, (value, writes) in self._others.items():
            if others[name] is not value or _writes(value) != writes:
                return False
        pairs = [(before, ids), *((self._columns[name], columns[name]) for name in columns)]
        for old, new in pairs:
            if new.dim() != 2 or new.shape[1] != ids.shape[1] or len(old) != len(new):
                return False
        same = [(new[:, : old.shape[1]] == old).all() for old, new in pairs]
        return bool(self._torch.stack(same).all())

    def _go_on(self, key: str, ids: Any, columns: Any, others: Any, given: Any) -> Any:
        """What it gives for a text of which the beginning is kept; None where it cannot."""
        kept: Any = self._ids
        first = kept.shape[1]
        more = {name: columns[name] for name in columns if "attention" in name}
        more.update({name: columns[name][:, first:] for name in columns if name not in more})
        if self._encoded is not None:
            more["encoder_outputs"] = (self._encoded,)
            if "attention_mask" in others:
                more["attention_mask"] = others["attention_mask"]
        if "cache_position" in given:
            more["cache_position"] = given["cache_position"][first:]
        if 0 < given.get("logits_to_keep", 0) <= ids.shape[1] - first and not self._is_whole:
            more["logits_to_keep"] = given["logits_to_keep"]
        try:
            made = self._forward(
                **{key: ids[:, first:]}, **more, past_key_values=self._cache, use_cache=True,
                return_dict=True,
            )  # fmt: skip
        except Exception:  # it is not made for that
            self._is_off = True
            return None
        logits = made.logits
        if logits.shape[1] != more.get("logits_to_keep", ids.shape[1] - first):
            self._is_off = True
            return None
        self.spared += 1
        if self.spared <= CHECKED or not self.spared & (self.spared - 1):
            whole = self._forward(**given)
            keeps = given.get("logits_to_keep", 0)
            count = min(logits.shape[1], keeps or logits.shape[1])
            if not is_alike(logits[:, -count:], whole.logits[:, -count:]):
                self._is_off = True
                self.spared -= 1
                if self.spared >= CHECKED:  # until then each was made both ways
                    self._cure.end("a model gives something else for tokens that are new alone")
                return whole
            self._cure.both_ways += 1
        self._note(ids, columns, others, made.past_key_values, logits)
        # The last rows are another tensor: the program may write to it.
        last, rows, own_ids = logits.clone(), (self._rows or [])[:-1], self._ids
        is_kept, weights = self._rows is not None, self._weights
        words = as_given(*(each for each in given.values() if hasattr(each, "data_ptr")))
        keeps = given.get("logits_to_keep", 0)
        made.past_key_values = (
            None if given.get("use_cache") is False else copy_of_cache(self._cache)
        )
        if keeps and keeps <= logits.shape[1]:
            made.logits = logits[:, -keeps:]
        else:
            count = keeps or ids.shape[1]
            shape = (len(ids), count, logits.shape[2])

            def whole_text() -> Any:
                if is_kept and not is_written(rows):
                    return self._torch.cat([*(each for each, _ in rows), last], 1)[:, -count:]
                if is_written(words) or writes_of_weights(self.model) != weights:
                    self._cure.lose(
                        "what a model is given is written to before its logits are read"
                    )
                return self._forward(**{**given, key: own_ids}).logits[:, -count:]

            value = Value(self._torch, self._cure, whole_text)
            made.logits = self._later(shape, logits.dtype, logits.device, value)
            made.logits.last = last
        return made


def _last_rows(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The last logits of a text, where nothing else is asked of them."""
    if getattr(function, "__name__", "") != "__getitem__" or kwargs or len(args) != 2:
        return NotImplemented
    later, index = args
    if not isinstance(index, tuple) or len(index) < 2 or later.value.tensor is not None:
        return NotImplemented
    batch, row = index[0], index[1]
    if batch is Ellipsis and len(index) == 3:
        batch, row = slice(None), index[1]
    elif batch is Ellipsis:
        return NotImplemented
    length, count = later.shape[1], later.last.shape[1]
    if type(row) is int:
        row = row if row < 0 else row - length
        if row < -count or row >= 0:
            return NotImplemented
    elif not (isinstance(row, slice) and row.stop is None and row.step in (None, 1)
              and type(row.start) is int and -count <= row.start < 0):  # fmt: skip
        return NotImplemented
    return later.last[(batch, row, *index[2:])]


def is_alike(made: Any, right: Any) -> bool:
    """Whether logits differ by no more than rounding does."""
    difference = (made.float() - right.float()).norm()
    return bool(difference <= ALIKE * (right.float() - right.float().mean()).norm())


def _writes(value: Any) -> Any:
    """How often a tensor was written to; what is another each time where that is not counted."""
    if not hasattr(value, "data_ptr"):
        return value if isinstance(value, (int, float, str, bool)) else id(value)
    return value._version if not value.is_inference() else (value.data_ptr(), value.shape)


def _caches_in(cache: Any) -> list[Any]:
    names = ("self_attention_cache", "cross_attention_cache")
    return [getattr(cache, name) for name in names if hasattr(cache, name)] or [cache]


_GROWING = ("DynamicLayer", "DynamicSlidingWindowLayer")


def _may_grow(cache: Any) -> bool:
    """Whether it is one whose layers grow, each by more of all that came before."""
    layers = [layer for part in _caches_in(cache) for layer in getattr(part, "layers", ())]
    return bool(layers) and all(type(each).__name__ in _GROWING for each in layers)


def copy_of_cache(cache: Any) -> Any:
    """A cache with the same keys and values, which grows by itself: layers replace theirs by longer
    ones."""
    made = copy.copy(cache)
    if hasattr(made, "layers"):
        made.layers = [copy.copy(layer) for layer in made.layers]
    for name in ("self_attention_cache", "cross_attention_cache"):
        if hasattr(made, name):
            setattr(made, name, copy_of_cache(getattr(made, name)))
    return made


# What models of transformers were given last, for cures that ask whether they have anything to
# change.

LAST_CALLS = 16
"""Calls of models that are remembered, of all together."""
MASKS = 4
"""Of them, those whose padding is looked at."""
LEAST_TRIMMED = 0.1
"""Part of the columns of a batch that is worth to be left out."""


class _Call(NamedTuple):
    """A call of a model that no other of transformers calls."""

    model: int
    shape: tuple[int, ...]
    """Of the text that it writes, or reads."""
    mask: Any
    has_cache: bool


_calls: deque[_Call] = deque(maxlen=LAST_CALLS)
_watched: list[Any] = []


def watch_calls(modeling: Any) -> None:
    """Has models note what they are given, from now on."""
    if modeling in _watched:
        return
    _watched.append(modeling)
    torch, inside = sys.modules["torch"], [False]
    module = torch.nn.Module

    @functools.wraps(module.__call__)
    def called(model: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or inside[0]:
            return module.__call__(model, *args, **kwargs)
        inside[0] = True
        try:
            note_call(model, args, kwargs)
            return module.__call__(model, *args, **kwargs)
        finally:
            inside[0] = False

    replaced((modeling.PreTrainedModel, "__call__", called))


def note_call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Remember what a model is given."""
    text = kwargs.get("decoder_input_ids", kwargs.get("input_ids", args[0] if args else None))
    shape = tuple(getattr(text, "shape", ()))
    if len(shape) == 2:
        mask = kwargs.get("attention_mask")
        cache = kwargs.get("past_key_values")
        _calls.append(_Call(id(model), shape, mask, cache is not None))


def with_forward(model: Any, forward: Any) -> tuple[Any, str, Any]:
    """What `replaced` takes to have a model call this one. transformers looks at a forward's words
    for what it may pass: they stay."""
    real = model.forward

    if getattr(real, "__self__", None) is not model:  # another's wrapper

        @functools.wraps(real)
        def called(*args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

        return model, "forward", called

    own = real.__func__

    @functools.wraps(own)
    def called_of(itself: Any, *args: Any, **kwargs: Any) -> Any:
        # A copy of the model has what is called here as its own, bound to itself.
        return forward(*args, **kwargs) if itself is model else own(itself, *args, **kwargs)

    return model, "forward", types.MethodType(called_of, model)


def is_gone_through_again() -> bool:
    """Whether a model was given a text as long as the last one, and a few tokens more, without
    keys and values of the tokens before."""
    calls = list(_calls)
    return any(
        call.model == before.model and not call.has_cache and not before.has_cache
        and call.shape[0] == before.shape[0]
        and before.shape[1] < call.shape[1] <= before.shape[1] + MOST_NEW
        for place, call in enumerate(calls[1:])
        for before in (calls[place],)
    )  # fmt: skip


MOST_NEW = 8
"""Tokens by which a text grows."""


def is_padded_at_end() -> bool:
    """Whether columns at the end of the last batches are padding. It waits for the GPU."""
    masks = [call.mask for call in _calls if getattr(call.mask, "ndim", 0) == 2][-MASKS:]
    wholes = [mask.shape[1] for mask in masks]
    used = [int((mask != 0).any(0).nonzero().max()) + 1 for mask in masks if bool(mask.any())]
    return sum(used) <= (1.0 - LEAST_TRIMMED) * sum(map(int, wholes)) if masks else False


# The caches of generate().


class KvCache(Redirected):
    """A KV cache for a generate() that was told to use none, and so computes the whole sequence
    anew for each token."""

    name = "kv_cache"
    none_such = "no generate() is without a KV cache"
    title = "generate() keeps keys and values of the tokens before"
    answers = (ANY, "steps_grow")
    result = ROUNDING
    is_certain = True
    change = "model.generate(..., use_cache=True), or in its GenerationConfig"
    library = "transformers.generation.utils"
    in_one_run = False
    advice = "use_cache"

    def places(self, utils: Any) -> tuple[tuple[Any, str], ...]:
        """What makes the tokens; a step of the program is one of them, or a batch of texts."""
        return ((utils.GenerationMixin, "generate"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """Calls with use_cache=False, among their arguments or in their configuration."""
        if not is_without_cache(args, kwargs):
            return None
        return lambda: generated_with_cache(function, args, kwargs)


_OF_EACH_TOKEN = ("output_hidden_states", "output_attentions")
"""What generate() gives of the whole text for each token, or of the new one where it has a
cache."""


def is_without_cache(args: Any, kwargs: Any) -> bool:
    """Whether this generate() turns the KV cache off, by an argument or in its configuration, and
    would return the same with it."""
    config = kwargs.get("generation_config") or (args[2] if len(args) > 2 else None)
    config = config or getattr(args[0], "generation_config", None)
    if any(kwargs.get(name, getattr(config, name, None)) for name in _OF_EACH_TOKEN):
        return False
    return kwargs.get("use_cache", getattr(config, "use_cache", None)) is False


def generated_with_cache(generate: Any, args: Any, kwargs: Any) -> Any:
    """What it gives with a KV cache, but for that: who keeps results would keep their caches."""
    made = generate(*args, **{**kwargs, "use_cache": True})
    if hasattr(made, "keys") and "past_key_values" in made:
        made["past_key_values"] = None
    return made


class StaticCache(Cure):
    """A KV cache of a fixed size in transformers' generate, which then compiles its forward
    pass."""

    name = "static_cache"
    title = "generate() has a KV cache of a fixed size"
    answers = ("idle.launch", "idle.host")
    result = ROUNDING
    change = 'model.generate(..., cache_implementation="static")'
    library = "transformers.generation.utils"
    in_one_run = False
    longer_s = COMPILING_S
    forecast = None

    def apply(self, utils: Any) -> Undo:
        generate = utils.GenerationMixin.generate

        @functools.wraps(generate)
        def changed(self_: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen_from(sys._getframe(1))
            kwargs.update(use_cache=True, cache_implementation="static")
            return generate(self_, *args, **kwargs)

        return replaced((utils.GenerationMixin, "generate", changed))
