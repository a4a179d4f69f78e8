"""Data on its way to the GPU: loaders, copies, what is computed on the CPU, or again and again."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import os
import random
import re
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from . import (
    ANY,
    EXACT,
    PLAIN,
    ROUNDING,
    CannotApply,
    Cure,
    Redirected,
    combined,
    instances,
    replaced,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from . import Undo

MOST_WORKERS = 12
"""More than a GPU needs of most loaders: 12 were within 5 % of 14 (H100, 26 cores)."""

PREFETCH = 4


def workers() -> int:
    """As many as there are cores beside the one of the program itself."""
    return max(2, min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 1))


class LoaderWorkers(Cure):
    """DataLoader with workers, pinned memory, workers kept between epochs, and batches ahead."""

    name = "loader_workers"
    title = "DataLoader has workers, which stay, pins memory and prefetches"
    answers = ("idle.input", "idle.host", "idle.wait")
    result = EXACT
    change = (
        f"DataLoader(..., num_workers={workers()}, pin_memory=True, persistent_workers=True, "
        f"prefetch_factor={PREFETCH})"
    )
    library = "torch.utils.data"
    in_one_run = False
    # Where they are one thing among others, the advice says what they are for.
    advice = r"(?<!_)workers(?! \(num_workers > 0\) for)"

    def apply(self, data: Any) -> Undo:
        loader = data.DataLoader
        init = loader.__init__

        @functools.wraps(init)
        def changed(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            if len(args) < 5:
                given = kwargs.get("num_workers") or 0
                # One worker gives the same batches in the same order, whatever the data set.
                most = workers() if _may_have_more(data, dataset, given) else 1
                kwargs["num_workers"] = max(most, given)
                kwargs["prefetch_factor"] = max(PREFETCH, kwargs.get("prefetch_factor") or 0)
                kwargs["persistent_workers"] = True
            if len(args) < 7:
                kwargs["pin_memory"] = True
            init(self, dataset, *args, **kwargs)

        return replaced((loader, "__init__", changed))

    def useless(self, data: Any) -> str | None:
        # A loop often holds the iterator alone.
        iterator = data.dataloader._BaseDataLoaderIter
        made = instances(data.DataLoader, iterator)
        if made == []:
            return "there is no DataLoader"
        loaders = [each for each in made or () if not isinstance(each, iterator)]
        if loaders and all(
            each.num_workers >= workers() and each.pin_memory and each.persistent_workers
            for each in loaders
        ):
            return "its loaders have workers, which stay, and pin memory"
        return None


class ItemsKept(Cure):
    """What a dataset makes of an index is made once: each worker gives copies of what it made
    before. Only of a dataset that draws no numbers and makes the same twice, and as long as there
    is memory: a program whose data do not come again in the trial gains nothing."""

    name = "items_kept"
    title = "workers keep the items of a dataset that makes the same again"
    answers = ("idle.input",)
    result = EXACT
    change = "keep items by their index in the dataset, or make them once beforehand"
    library = "torch.utils.data"
    in_one_run = False
    settles_s = 8.0  # each worker keeps what it comes by

    def apply(self, data: Any) -> Undo:
        fetcher = data._utils.fetch._MapDatasetFetcher
        init = fetcher.__init__
        kept: dict[int, _KeptItems] = {}  # each epoch without workers has a fetcher of its own

        @functools.wraps(init)
        def changed(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            if not hasattr(dataset, "__getitems__"):
                dataset = kept.setdefault(id(dataset), _KeptItems(data, dataset))
            init(self, dataset, *args, **kwargs)

        return replaced((fetcher, "__init__", changed))

    def useless(self, data: Any) -> str | None:
        made = instances(data.DataLoader, data.dataloader._BaseDataLoaderIter)
        if made == []:
            return "there is no DataLoader"
        held = (getattr(each, "dataset", getattr(each, "_dataset", None)) for each in made or ())
        sets = {id(each): each for each in held if not isinstance(each, data.IterableDataset)}
        reasons = [_why_not_kept(each) for each in sets.values() if each is not None]
        return reasons[0] if reasons and all(reasons) else None


def _why_not_kept(dataset: Any) -> str:
    """Why items of a dataset are not kept; empty where they may be. What is drawn meanwhile is
    drawn again."""
    if len(dataset) > MOST_ITEMS:
        return "its items do not come again within a trial"
    with _drawn_again() as before:
        is_same = _is_same(dataset[0], dataset[0]) and _drawn() == before
    return "" if is_same else "its dataset makes another item of the same index each time"


@contextlib.contextmanager
def _drawn_again() -> Iterator[tuple[Any, ...]]:
    """What is drawn in it is drawn again after it; gives the states before it, as `_drawn`."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    states = torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()
    try:
        yield _drawn()
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy:
            numpy.random.set_state(states[2])


MOST_ITEMS = 30_000
"""Of a dataset: workers pass through more than some thousand in a second only where there is
nothing to keep."""


class ItemsAtOnce(Cure):
    """A batch is taken from a dataset by all of its indices at once, where that gives what single
    items collated give: of data in memory, that a dataset only indexes. Each worker compares its
    first batches whole, and later ones now and then."""

    name = "items_at_once"
    title = "loaders index a dataset in memory once a batch, not once an item"
    answers = ("idle.input",)
    result = EXACT
    change = (
        "DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch_size, drop_last), "
        "batch_size=None), or __getitems__ in the dataset"
    )
    library = "torch.utils.data"
    in_one_run = False

    def apply(self, data: Any) -> Undo:
        fetcher = data._utils.fetch._MapDatasetFetcher
        fetch, collate = fetcher.fetch, data._utils.collate.default_collate
        torch = sys.modules["torch"]
        looks: dict[int, list[Any]] = {}

        @functools.wraps(fetch)
        def fetched(self: Any, indices: Any) -> Any:
            known = looks.setdefault(id(self.dataset), [0, True])
            if not self.auto_collation or self.collate_fn is not collate or not known[1]:
                return fetch(self, indices)
            known[0] += 1
            is_looked_at = known[0] <= ITEMS_CHECKED // 4 or not known[0] & (known[0] - 1)
            try:
                if not is_looked_at:
                    return _batched(torch, self.dataset[torch.as_tensor(indices)])
                with _drawn_again() as before:
                    made = _batched(torch, self.dataset[torch.as_tensor(indices)])
                    known[1] = before == _drawn()
            except Exception:  # it does more than to index
                known[1] = False
            right = fetch(self, indices)
            known[1] = known[1] and before == _drawn() and _is_same(made, right)
            return right

        return replaced((fetcher, "fetch", fetched))

    def useless(self, data: Any) -> str | None:
        loaders = instances(data.DataLoader)
        if loaders == []:
            return "there is no DataLoader"
        collate, torch = data._utils.collate.default_collate, sys.modules["torch"]
        for each in loaders or ():
            if each.batch_size and each.batch_size > 1 and each.collate_fn is collate:
                try:
                    with _drawn_again():
                        _batched(torch, each.dataset[torch.as_tensor([0, 1])])
                except Exception:  # it does more than to index
                    continue
                return None
        return "its datasets do more than to index" if loaders else None


def _batched(torch: Any, item: Any) -> Any:
    """What a dataset gave for many indices, as it is collated. Raises TypeError."""
    if isinstance(item, torch.Tensor):
        return item
    if "numpy" in sys.modules and type(item) is sys.modules["numpy"].ndarray:
        return torch.as_tensor(item)
    if type(item) in (tuple, list):
        return [_batched(torch, each) for each in item]
    if type(item) is dict:
        return {key: _batched(torch, item[key]) for key in item}
    raise TypeError(type(item).__name__)


class ArchivesKept(Cure):
    """Arrays of NumPy's compressed archives (.npz), which are read and inflated again for each
    item, are kept in each process that reads them, as long as there is memory and the file stays
    as it is. Each reader gets a copy."""

    name = "archives_kept"
    title = "arrays of .npz files are inflated once"
    answers = ("idle.input",)
    result = EXACT
    change = "functools.lru_cache around what reads a shard, or .npy files that are mapped"
    library = "numpy"
    in_one_run = False
    settles_s = 6.0  # each worker keeps what it comes by

    def apply(self, numpy: Any) -> Undo:
        kind = numpy.lib.npyio.NpzFile
        init, get = kind.__init__, kind.__getitem__
        kept: dict[Any, Any] = {}
        room: dict[int, int] = {}

        @functools.wraps(init)
        def opened(self: Any, file: Any, *args: Any, **kwargs: Any) -> None:
            init(self, file, *args, **kwargs)
            state = None
            with contextlib.suppress(AttributeError, OSError, TypeError, ValueError):
                state = os.fstat(file.fileno())
            self._gputui = state and (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)

        @functools.wraps(get)
        def got(self: Any, key: Any) -> Any:
            place = getattr(self, "_gputui", None), key
            if place[0] is None:
                return get(self, key)
            if place not in kept:
                made = get(self, key)
                own = os.getpid()
                room.setdefault(own, _free_bytes() // (2 * (os.cpu_count() or 1)))
                if type(made) is not numpy.ndarray or made.dtype.hasobject:
                    return made
                if made.nbytes > room[own]:
                    return made
                room[own] -= made.nbytes
                kept[place] = made
            return kept[place].copy()

        return replaced((kind, "__init__", opened), (kind, "__getitem__", got))

    def useless(self, _numpy: Any) -> str | None:
        loaders = sys.modules.get("torch.utils.data")
        made = instances(loaders.DataLoader) if loaders is not None else []
        held = (
            vars(each.dataset).values() for each in made or () if hasattr(each.dataset, "__dict__")
        )
        names = [
            value[0] if type(value) is list and value else value for each in held for value in each
        ]
        if made is None or any(str(name).endswith(".npz") for name in names if _is_path(name)):
            return None
        return "no dataset has names of .npz files"


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


class _KeptItems:
    """A dataset whose items are kept, in one worker."""

    def __init__(self, data: Any, dataset: Any) -> None:
        worker = data.get_worker_info()
        share = 4 * (worker.num_workers if worker else 1)
        self._room = min(MOST_ITEMS_BYTES, _free_bytes() // share)
        self._dataset, self._checks = dataset, ITEMS_CHECKED
        self._items: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int or self._room <= 0:
            return self._dataset[index]
        if index in self._items:
            return copy.deepcopy(self._items[index])
        before = _drawn()
        item = self._dataset[index]
        if before != _drawn():
            self._room = 0
        elif self._checks:
            self._checks -= 1
            self._room *= _is_same(item, self._dataset[index])
        self._room -= _bytes_of(item)
        if self._room > 0:
            self._items[index] = copy.deepcopy(item)
        return item


MOST_ITEMS_BYTES = 1 << 30
"""Of what a worker keeps."""
ITEMS_CHECKED = 16
"""Items of each worker that are made twice: a dataset may draw numbers by a generator of its
own."""
MOST_DEEP = 6
"""Objects within objects of an item."""


def _drawn() -> tuple[Any, ...]:
    """The states of what draws random numbers for a dataset."""
    states = [sys.modules["torch"].get_rng_state().numpy().tobytes(), random.getstate()]
    if "numpy" in sys.modules:
        _, keys, place, *others = sys.modules["numpy"].random.get_state()
        states += [keys.tobytes(), place, *others]
    return tuple(states)


def _within(value: Any) -> Any:
    """What an object consists of; None of one that holds no others."""
    if type(value) in (list, tuple):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    own = getattr(value, "__dict__", None)
    # What holds it is no part of it.
    return own and {k: v for k, v in own.items() if not isinstance(v, weakref.ref)}


def _is_same(item: Any, again: Any, depth: int = MOST_DEEP) -> bool:
    """Whether two items are equal in all that they hold; False where that cannot be told."""
    if type(item) is not type(again) or depth < 0:
        return False
    if isinstance(item, PLAIN):
        return bool(item == again)
    if hasattr(item, "dtype") and hasattr(item, "shape"):
        if item.dtype != again.dtype or item.shape != again.shape:
            return False
        nan = (item != item) & (again != again)  # noqa: PLR0124
        return bool(((item == again) | nan).all())
    held, held_again = _within(item), _within(again)
    return bool(
        held is not None and held_again is not None and held.keys() == held_again.keys()
        and all(_is_same(held[key], held_again[key], depth - 1) for key in held)
    )  # fmt: skip


def _bytes_of(item: Any, depth: int = MOST_DEEP) -> int:
    """About what an item takes."""
    size = getattr(item, "nbytes", None)
    held = _within(item) if size is None and depth else None
    return (size or 100) + sum(_bytes_of(each, depth - 1) for each in (held or {}).values())


def _may_have_more(data: Any, dataset: Any, given: int) -> bool:
    """Whether workers divide the data: an iterable dataset that does not ask which of them it is in
    would give each batch once a worker."""
    if not isinstance(dataset, data.IterableDataset) or given > 1:
        return True
    iterate = getattr(type(dataset).__iter__, "__code__", None)
    return "get_worker_info" in getattr(iterate, "co_names", ())


class PaddingTrimmed(Cure):
    """Batches of texts without the columns that are padding in all of them, as a loader gives them:
    what a mask leaves out, and labels of -100. Only columns at the end, whose tokens no other has
    its place by."""

    name = "padding_trimmed"
    title = "batches of texts end with the longest of them"
    answers = ("padding",)
    result = ROUNDING
    change = 'padding="longest" where batches are made, not "max_length"'
    library = "torch.utils.data.dataloader"

    def apply(self, loaders: Any) -> Undo:
        iterator = loaders._BaseDataLoaderIter
        following = iterator.__next__

        @functools.wraps(following)
        def trimmed(self_: Any) -> Any:
            return _trimmed(following(self_))

        return replaced((iterator, "__next__", trimmed))

    def useless(self, loaders: Any) -> str | None:
        made = instances(loaders.DataLoader, loaders._BaseDataLoaderIter)
        return "there is no DataLoader" if made == [] else None


COLUMNS = 8
"""Lengths are multiples of it: fewer kinds of them, and aligned products."""
NO_LABEL = -100


def _trimmed(batch: Any) -> Any:
    """A batch, a mapping or a tuple, without columns of padding at its end; itself where there are
    none, or where that is not plain."""
    is_mapping = hasattr(batch, "keys") and hasattr(batch, "items")
    if not is_mapping and type(batch) not in (tuple, list):
        return batch
    entries = dict(batch.items()) if is_mapping else dict(enumerate(batch))
    texts = {
        key: value for key, value in entries.items()
        if hasattr(value, "data_ptr") and value.dim() == 2 and not value.is_cuda
        and not value.is_floating_point()
    }  # fmt: skip
    mask = texts.get("attention_mask")
    if not is_mapping:
        masks = [each for each in texts.values() if bool(((each == 0) | (each == 1)).all())]
        mask = masks[0] if len(masks) == 1 and len(texts) > 1 else None
    if mask is None or bool((mask[:, 1:] > mask[:, :-1]).any()):
        return batch
    used = int((mask != 0).sum(1).max())
    length = min(mask.shape[1], -(-max(1, used) // COLUMNS) * COLUMNS)
    for key, value in texts.items():
        rest = value[:, length:]
        is_alike = value.shape == mask.shape
        # What is left out is padding: the same in each, and no label.
        if is_alike and rest.numel() and bool((rest != rest[0, 0]).any()):
            return batch
        if is_alike and rest.numel() and key == "labels" and int(rest[0, 0]) != NO_LABEL:
            return batch
    if length == mask.shape[1]:
        return batch
    for key, value in texts.items():
        if value.shape == mask.shape:
            made = value[:, :length].contiguous()
            entries[key] = made.pin_memory() if value.is_pinned() else made
    if not is_mapping:
        return type(batch)(entries[place] for place in range(len(batch)))
    made = copy.copy(batch)
    made.update(entries)
    return made


LEAST_BYTES = 1 << 16
"""Smaller copies go through the driver's own pinned buffer: nothing to gain (CUDA API reference,
"API synchronization behavior")."""

MOST_REGISTERED_BYTES = 16 << 30
"""Of the program's memory that is locked where it lies, and no more than a quarter of what is
free."""


class PinnedCopies(Cure):
    """Copies to the GPU come from pinned memory, and the CPU waits for none but the copy.

    Memory that copies were made from before is locked where it lies, and copied on a stream of its
    own, which the CPU waits for, because the program may write there next: meanwhile the GPU
    computes. What is new each time goes through torch's pinned memory first, without waiting.
    """

    name = "pinned_copies"
    title = "copies to the GPU come from pinned memory, without waiting for what it computes"
    answers = ("busy.copy_pageable",)
    result = EXACT
    change = (
        "DataLoader(..., pin_memory=True), or x.pin_memory() once; x.to(device, non_blocking=True)"
    )
    in_one_run = False
    advice = "pin_memory"

    def apply(self, torch: Any) -> Undo:
        tensor = torch.Tensor
        to, cuda, copy = tensor.to, tensor.cuda, tensor.copy_
        self._torch = torch
        self._seen: set[tuple[int, int]] = set()
        self._registered: dict[int, Any] = {}
        self._room = min(MOST_REGISTERED_BYTES, _free_bytes() // 4)
        self._stream: Any = None

        def goes_to_gpu(place: Any) -> bool:
            if isinstance(place, torch.Tensor):
                return bool(place.is_cuda)
            if isinstance(place, int) and not isinstance(place, bool):
                return True
            return str(place).startswith("cuda")

        @functools.wraps(to)
        def to_pinned(self_: Any, *args: Any, **kwargs: Any) -> Any:
            place = kwargs.get("device", args[0] if args else None)
            waits = not any(isinstance(word, bool) for word in args)
            if place is not None and waits and goes_to_gpu(place):
                return self._copied(to, self_, args, kwargs)
            return to(self_, *args, **kwargs)

        @functools.wraps(cuda)
        def cuda_pinned(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) < 2:
                return self._copied(cuda, self_, args, kwargs)
            return cuda(self_, *args, **kwargs)

        @functools.wraps(copy)
        def copy_pinned(self_: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            # Where it goes may be in use: in its order, and without waiting only from a copy.
            comes_from_cpu = self_.is_cuda and isinstance(source, torch.Tensor) and not args
            if comes_from_cpu and self._is_large(source) and not source.is_pinned():
                source, kwargs = source.pin_memory(), {**kwargs, "non_blocking": True}
            return copy(self_, source, *args, **kwargs)

        restore = replaced(
            (tensor, "to", to_pinned), (tensor, "cuda", cuda_pinned), (tensor, "copy_", copy_pinned)
        )
        return combined(self._unlock, restore)

    def _is_large(self, source: Any) -> bool:
        return (
            source.device.type == "cpu"
            and source.layout is self._torch.strided
            and source.numel() * source.element_size() >= LEAST_BYTES
            and not source.requires_grad
        )

    def _copied(self, move: Any, source: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not self._is_large(source) or kwargs.get("non_blocking"):
            return move(source, *args, **kwargs)
        kwargs = {**kwargs, "non_blocking": True}
        if not source.is_pinned() and not self._lock(source):
            return move(source.pin_memory(), *args, **kwargs)
        cuda = self._torch.cuda
        self._stream = self._stream or cuda.Stream()
        with cuda.stream(self._stream):
            made = move(source, *args, **kwargs)
        self._stream.synchronize()
        made.record_stream(cuda.current_stream())
        return made

    def _lock(self, source: Any) -> bool:
        """Locks the memory of a tensor that is seen a second time; whether it is locked."""
        storage = source.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if (place, size) not in self._seen:
            self._seen.add((place, size))
            return False
        if size > self._room:
            return False
        runtime = self._torch.cuda.cudart()
        if int(runtime.cudaHostRegister(place, size, 0)) != 0:
            return False
        self._room -= size
        self._registered[place] = source  # kept: locked memory must not be freed
        return True

    def _unlock(self) -> None:
        if self._registered:
            self._torch.cuda.synchronize()
        for place in self._registered:
            self._torch.cuda.cudart().cudaHostUnregister(place)
        self._registered.clear()


class PinnedResults(Cure):
    """What is copied from the GPU (.cpu(), .to("cpu")) goes to pinned memory that torch keeps for
    the next time: neither through the driver's buffer nor into pages that are new each time."""

    name = "pinned_results"
    title = "copies from the GPU go to pinned memory"
    answers = ("busy.copy_pageable",)
    result = EXACT
    change = "out = torch.empty_like(x, device='cpu', pin_memory=True)  # once; out.copy_(x)"
    advice = "copy back"

    def apply(self, torch: Any) -> Undo:
        if not torch.cuda.is_available():
            raise CannotApply("the program does not use a GPU")
        cpu, to = torch.Tensor.cpu, torch.Tensor.to
        used: dict[int, int] = {}
        room = min(MOST_REGISTERED_BYTES, _free_bytes() // 4)

        def pinned(source: Any) -> Any:
            """The copy; None where it is made as it was."""
            if type(source) is not torch.Tensor or not self.is_far(source):
                return None
            size = source.numel() * source.element_size()
            is_plain = source.layout is torch.strided and not source.is_conj()
            has_graph = source.requires_grad and torch.is_grad_enabled()
            # Memory that the program holds is another each time.
            if size < LEAST_BYTES or not is_plain or has_graph or sum(used.values()) > room:
                return None
            made = self.empty(torch, source)
            used[made.data_ptr()] = size
            return made.copy_(source)

        @functools.wraps(cpu)
        def cpu_pinned(source: Any, *args: Any, **kwargs: Any) -> Any:
            made = pinned(source) if not args and not kwargs else None
            return cpu(source, *args, **kwargs) if made is None else made

        @functools.wraps(to)
        def to_pinned(source: Any, *args: Any, **kwargs: Any) -> Any:
            place = args[0] if args else kwargs.get("device")
            is_cpu = len(args) + len(kwargs) == 1 and str(place) == "cpu"
            made = pinned(source) if is_cpu else None
            return to(source, *args, **kwargs) if made is None else made

        return replaced((torch.Tensor, "cpu", cpu_pinned), (torch.Tensor, "to", to_pinned))

    def is_far(self, source: Any) -> bool:
        """Whether it is on a GPU."""
        return bool(source.is_cuda)

    def empty(self, torch: Any, source: Any) -> Any:
        """Where it is copied to."""
        return torch.empty_like(source, device="cpu", pin_memory=True)


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


LEAST_KEPT_BYTES = 1 << 20
"""NumPy's arrays from which a copy to the GPU is worth sparing."""


class JaxArraysKept(Cure):
    """NumPy's arrays that a function of jax.jit is given again and again are copied to the GPU
    once. Meanwhile they cannot be written to: a program that tries fails, and says so."""

    name = "jax_arrays_kept"
    title = "NumPy arrays that a jitted function is given again stay on the GPU"
    answers = (ANY, "given_to_each_call", "busy.copy_pageable", "busy.copy_pinned", "idle.wait")
    result = EXACT
    is_certain = True
    change = "table = jax.device_put(table) once, before the loop"
    library = "jax"
    advice = "device_put"

    _is_on = False

    def prepare(self, jax: Any) -> None:
        real = jax.jit
        self._seen: dict[int, Any] = {}
        self._kept: dict[int, tuple[Any, bool]] = {}
        self._again = 0

        @functools.wraps(real)
        def jit(function: Any = None, **options: Any) -> Any:
            if function is None:
                return functools.partial(jit, **options)
            made = real(function, **options)
            # What a call takes over is gone after it.
            takes_over = any(name.startswith("donate") for name in options)
            return made if takes_over else self._given_kept(jax, made)

        replaced((jax, "jit", jit))

    def _given_kept(self, jax: Any, made: Any) -> Any:
        @functools.wraps(made)
        def called(*args: Any, **kwargs: Any) -> Any:
            if any(map(_may_stay, (*args, *kwargs.values()))):
                args = tuple(self._on_gpu(jax, value) for value in args)
                kwargs = {key: self._on_gpu(jax, kwargs[key]) for key in kwargs}
            return made(*args, **kwargs)

        for name in ("lower", "trace", "eval_shape", "clear_cache"):
            if hasattr(made, name):
                setattr(called, name, getattr(made, name))
        return called

    def _on_gpu(self, jax: Any, value: Any) -> Any:
        place = id(value)
        if not _may_stay(value):
            return value
        if self._seen.get(place) is not value:
            if len(self._seen) < MOST_ARRAYS:
                self._seen[place] = value
            return value
        self._again += 1
        if self._is_on and place not in self._kept:
            self._kept[place] = jax.device_put(value), _frozen(value)
        return self._kept[place][0] if self._is_on else value

    def apply(self, _jax: Any) -> Undo:
        if self._again < LEAST_AGAIN:
            raise CannotApply("no jitted function is given the same NumPy array again")
        self._is_on = True

        def undo() -> None:
            self._is_on = False
            for place, (_, was_writeable) in self._kept.items():
                self._seen[place].flags.writeable = was_writeable
            self._kept.clear()

        return undo


def _may_stay(value: Any) -> bool:
    """Whether it is a large array of NumPy, and no view, which may be written to by another
    name."""
    kind = sys.modules["numpy"].ndarray
    return type(value) is kind and value.base is None and value.nbytes >= LEAST_KEPT_BYTES


def _frozen(array: Any) -> bool:
    """Has it raise where it is written to; whether it did not before."""
    was_writeable = bool(array.flags.writeable)
    array.flags.writeable = False
    return was_writeable


MOST_ARRAYS = 64
LEAST_AGAIN = 3
"""Times that arrays were given again before anything is switched."""


class AccumulationMerged(Cure):
    """transformers' Trainer with batches as large as those whose gradients it adds up, where they
    are small: the same examples in each step, in one pass. It needs more memory."""

    name = "accumulation_merged"
    title = "Trainer takes the batches whose gradients it adds up at once"
    answers = (ANY, "idle.launch", "idle.host")
    result = ROUNDING
    change = "per_device_train_batch_size times as large, gradient_accumulation_steps=1"
    library = "transformers.training_args"
    in_one_run = False
    is_certain = True
    forecast = None

    def apply(self, arguments: Any) -> Undo:
        kind = arguments.TrainingArguments
        after = kind.__post_init__

        @functools.wraps(after)
        def merged(self: Any, *args: Any, **kwargs: Any) -> None:
            self.per_device_train_batch_size *= self.gradient_accumulation_steps
            self.gradient_accumulation_steps = 1
            after(self, *args, **kwargs)

        return replaced((kind, "__post_init__", merged))

    def useless(self, arguments: Any) -> str | None:
        made = instances(arguments.TrainingArguments)
        if made is not None and not any(each.gradient_accumulation_steps > 1 for each in made):
            return "no Trainer adds up gradients"
        return None


class ModulesOnGpu(Cure):
    """Modules without trained parameters that the loop calls on the CPU, such as a spectrogram's or
    another transform's, on the GPU: their input goes there before them instead of their result
    behind them."""

    name = "modules_on_gpu"
    title = "transforms that are modules run on the GPU"
    answers = ("idle.host", "idle.input")
    result = ROUNDING
    change = "transform.to(device), and transform(x.to(device, non_blocking=True))"
    advice = "compute it on the GPU"

    _device: Any = None
    """Where they go while it is on."""

    def prepare(self, torch: Any) -> None:
        # Before steps are marked at the calls of classes of modules, which keep what they called.
        call, own = torch.nn.Module.__call__, (os.getpid(), threading.get_ident())
        inside = [False]
        self._moved: list[Any] = []

        def is_on_cpu(value: Any) -> bool:
            return isinstance(value, torch.Tensor) and value.device.type == "cpu"

        def may_move(module: Any) -> bool:
            values = [*module.parameters(), *module.buffers()]
            return all(is_on_cpu(each) and not each.requires_grad for each in values)

        @functools.wraps(call)
        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            device = self._device
            # Those of a loader's workers stay where they are.
            if device is None or inside[0] or own != (os.getpid(), threading.get_ident()):
                return call(module, *args, **kwargs)
            inside[0] = True
            try:
                is_worth = any(is_on_cpu(each) and each.numel() >= LEAST_BYTES for each in args)
                if is_worth and (module in self._moved or may_move(module)):
                    if module not in self._moved:
                        self._moved.append(module.to(device))
                    args = tuple(
                        each.to(device, non_blocking=True) if is_on_cpu(each) else each
                        for each in args
                    )
                return call(module, *args, **kwargs)
            finally:
                inside[0] = False

        replaced((torch.nn.Module, "__call__", called))

    def apply(self, torch: Any) -> Undo:
        if not torch.cuda.is_initialized():
            raise CannotApply("the program does not use a GPU")
        self._device = torch.device("cuda", torch.cuda.current_device())

        def back() -> None:
            self._device = None
            while self._moved:
                self._moved.pop().to("cpu")

        return back


class ActivationsStay(Redirected):
    """What a backward pass needs stays on the GPU, where the program puts it on the CPU meanwhile
    (torch.autograd.graph.save_on_cpu)."""

    name = "activations_stay"
    title = "what backward passes need is not put on the CPU meanwhile"
    answers = (ANY, "busy.copy_pinned", "busy.copy_pageable")
    result = EXACT
    is_certain = True
    change = "no torch.autograd.graph.save_on_cpu, or for fewer layers: it needs more memory"
    forecast = None

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        self._hooks = torch.autograd.graph.saved_tensors_hooks
        return ((torch.autograd.graph.save_on_cpu, "__init__"),)

    def instead(self, _function: Any, args: Any, _kwargs: Any) -> Callable[[], Any] | None:
        return functools.partial(self._hooks.__init__, args[0], _itself, _itself)


def _itself(value: Any) -> Any:
    return value


# As timm, torch and most programs call them: ModelEmaV3, AveragedModel.
_AVERAGE = re.compile(r"ema|averag", re.I)


class AveragesOnGpu(Cure):
    """A moving average of the weights, held on the CPU, on the GPU beside them."""

    name = "averages_on_gpu"
    title = "averages of the weights (EMA) lie on the GPU"
    answers = (ANY, "idle.sync", "idle.host", "idle.launch", "busy.copy_pageable")
    result = ROUNDING
    is_certain = True
    forecast = None
    change = "ModelEmaV3(model, device=None): the average on the GPU"

    _averages: list[Any] | None = None
    _weights: list[Any] | None = None
    """Of those that are no module."""

    def apply(self, torch: Any) -> Undo:
        if self._averages is None:
            modules = instances(torch.nn.Module) or []
            self._averages = [
                each
                for each in modules
                if _AVERAGE.search(type(each).__name__)
                and isinstance(getattr(each, "module", None), torch.nn.Module)
                and {value.device.type for value in each.module.parameters()} == {"cpu"}
            ]
        if self._weights is None:
            self._weights = _averaged(torch)
        is_far = self._averages or self._weights
        if not is_far or not torch.cuda.is_initialized():
            raise CannotApply("no average of weights lies on the CPU")
        device, undos = torch.device("cuda", torch.cuda.current_device()), []
        for weight in self._weights:
            weight.data = weight.data.to(device)
            undos.append(functools.partial(_to_cpu, weight))
        for each in self._averages:
            each.module.to(device)
            undos.append(functools.partial(each.module.to, "cpu"))
            # timm's: where it copies weights to, and all of them at once where that is nowhere.
            for name, value in (("device", None), ("foreach", True)):
                if name in vars(each):
                    undos.append(functools.partial(setattr, each, name, vars(each)[name]))
                    setattr(each, name, value)
        return combined(*undos)


def _to_cpu(weight: Any) -> None:
    weight.data = weight.data.cpu()


LEAST_AVERAGED = 8


def _averaged(torch: Any) -> list[Any]:
    """Tensors on the CPU that objects which are called averages hold in a list or by name."""
    names: dict[Any, bool] = {}
    weights: dict[int, Any] = {}
    for each in gc.get_objects():
        kind = type(each)
        if kind not in names:
            names[kind] = bool(_AVERAGE.search(kind.__name__)) and not issubclass(
                kind, torch.nn.Module
            )
        for held in getattr(each, "__dict__", {}).values() if names[kind] else ():
            values = list(held.values()) if type(held) is dict else held
            if type(values) is list and len(values) >= LEAST_AVERAGED and all(
                type(value) is torch.Tensor and value.device.type == "cpu"
                and value.is_floating_point() and not value.requires_grad
                for value in values
            ):  # fmt: skip
                weights.update((id(value), value) for value in values)
    return list(weights.values())


class ResultsKept(Cure):
    """A module that is given the same tensors again, unchanged, where no gradients are asked for,
    returns what it gave before: an encoder within the loop of a sampler, keys and values of what
    is attended to at each token. Tensors of inference mode do not count how often they were written
    to: sums of them are compared at the end, and where one was, the cure is not applied again."""

    name = "results_kept"
    title = "a module that is given the same tensors again returns what it gave"
    answers = (ANY, "repeated_layers")
    result = EXACT
    is_certain = True
    change = "what stays the same is computed once, before the loop"

    _is_on = _was_written = False
    _left = 20_000
    """Calls of modules that are looked at before it is switched."""

    def prepare(self, torch: Any) -> None:
        call, main = torch.nn.Module.__call__, threading.get_ident()
        self._torch = torch
        self._again: dict[int, int] = {}
        self._seen: dict[int, list[tuple[Any, list[Any]]]] = {}
        self._kept: dict[int, list[Any]] = {}
        self._watched: dict[int, tuple[Any, Any]] = {}

        @functools.wraps(call)
        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._was_written or (not self._is_on and self._left <= 0):
                return call(module, *args, **kwargs)
            if (
                torch.is_grad_enabled() or module.training or threading.get_ident() != main
                or torch.compiler.is_compiling()
            ):  # fmt: skip
                return call(module, *args, **kwargs)
            given = (*args, *kwargs.values())
            if not self._is_on:
                self._look(module, given, (*map(_as_given, given), *kwargs))
                return call(module, *args, **kwargs)
            if (
                self._again.get(id(module), 0) < LEAST_GIVEN or not any(map(_is_tensor, given))
                or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
            ):  # fmt: skip
                return call(module, *args, **kwargs)
            owned = (*module.parameters(), *module.buffers())
            key = (*map(_as_given, given), *kwargs, *map(_writes, owned))
            kept = self._kept.setdefault(id(module), [])
            for same, _, made, state in kept:
                if same == key and state == _as_made(made):
                    return made
            if len(kept) >= MOST_WATCHED and self._watched:
                self._compare()
                return call(module, *args, **kwargs)
            before = _random(torch)
            made = call(module, *args, **kwargs)
            if all(map(torch.equal, before, _random(torch))) and self._watch(given, owned, made):
                self._kept[id(module)] = [
                    (key, given, made, _as_made(made)), *kept[: MOST_GIVEN - 1]
                ]  # fmt: skip
            return made

        replaced((torch.nn.Module, "__call__", called))

    def _look(self, module: Any, given: Any, key: Any) -> None:
        self._left -= 1
        seen = self._seen.setdefault(id(module), [])
        # A tensor that is gone may have left its place, and its number, to another.
        again = any(same == key and None not in [ref() for ref in refs] for same, refs in seen)
        self._again[id(module)] = self._again.get(id(module), 0) + again
        refs = [weakref.ref(value) for value in given if _is_tensor(value)]
        self._seen[id(module)] = [(key, refs), *seen[: MOST_GIVEN - 1]]

    def _watch(self, *values: Any) -> bool:
        """Whether all tensors of inference mode among these are compared at the end."""
        for value in values:
            if isinstance(value, (tuple, list, dict)):
                if not self._watch(*(value.values() if isinstance(value, dict) else value)):
                    return False
            elif _writes(value) is UNCOUNTED and id(value) not in self._watched:
                try:
                    self._watched[id(value)] = value, _sums(self._torch, value)
                except Exception:  # of a kind without sums
                    return False
        return True

    def _compare(self) -> None:
        """Whether what was watched is as it was; nothing is kept then."""
        equal = self._torch.equal
        self._was_written |= any(
            not equal(sums, _sums(self._torch, value)) for value, sums in self._watched.values()
        )
        self._watched.clear()
        self._kept.clear()

    def apply(self, _torch: Any) -> Undo:
        self._left = 0
        if max(self._again.values(), default=0) < LEAST_GIVEN:
            raise CannotApply("no module is given the same tensors again")
        if self._was_written:
            raise CannotApply("what modules are given again was written to between")
        self._is_on = True

        def undo() -> None:
            self._is_on = False
            self._compare()

        return undo


LEAST_GIVEN = 3
"""Times that a module was given the same tensors again before it is switched, from which it is
given them in each step, and not once by chance."""
MOST_GIVEN = 4
"""Different inputs of a module that are remembered: with and without guidance, say;"""
SAMPLED = 1 << 14
"""Values of a tensor that are compared with what they were."""
MOST_WATCHED = 2
"""and of those that do not count how often they are written to, for which memory is held."""
UNCOUNTED = "not counted"


def _as_given(value: Any) -> Any:
    """What tells one argument from another: a tensor by itself and how often it was written to."""
    if _is_tensor(value):
        return id(value), _writes(value)
    return value if isinstance(value, PLAIN) else object()


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr")


def _writes(value: Any) -> Any:
    """How often a tensor was written to; UNCOUNTED where it was made in inference mode; None of
    what is no tensor."""
    if not _is_tensor(value):
        return None
    return UNCOUNTED if value.is_inference() else value._version


def _sums(torch: Any, value: Any) -> Any:
    """What tells a tensor from what it was before it was written to, where it is: nothing waits
    for it. The sum of its bits, read once, and values from all over it: an order is no sum.
    In FP64, twice, the sums took most of what a decoder gained."""
    real = torch.view_as_real(value) if value.is_complex() else value
    bits = real.detach().view(getattr(torch, f"int{8 * real.element_size()}"))
    every = max(1, bits.numel() // SAMPLED)
    sampled = bits.flatten()[::every] if bits.is_contiguous() else bits[:1].flatten()[:SAMPLED]
    return torch.cat((bits.sum(dtype=torch.int64).reshape(1), sampled.long()))


def _random(torch: Any) -> list[Any]:
    """The states of what draws random numbers."""
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    return [each.get_state() for each in generators]


def _as_made(value: Any) -> Any:
    """How often the tensors of a result were written to."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return tuple(map(_as_made, value))
    return _writes(value)


_FOLLOWS = {
    "linalg": "", "fft": "",
    "nn.functional": "normalize one_hot interpolate pad unfold softmax log_softmax",
    "": "inverse cdist cov corrcoef sort argsort unique topk cumsum tril triu kron matmul mm bmm "
    "einsum softmax log_softmax quantile median",
    "Tensor": "inverse sort argsort unique topk cumsum to float double half bfloat16 contiguous "
    "repeat to_dense to_sparse to_sparse_csr coalesce softmax log_softmax",
}  # fmt: skip
"""Functions whose result follows from their arguments: all of a module, where none is named."""


class ComputedKept(Cure):
    """Functions of torch that are given the very tensors again, unchanged, and no gradients are
    asked of, give what they gave: an inverse, a transform or a cast of what stays as it is. Where
    the program writes to what was kept, that is not kept again, and where it had been given it
    twice, the cure is not applied again."""

    name = "computed_kept"
    title = "functions of torch that are given the same tensors again return what they gave"
    answers: ClassVar[tuple[str, ...]] = ("computed_before",)
    result = EXACT
    change = "what follows from what stays the same is computed once, before the loop"

    _was_written = False

    def apply(self, torch: Any) -> Undo:
        if self._was_written:
            raise CannotApply("what functions were given again was written to")
        self._torch = torch
        self._kept: dict[Any, _Kept] = {}
        self._room = _free_bytes_of_gpu(torch) // 4
        places = [
            (owner, name, self._keeping(getattr(owner, name))) for owner, name in self.places(torch)
        ]
        undo = replaced(*places)
        return combined(lambda: self._kept.clear(), undo)

    def places(self, torch: Any) -> list[tuple[Any, str]]:
        """Where the functions are."""
        places = []
        for place, names in _FOLLOWS.items():
            owner = torch
            for part in filter(None, place.split(".")):
                owner = getattr(owner, part)
            for name in names.split() or [each for each in dir(owner) if each.islower()]:
                function = getattr(owner, name, None)
                if name[0] != "_" and callable(function) and not isinstance(function, type):
                    places.append((owner, name))
        return places

    def _keeping(self, function: Any) -> Any:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            tensors = [each for each in (*args, *kwargs.values()) if _is_tensor(each)]
            key = self._key(function, tensors, args, kwargs) if tensors else None
            if key is None:
                return function(*args, **kwargs)
            kept, writes = self._kept.get(key), [each._version for each in tensors]
            if kept is None or not kept.is_of(writes):
                if kept is not None and kept.made is not None:
                    self._room += _bytes_of(kept.made)
                if len(self._kept) < MOST_COMPUTED or kept is not None:
                    self._kept[key] = _Kept(tensors, writes)  # what is given once is not held
                else:
                    self._kept = {k: v for k, v in self._kept.items() if v.made is not None}
                return function(*args, **kwargs)
            if kept.made is not None and kept.state != _as_made(kept.made):
                self._was_written = self._was_written or kept.times > 1
                kept.made, kept.is_written = None, True  # it is the program's own from now on
            if kept.made is None:
                before = _random(self._torch)
                made = function(*args, **kwargs)
                is_same = all(map(self._torch.equal, before, _random(self._torch)))
                kept.is_written = kept.is_written or not is_same
                if not kept.is_written and _are_tensors(made) and _bytes_of(made) < self._room:
                    self._room -= _bytes_of(made)
                    # What it is of is held with it: its memory is no other's then.
                    kept.made, kept.state, kept.tensors = made, _as_made(made), tensors
                kept.times = 1
                return made
            kept.times += 1
            return kept.made

        return called

    def _key(self, function: Any, tensors: list[Any], args: Any, kwargs: Any) -> Any:
        """What tells a call from others; None for one that is made as it is."""
        torch = self._torch
        if torch.compiler.is_compiling() or len(tensors) > MOST_TENSORS:
            return None
        if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
            return None
        if not any(map(self.is_far, tensors)) or any(each.is_inference() for each in tensors):
            return None
        given = (*args, *kwargs.values())
        modules = [each for each in given if isinstance(each, torch.nn.Module)]
        others = [each for each in given if not _is_tensor(each) and each not in modules]
        plain = (*PLAIN, torch.dtype, torch.device, torch.memory_format, torch.layout)
        if not all(isinstance(each, plain) or _is_shape(each) for each in others):
            return None
        # What depends on trained parameters has gradients, and is not kept for that.
        owned = [value for each in modules for value in (*each.parameters(), *each.buffers())]
        return (
            function, *map(_place, tensors), *map(repr, others), *kwargs, *map(id, modules),
            *(value._version for value in owned if not value.requires_grad),
            torch.is_autocast_enabled("cuda"), torch.is_inference_mode_enabled(),
        )  # fmt: skip

    def is_far(self, tensor: Any) -> bool:
        """Whether it is on a GPU, and worth it."""
        return bool(tensor.is_cuda) and int(tensor.nbytes) >= LEAST_BYTES


class GraphsKept(ComputedKept):
    """What a graph's layer passes along its edges, and their weights, where neither the graph nor
    what is passed changes, and nothing in it is trained: the first layers of a network over one
    graph with fixed features (PyG)."""

    name = "graphs_kept"
    title = "what is passed along the edges of the same graph is computed once"
    answers = (ANY, "computed_before")
    is_certain = True
    change = "SGConv(..., cached=True), GCNConv(..., cached=True), or x propagated before the loop"
    library = "torch_geometric"

    def apply(self, _library: Any) -> Undo:
        return super().apply(sys.modules["torch"])

    def places(self, _torch: Any) -> list[tuple[Any, str]]:
        """Where the functions are: some classes have a function of their own."""
        message = sys.modules["torch_geometric"].nn.MessagePassing
        kinds = {base for each in instances(message) or () for base in type(each).__mro__}
        if not kinds:
            raise CannotApply("there is no layer of PyG")
        named = [
            module for name, module in sys.modules.items()
            if name.startswith("torch_geometric.") and "gcn_norm" in vars(module)
        ]  # fmt: skip
        own = [(kind, "propagate") for kind in kinds if "propagate" in vars(kind)]
        return [*own, *((module, "gcn_norm") for module in named)]


MOST_COMPUTED, MOST_TENSORS = 512, 4


def _owner(tensor: Any) -> Any:
    return tensor if tensor._base is None else tensor._base


def _place(tensor: Any) -> tuple[Any, ...]:
    """Which tensor it is, and of what it is a view."""
    place = id(_owner(tensor)), tensor.data_ptr()
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype)


class _Kept:
    """What a function gave of tensors that were written to so often."""

    def __init__(self, tensors: list[Any], writes: list[int]) -> None:
        self._writes, self._refs = writes, [weakref.ref(_owner(each)) for each in tensors]
        self.made: Any = None
        self.state: Any = None
        self.tensors: list[Any] = []
        self.times = 0
        self.is_written = False

    def is_of(self, writes: list[int]) -> bool:
        """Whether they are those that there were, and as they were."""
        return self._writes == writes and None not in [ref() for ref in self._refs]


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(each, PLAIN) for each in value)


def _are_tensors(value: Any) -> bool:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return all(_is_tensor(each) and not each.requires_grad for each in values)


def _free_bytes_of_gpu(torch: Any) -> int:
    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_initialized() else _free_bytes()


class BeginningKept(Cure):
    """Keys and values of a beginning that all texts share, in a batch and from batch to batch, kept
    for a causal model of transformers that computes whole texts without gradients: what comes later
    has no part in them. It is looked in each call whether the texts begin so."""

    name = "beginning_kept"
    title = "a causal model keeps what it computed of a beginning that all texts share"
    answers = ("shared_beginning",)
    result = ROUNDING
    change = "past_key_values of the beginning, computed once, for each batch (cropped after it)"
    library = "transformers.modeling_utils"

    _models: list[Any] | None = None

    def apply(self, modeling: Any) -> Undo:
        if self._models is None:
            self._models = [
                each
                for each in instances(modeling.PreTrainedModel) or []
                if not getattr(each.config, "is_encoder_decoder", False)
                and each.get_output_embeddings() is not None
            ]
        if not self._models:
            raise CannotApply("there is no causal model of transformers")
        wrapped = [(each, "forward", _Beginning(each).forward) for each in self._models]
        return replaced(*wrapped)


LEAST_SHARED, LEAST_SHARED_PART = 64, 0.25
"""Tokens of a beginning, and its part of a text, from which it is kept."""
MOST_BEGINNINGS = 8
_LEFT_OPEN = {"input_ids", "attention_mask", "use_cache", "logits_to_keep", "return_dict"}


class _Beginning:
    """The beginning of a model's texts."""

    def __init__(self, model: Any) -> None:
        self._model, self._forward = model, model.forward
        self._torch = sys.modules["torch"]
        self._ids: Any = None
        """The last text, and the shared beginning of all,"""
        self._shared: Any = None
        self._caches: dict[int, Any] = {}
        """with its keys and values by the size of a batch,"""
        self._logits: Any = None
        """and what the model gave for it."""
        self._kept = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own."""
        made = None
        if len(args) <= 1 and not self._torch.is_grad_enabled() and not self._model.training:
            given = {key: kwargs[key] for key in kwargs if kwargs[key] is not None}
            ids = args[0] if args else given.get("input_ids")
            if ids is not None and ids.dim() == 2 and given.keys() <= _LEFT_OPEN:
                made = self._computed(ids, given)
        return self._forward(*args, **kwargs) if made is None else made

    def _computed(self, ids: Any, given: dict[str, Any]) -> Any:
        """With what is kept; None where it is not of that."""
        before, self._ids = self._ids, ids[0].clone()
        keeps, mask = given.get("logits_to_keep", 0), given.get("attention_mask")
        if before is None or not isinstance(keeps, int) or given.get("return_dict") is False:
            return None
        shared = self._shared
        if shared is None or len(shared) >= ids.shape[1] or (
            not bool((ids[:, : len(shared)] == shared).all())
        ):  # fmt: skip
            shared = self._found(ids, before)
        if shared is None:
            return None
        length, (batch, whole) = len(shared), ids.shape
        if mask is not None and (mask.shape != ids.shape or not bool(mask[:, :length].all())):
            return None
        if batch not in self._caches:
            self._caches = {1: self._caches[1], batch: _cache_of(self._caches[1])}
            self._caches[batch].batch_repeat_interleave(batch)
        more = {"attention_mask": mask} if mask is not None else {}
        if 0 < keeps <= whole - length:
            more["logits_to_keep"] = keeps
        made = self._forward(
            input_ids=ids[:, length:], past_key_values=_cache_of(self._caches[batch]),
            use_cache=True, **more,
        )  # fmt: skip
        if keeps == 0 or keeps > whole - length:
            first = self._logits.expand(batch, -1, -1)
            logits = self._torch.cat((first, made.logits), 1)
            made.logits = logits[:, -keeps:] if keeps else logits
        if given.get("use_cache") is False:
            made.past_key_values = None
        return made

    def _found(self, ids: Any, before: Any) -> Any:
        """The beginning that these texts share with the one before, kept; None where it is short,
        or others were kept too often."""
        length = min(len(before), ids.shape[1] - 1)
        same = (ids[:, :length] == before[:length]).all(0)
        length = int(same.long().cumprod(0).sum())
        if length < max(LEAST_SHARED, LEAST_SHARED_PART * ids.shape[1]):
            return None
        self._kept += 1
        if self._kept > MOST_BEGINNINGS:
            return None
        shared = ids[0, :length].clone()
        made = self._forward(input_ids=shared[None], use_cache=True)
        cache = made.past_key_values
        layers = getattr(cache, "layers", ())
        if not layers or any(type(each).__name__ != "DynamicLayer" for each in layers):
            self._kept = MOST_BEGINNINGS
            return None
        self._shared, self._logits, self._caches = shared, made.logits, {1: cache}
        return shared


def _cache_of(cache: Any) -> Any:
    """A cache with the same keys and values, which grows by itself: layers replace theirs by longer
    ones."""
    made = copy.copy(cache)
    made.layers = [copy.copy(layer) for layer in cache.layers]
    return made


class CacheGrows(Cure):
    """A tensor that grows by torch.cat, such as a decoder's keys and values, grows within memory
    that has room for it: what was there is not read and written again. What is given out are parts
    of that memory, and only the newest of them grows."""

    name = "cache_grows"
    title = "tensors that grow by torch.cat grow in place"
    answers = ("copies",)
    result = EXACT
    change = "a buffer of the full length, made once, and slices of it"
    advice = r"torch\.cat"

    def apply(self, torch: Any) -> Undo:
        growing: dict[int, _Growing] = {}
        cat = torch.cat

        @functools.wraps(cat)
        def grown(tensors: Any, dim: Any = 0, **options: Any) -> Any:
            is_pair = type(tensors) in (tuple, list) and len(tensors) == 2
            if (
                not is_pair or options or type(dim) is not int or not self.is_worth(tensors)
                or torch.is_grad_enabled() or torch.compiler.is_compiling()
            ):  # fmt: skip
                return cat(tensors, dim, **options)
            first = tensors[0]
            before = growing.pop(id(first), None)
            made = None
            if before is not None and before.tensor() is first:
                made = before.with_more(torch, tensors[1], dim % tensors[0].dim())
            if made is None:
                made = _Growing(cat(tensors, dim), None, 0)
            if len(growing) >= MOST_GROWING:
                growing.clear()
            growing[id(made.newest)] = made
            return made.given()

        places = [(torch, name, grown) for name in ("cat", "concat", "concatenate")]
        return combined(growing.clear, replaced(*places))

    def is_worth(self, tensors: Any) -> bool:
        """Whether the first is much, on a GPU, and the second little."""
        first, second = tensors
        return (
            bool(first.is_cuda) and first.nbytes >= LEAST_KEPT_BYTES
            and first.dtype is second.dtype and first.dim() == second.dim()
            and second.numel() * 4 <= first.numel()
        )  # fmt: skip


MOST_GROWING = 1024
LEAST_ROOM = 64


class _Growing:
    """What torch.cat gave, within memory that has room for more; without any where it was the
    first."""

    def __init__(self, newest: Any, memory: Any, version: int) -> None:
        self.newest, self._memory, self._version = newest, memory, version
        self.tensor = weakref.ref(newest)

    def given(self) -> Any:
        """It, held by who asked for it alone."""
        newest, self.newest = self.newest, None
        return newest

    def with_more(self, torch: Any, more: Any, dim: int) -> _Growing | None:
        """With more behind it; None where that has no place in it."""
        first: Any = self.tensor()
        have, whole = first.shape[dim], first.shape[dim] + more.shape[dim]
        shape = list(first.shape)
        if [n for d, n in enumerate(more.shape) if d != dim] != [
            n for d, n in enumerate(shape) if d != dim
        ]:
            return None
        memory = self._memory
        if memory is None or memory.shape[dim] < whole:
            shape[dim] = max(whole + LEAST_ROOM, whole + whole // 2)
            if shape[dim] * first.nbytes > have * _free_bytes_of_gpu(torch) // 4:
                return None
            memory = torch.empty(shape, dtype=first.dtype, device=first.device)
            memory.narrow(dim, 0, have).copy_(first)
        elif not memory.is_inference() and memory._version != self._version:
            return None  # the program writes to it
        memory.narrow(dim, have, more.shape[dim]).copy_(more)
        newest = memory.narrow(dim, 0, whole)
        version = 0 if memory.is_inference() else memory._version
        return _Growing(newest, memory, version)
