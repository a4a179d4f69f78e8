"""Data on its way to the program: loaders, what a data set reads and makes, padding."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
import sys
import weakref
from typing import TYPE_CHECKING, Any

from . import ANY, EXACT, PLAIN, ROUNDING, Cure, Redirected, combined, instances, replaced
from .copies import free_bytes

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
    redraws = True
    # Where they are one thing among others, the advice says what they are for.
    advice = r"(?<!_)workers(?! \(num_workers > 0\) for)"

    def apply(self, data: Any) -> Undo:
        cure, loader = self, data.DataLoader
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
            if not cure._calls_seen:  # of the first, which trains
                cure.seen_from(sys._getframe(1))
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
    is memory: a program whose data do not come again in the trial gains nothing. Where an item is
    another later, which is looked at now and then, the cure ends."""

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
        def changed(fetching: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            if not hasattr(dataset, "__getitems__"):
                dataset = kept.setdefault(id(dataset), _KeptItems(data, dataset, self))
            init(fetching, dataset, *args, **kwargs)

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
    title = "loaders index a dataset in memory once a batch, not once an item, in workers"
    answers = ("idle.input",)
    result = EXACT
    is_certain = True
    change = (
        "DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch_size, drop_last), "
        "batch_size=None, num_workers=2, ...), or __getitems__ in the dataset"
    )
    library = "torch.utils.data"
    in_one_run = False

    def apply(self, data: Any) -> Undo:
        fetcher = data._utils.fetch._MapDatasetFetcher
        fetch, collate = fetcher.fetch, data._utils.collate.default_collate
        torch = sys.modules["torch"]
        looks: dict[int, list[Any]] = {}

        @functools.wraps(fetch)
        def fetched(fetching: Any, indices: Any) -> Any:
            looked = looks.setdefault(id(fetching.dataset), [0, True])
            if not fetching.auto_collation or fetching.collate_fn is not collate or not looked[1]:
                return fetch(fetching, indices)
            looked[0] += 1
            is_looked_at = looked[0] <= ITEMS_CHECKED // 4 or not looked[0] & (looked[0] - 1)
            try:
                if not is_looked_at:
                    return _batched(torch, fetching.dataset[torch.as_tensor(indices)])
                with _drawn_again() as before:
                    made = _batched(torch, fetching.dataset[torch.as_tensor(indices)])
                    looked[1] = before == _drawn()
            except Exception:  # it does more than to index
                looked[1] = False
            right = fetch(fetching, indices)
            if looked[1] and not (before == _drawn() and _is_same(made, right)):
                looked[1] = False
                if looked[0] > ITEMS_CHECKED // 4:  # some were not looked at
                    self.end("a dataset gives something else for all indices at once")
            return right

        loaders = LoaderWorkers()
        loaders.tell = self.tell  # type: ignore[method-assign]
        return combined(loaders.apply(data), replaced((fetcher, "fetch", fetched)))

    def useless(self, data: Any) -> str | None:
        loaders = instances(data.DataLoader)
        if loaders == []:
            return "there is no DataLoader"
        collate, torch = data._utils.collate.default_collate, sys.modules["torch"]
        for each in loaders or ():
            if each.batch_size and each.batch_size > 1 and each.collate_fn is collate:
                try:
                    with _drawn_again():
                        made = _batched(torch, each.dataset[torch.as_tensor([0, 1])])
                        right = collate([each.dataset[0], each.dataset[1]])
                except Exception:  # it does more than to index
                    continue
                if _is_same(made, right):
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
        def get_once(self: Any, key: Any) -> Any:
            place = getattr(self, "_gputui", None), key
            if place[0] is None:
                return get(self, key)
            if place not in kept:
                made = get(self, key)
                own = os.getpid()
                room.setdefault(own, free_bytes() // (2 * (os.cpu_count() or 1)))
                if type(made) is not numpy.ndarray or made.dtype.hasobject:
                    return made
                if made.nbytes > room[own]:
                    return made
                room[own] -= made.nbytes
                kept[place] = made
            return kept[place].copy()

        return replaced((kind, "__init__", opened), (kind, "__getitem__", get_once))

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


class ArraysStacked(Redirected):
    """Tensors that are made of a list of NumPy's arrays or numbers, or of lists of numbers, which
    torch takes number by number, are made of one array of them all: 433 ms a step became 36. Of
    arrays torch warns, once."""

    name = "arrays_stacked"
    title = "tensors of lists of numbers, or of NumPy arrays, are made of one array of them all"
    answers = (ANY, "idle.host", "idle.input")
    result = EXACT
    is_certain = True
    change = "torch.from_numpy(numpy.array(rows)), or numpy.stack, in place of torch.tensor(rows)"
    forecast = None

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        """What makes a tensor of a list."""
        self._torch = torch
        return (torch, "tensor"), (torch, "as_tensor")

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """Lists of several arrays that fit together, and of many numbers."""
        rows: Any = args[0] if args else None
        numpy = sys.modules.get("numpy")
        if type(rows) not in (list, tuple) or len(rows) < 2 or numpy is None or len(args) > 1:
            return None
        first = rows[0]
        if type(first) is not numpy.ndarray:
            count = 1
            while type(first) in (list, tuple) and len(first):
                count, first = count * len(first), first[0]
            count *= first.size if type(first) is numpy.ndarray else 1
            if len(rows) * count < LEAST_LISTED or type(first) in (str, bytes):
                return None
            return functools.partial(self._of_lists, function, numpy, args, kwargs)
        if first.ndim == 0 or not first.size:
            return None
        kind = first.dtype, first.shape
        if first.dtype.kind not in "fiub" or any(
            type(each) is not numpy.ndarray or (each.dtype, each.shape) != kind for each in rows
        ):
            return None
        if kwargs.get("dtype") is None:  # that of one number of them
            kwargs = {**kwargs, "dtype": function([first.reshape(-1)[:1]]).dtype}
        return lambda: function(numpy.stack(rows), **kwargs)

    def _of_lists(self, function: Any, numpy: Any, args: Any, kwargs: Any) -> Any:
        """Of lists within lists. What numpy, or its type, makes something else of than torch, torch
        takes as it is."""
        torch, kinds = self._torch, _kinds_of_numbers(args[0])
        wanted = kwargs.get("dtype")
        try:
            is_plain = kinds <= {bool, int, float}
            # A type of arrays, or a class of NumPy's numbers.
            is_alike = len(kinds) == 1 and numpy.dtype(*kinds).kind in "fiub"
            array = numpy.array(args[0]) if is_plain or is_alike else None
            own = getattr(torch, array.dtype.name) if array is not None else None
        except Exception:  # such as of rows of several lengths: torch has the program's error
            own = None
        if is_plain and own is torch.float64:
            own = torch.get_default_dtype()
        if (
            own is None
            or array is None
            or not array.size
            or not self._may_be(array, own, wanted or own)
        ):
            return function(*args, **kwargs)
        return function(array, **{**kwargs, "dtype": wanted or own})

    def _may_be(self, array: Any, own: Any, dtype: Any) -> bool:
        """Whether numbers become those of a type in the same way from an array as one by one."""
        torch = self._torch
        if array.dtype.kind == "f":
            return dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        if dtype is own:
            return True
        # Numbers that a type cannot hold torch refuses, or rounds once more.
        most = {torch.int64: 1 << 62, torch.int32: 1 << 31, torch.float32: 1 << 24}
        return array.dtype.kind == "i" and bool(abs(array).max() < most.get(dtype, 0))


def _kinds_of_numbers(rows: Any) -> set[Any]:
    """The classes of the numbers of lists within lists; of arrays their types."""
    kinds = set(map(type, rows))
    if kinds & {list, tuple}:
        within = (each for each in rows if type(each) in (list, tuple))
        return set().union(kinds - {list, tuple}, *map(_kinds_of_numbers, within))
    if any(hasattr(kind, "ndim") for kind in kinds):
        return {each.dtype if getattr(each, "ndim", 0) else type(each) for each in rows}
    return kinds


LEAST_LISTED = 256
"""Numbers in lists from which it is worth to make an array of them first."""


class _KeptItems:
    """A dataset whose items are kept, in one worker."""

    def __init__(self, data: Any, dataset: Any, cure: ItemsKept) -> None:
        self._cure, self._returned = cure, 0
        worker = data.get_worker_info()
        share = 4 * (worker.num_workers if worker else 1)
        self._room = min(MOST_ITEMS_BYTES, free_bytes() // share)
        self._dataset, self._checks = dataset, ITEMS_CHECKED
        self._items: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int or self._room <= 0:
            return self._dataset[index]
        if index in self._items:
            self._returned += 1
            if self._returned & (self._returned - 1):
                return copy.deepcopy(self._items[index])
            again = self._dataset[index]
            if not _is_same(again, self._items[index]):
                self._leave()
            return again
        before = _drawn()
        item = self._dataset[index]
        if before != _drawn():
            self._leave()
        elif self._checks:
            self._checks -= 1
            if not _is_same(item, self._dataset[index]):
                self._leave()
        self._room -= bytes_of(item)
        if self._room > 0:
            self._items[index] = copy.deepcopy(item)
        return item

    def _leave(self) -> None:
        """Keep nothing: it makes another item of the same index, or draws for some."""
        self._room = 0
        if self._returned > 1:  # the first was made again
            self._cure.end("a dataset makes another item of the same index later")


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


def bytes_of(item: Any, depth: int = MOST_DEEP) -> int:
    """About how many bytes an item takes, with what it holds."""
    size = getattr(item, "nbytes", None)
    held = _within(item) if size is None and depth else None
    return (size or 100) + sum(bytes_of(each, depth - 1) for each in (held or {}).values())


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
    advice = "pad to the longest text of a batch"

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
