"""Switches every cure on and off, and sees what it changes: prints what came of each as JSON."""

import copy
import functools
import gc
import inspect
import io
import json
import math
import os
import pickle
import statistics
import sys
import threading
import time
import types
import weakref

sys.path.insert(0, os.environ["GPUTUI_ROOT"])

import numpy
import torch
import torch._dynamo
import torch.profiler
import torch.utils.checkpoint
import torch.utils.data
from torch import save as save_by_name

import gputui.cures
from gputui.cures import (
    CannotApply,
    Cure,
    attention,
    compiling,
    copies,
    cures,
    decoding,
    kernels,
    later,
    one_hot,
    precision,
    recomputed,
    stays_on_gpu,
    unread,
    waits,
)
from gputui.cures.computes_by import computes_by

torch.manual_seed(0)
gputui.cures.LOST_S = 0.0  # nobody ends this program
Cure.tell = lambda _, row: SAID.append(row)
CHECKS = {}
CORES = os.sched_getaffinity(0)


def check(function):
    CHECKS[function.__name__] = function
    return function


SAID = []
"""What cures say of themselves."""


def is_lost(function):
    """Whether a cure cannot give the program what it asks for."""
    SAID.clear()
    function()
    return any(row.get("lost") for row in SAID)


# Each gives what the cure changes: it has to differ while that is on, and to be as before after.


@check
def tf32():
    return torch.get_float32_matmul_precision()


@check
def casts_kept():
    """Weights that reach a product as they are; what is computed of them is the same, also where
    they were written to, or are trained."""
    layer, x, seen = DECODER, torch.randn(2, 256), Weights()
    convolution = torch.nn.Conv1d(256, 256, 1)
    for _ in range(2):
        for write in (None, lambda: layer.bias.add_(1.0), lambda: layer.weight.mul_(2.0)):
            with torch.no_grad():
                write and write()
                bf16 = x.to(torch.bfloat16), layer.weight.to(torch.bfloat16)
                expected = torch.nn.functional.linear(*bf16, layer.bias.to(torch.bfloat16))
            for mode in (torch.no_grad, torch.inference_mode):
                with mode(), torch.autocast("cpu", torch.bfloat16), seen:
                    assert layer(x).equal(expected)
                    assert convolution(x.T[None]).dtype is torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        layer(x).sum().backward()
    assert layer.weight.grad.dtype is torch.float32
    layer.weight.grad = layer.bias.grad = None
    assert layer(x).dtype is torch.float32
    return seen.count


DECODER = torch.nn.Linear(256, 256)


class Weights(torch.overrides.TorchFunctionMode):
    """Counts parameters that products are given."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ in ("linear", "conv1d"):
            self.count += sum(type(each) is torch.nn.Parameter for each in args)
        return function(*args, **(kwargs or {}))


def write_to_weights_unseen():
    kept = cures()["casts_kept"]("")
    kept.prepare(torch)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        DECODER(torch.ones(256))
        undo = kept.apply(torch)
        DECODER(torch.ones(256))
        kept.look()
        assert not kept.ended
        DECODER.weight.data.add_(1.0)
        kept.look()
    undo()
    return kept.ended


def made_mask(x, start, value=-math.inf):
    MADE.append(1)
    rows = torch.arange(start, start + x.shape[1], device=x.device)
    return torch.full((len(rows), len(rows)), value).triu(1), rows.float().cos()


class Angles:
    def __init__(self):
        self.width, self.base = 4, torch.ones(4)

    def drawn(self, count):
        MADE.append(1)
        return torch.rand(count)

    def counted(self, count):
        MADE.append(1)
        return torch.ones(count) * len(MADE)

    def own(self, _count):
        MADE.append(1)
        return self.base

    def zeros(self, count):
        MADE.append(1)
        return torch.zeros(count)

    def scaled(self, count):
        MADE.append(1)
        return self.base * self.width * count

    def read(self, x):
        MADE.append(1)
        return x * 2.0

    def given(self, x):
        MADE.append(1)
        return x

    def stored(self, count):
        self.width = count
        return torch.ones(count)


MADE = []
CALLS_OF_ANGLES = {
    "drawn": lambda angles, _: angles.drawn(3),
    "counted": lambda angles, _: angles.counted(3),
    "own": lambda angles, _: angles.own(3),
    "zeros": lambda angles, _: angles.zeros(3).add_(1.0),
    "read": lambda angles, x: angles.read(x).equal(x * 2.0),
    "given": lambda angles, x: angles.given(x) is x,
}


@check
def function_kept():
    """How often a mask is made of the same, and of two values in turn; it is what it was."""
    MADE.clear()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for number in range(20):
                x = torch.randn(2, 5, 3, requires_grad=mode is torch.no_grad)
                mask, angles = made_mask(x, number % 2)
                assert mask.equal(torch.full((5, 5), -math.inf).triu(1))
                assert angles.equal(torch.arange(number % 2, number % 2 + 5).float().cos())
    return len(MADE)


def make_something_else():
    """Functions that are left alone, and what is given by one whose object changes."""
    for name, call in CALLS_OF_ANGLES.items():
        angles, kept = Angles(), cures()["function_kept"](f"each_cure.py:{name}")
        undo = kept.apply(torch)
        MADE.clear()
        for _ in range(20):
            assert call(angles, torch.randn(3)) is not False
        kept.look()
        undo()
        assert (kept.used, kept.ended, len(MADE) >= 20) == (0, "", True), (name, len(MADE))
    angles, kept = Angles(), cures()["function_kept"]("each_cure.py:scaled")
    undo = kept.apply(torch)
    for number in range(60):
        angles.width = 4 + number % 2
        if number == 40:
            angles.base.add_(1.0)
        assert angles.scaled(2).equal(angles.base * angles.width * 2)
    kept.look()
    assert kept.used
    angles.scaled(2).zero_()
    kept.look()
    undo()
    try:
        cures()["function_kept"]("each_cure.py:stored").apply(torch)
    except CannotApply as reason:
        return kept.ended, str(reason)


@check
def gc_off():
    return gc.isenabled()


@check
def gc_freeze():
    return gc.get_freeze_count() > 0


@check
def gc_collect_idle():
    waiting = type("Waiting", (), {})()
    waiting.itself = waiting
    gone = weakref.ref(waiting)
    del waiting
    gc.collect()
    return gone() is None


@check
def empty_cache_idle():
    return called(torch.cuda.empty_cache)


@check
def cleanups_idle():
    return gc_collect_idle(), empty_cache_idle()


@check
def synchronize_idle():
    return called(torch.cuda.synchronize)


def called(function):
    """Whether a call gets through to what needs a driver, or to the function itself."""
    seen = []
    sys.setprofile(lambda frame, *_: seen.append(frame.f_code.co_name))
    try:
        function()
    except Exception as error:  # there is no driver
        seen.append(type(error).__name__)
    finally:
        sys.setprofile(None)
    return function.__name__ in seen


@check
def anomaly_off():
    return torch.is_anomaly_enabled()


@check
def deterministic_off():
    return torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(index)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(4))


@check
def loader_workers():
    stream = torch.utils.data.DataLoader(Stream())
    assert stream.num_workers <= 1, "each worker would give all of it"
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=0)
    return loader.num_workers, loader.pin_memory, loader.persistent_workers, loader.prefetch_factor


class Counting(Numbers):
    """Counts what it makes; with `draws` what it makes differs."""

    draws = False

    def __init__(self):
        self.made = 0

    def __getitem__(self, index):
        self.made += 1
        return {"x": torch.rand(2) if self.draws else torch.full((2,), float(index)), "n": index}


class Drawing(Counting):
    draws = True


items_cure = cures()["items_kept"]("")


@check
def items_kept():
    drawn = Drawing()
    loader = torch.utils.data.DataLoader(drawn, batch_size=4)
    assert not next(iter(loader))["x"].equal(next(iter(loader))["x"])
    assert drawn.made == 8, "what it draws is not made twice"
    state = torch.get_rng_state()
    assert items_cure.useless(torch.utils.data), "all that is loaded draws"
    assert torch.get_rng_state().equal(state)
    data = Counting()
    other = torch.utils.data.DataLoader(data)
    assert items_cure.useless(torch.utils.data) is None, str(other)
    data.made = 0
    fetch = torch.utils.data._utils.fetch._MapDatasetFetcher(data, True, list, False).fetch
    for _ in range(4):
        items = fetch([1, 2])
        assert [item["x"][0].item() for item in items] == [1.0, 2.0]
        items[0]["x"].zero_()  # is a copy
    return data.made


class Indexing(Counting):
    x = torch.arange(32.0).view(8, 4)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.made += 1
        return {"x": self.x[index], "y": [numpy.arange(8)[index]]}


@check
def items_at_once():
    data = Indexing()
    for _ in range(8):
        batches = list(torch.utils.data.DataLoader(data, batch_size=4))
        assert batches[1]["x"].equal(data.x[4:])
        assert batches[1]["y"][0].tolist() == [4, 5, 6, 7]
    assert not next(iter(torch.utils.data.DataLoader(Drawing(), batch_size=2)))["x"].isnan().any()
    return data.made


class MakesEach:
    """Of whatever it is asked for it makes one item."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(3), index


at_once_cure = cures()["items_at_once"]("")
for dataset, is_useless in ((Indexing(), False), (MakesEach(), True)):
    held_loader = torch.utils.data.DataLoader(dataset, batch_size=4)
    assert bool(at_once_cure.useless(torch.utils.data)) == is_useless
    del held_loader


@check
def archives_kept():
    numpy.savez_compressed("kept.npz", x=numpy.zeros(4))
    with numpy.load("kept.npz") as archive:
        archive["x"][:] = 1
        first = archive["x"]
    assert not first.any()
    reads = []
    archive = numpy.load("kept.npz")
    archive.zip = None  # what is not kept is read from there
    try:
        reads.append(archive["x"].tolist())
    except Exception as error:
        reads.append(type(error).__name__)
    numpy.savez_compressed("kept.npz", x=numpy.ones(5))
    with numpy.load("kept.npz") as archive:
        assert archive["x"].tolist() == [1.0] * 5
    return reads


class EMA:
    def __init__(self):
        self.shadow = [torch.zeros(2) for _ in range(8)]


average = EMA()
assert [id(each) for each in copies._averaged(torch)] == [id(each) for each in average.shadow]


@check
def cache_grows():
    with torch.no_grad():
        caches, places = [torch.zeros(1, 2, 4, 3)], []
        for number in range(1, 9):
            new = torch.full((1, 2, 1, 3), float(number))
            caches.append(torch.cat([caches[-1], new], dim=2))
            places.append(caches[-1].data_ptr())
        other = torch.cat([caches[-2], new + 1], 2)
        again = torch.cat([caches[-2], new + 2], 2)
    for length, cache in enumerate(caches):
        assert cache[0, 0, :, 0].tolist() == [0.0] * 4 + [float(n) for n in range(1, length + 1)]
    assert other[0, 0, -1, 0] == 9
    assert again[0, 0, -1, 0] == 10
    return len({*places}) < 5


class Passing(torch.nn.Module):
    passed = 0

    def propagate(self, edges, x=None, drawn=False):
        self.passed += 1
        return x + edges + (torch.rand(1) if drawn else 0)


geometric = types.ModuleType("torch_geometric")
geometric.nn = types.SimpleNamespace(MessagePassing=Passing)
geometric.conv = types.ModuleType("torch_geometric.conv")
geometric.conv.gcn_norm = lambda edges: edges + 1
sys.modules["torch_geometric"] = geometric
sys.modules["torch_geometric.conv"] = geometric.conv
LAYER = Passing()


@check
def graphs_kept():
    edges, x, weight = torch.ones(2), torch.ones(2), torch.ones(2, requires_grad=True)
    LAYER.passed = 0
    for _ in range(6):
        edges_too = geometric.conv.gcn_norm(edges)
        assert LAYER.propagate(edges_too, x=x).tolist() == [3.0, 3.0]
    assert LAYER.propagate(edges, x=weight).requires_grad
    drawn = [LAYER.propagate(edges, x=x, drawn=True)[0].item() for _ in range(4)]
    assert len({*drawn}) == 4
    return LAYER.passed


@check
def jax_pool_on():
    return os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR")


@check
def pinned_copies():
    x = torch.arange(1 << 16)
    assert x.to(torch.float64).dtype is torch.float64
    assert x.to("cpu") is x
    assert x.to("meta", non_blocking=True).is_meta
    assert torch.zeros(1 << 16, dtype=torch.int64).copy_(x).equal(x)
    return torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.copy_


@check
def causal_mask():
    """Whether the mask reached the function that it is about."""
    attend = torch.nn.functional.scaled_dot_product_attention
    q = torch.randn(1, 2, 4, 8)
    causal = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    added = torch.zeros(4, 4).masked_fill(~causal[0, 0, :4, :4], -math.inf)
    right = attend(q, q, q, is_causal=True)
    for mask in (causal[:, :, :4, :4], added):
        assert torch.allclose(attend(q, q, q, attn_mask=mask), right, atol=1e-6)
        assert torch.allclose(attend(q, q, q, mask), right, atol=1e-6)
    other = causal[:, :, :4, :4].clone()
    other[..., 0] = False
    other[..., 0, 0] = True
    assert not torch.allclose(attend(q, q, q, other), right, atol=1e-3)
    bias = added + torch.randn(4, 4)
    assert not torch.allclose(attend(q, q, q, bias), right, atol=1e-3)
    added.data.numpy()[1, 0] = -50.0  # which torch does not see
    made_anew = read_masks_made_anew()
    assert made_anew == read_masks_made_anew(lambda attend, *given: attend(*given, 0.0, False))
    return torch.allclose(attend(q, q, q, added), right, atol=1e-3), made_anew


def read_masks_made_anew(call=lambda attend, *given: attend(*given)):
    """How many masks reached attention of those that are made for each call: open ones, of rows or
    columns, and causal ones, in inference mode or not."""
    seen, q = [], torch.randn(2, 2, 6, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    makes = (
        lambda: torch.ones(2, 1, 1, 6, dtype=torch.bool),
        lambda: torch.zeros(2, 1, 6, 6),
        lambda: torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 2, 6, 6),
        lambda: torch.full((6, 6), -1e9).triu(1),
    )
    right = {causal: attend(q, q, q, is_causal=causal) for causal in (False, True)}
    for place, make in enumerate(makes):
        for mode in (torch.no_grad, torch.inference_mode):
            for _ in range(12):
                with mode(), Masks(seen):
                    made = call(attend, q, q, q, make())
                assert torch.allclose(made, right[place > 1], atol=1e-6)
    return len(seen)


class Masks(torch.overrides.TorchFunctionMode):
    """Counts masks that attention is given."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ == "scaled_dot_product_attention":
            mask = args[3] if len(args) > 3 else (kwargs or {}).get("attn_mask")
            self.seen += [] if mask is None else [mask]
        return function(*args, **(kwargs or {}))


def give_another_mask():
    """A line that gives causal masks, and another one after them."""
    cure, q = cures()["causal_mask"](""), torch.randn(1, 1, 6, 8)
    cure.prepare(torch)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    undo = None
    for number in range(20):
        mask = causal.clone()
        mask[0, -1] = number == 19
        torch.nn.functional.scaled_dot_product_attention(q, q, q, mask)
        undo = undo or cure.apply(torch)
        if number == 18:
            cure.look()
            assert not cure.ended
    cure.look()
    undo()
    return cure.ended


@check
def pinned_results():
    x = torch.arange(1 << 16)
    assert x.cpu().equal(x)
    assert x.to("cpu").equal(x)
    assert x.to("cpu", torch.float64).dtype is torch.float64
    y = torch.ones(1 << 16, requires_grad=True)
    assert y.cpu().requires_grad
    return x.cpu() is x


@check
def sdpa():
    config = types.SimpleNamespace(_attn_implementation="eager")
    transformers.PreTrainedModel(config)
    return config._attn_implementation


transformers = types.ModuleType("transformers.modeling_utils")
exec(
    "class PreTrainedModel:\n"
    "    _supports_sdpa = True\n"
    "    def __init__(self, config): self.config = config\n"
    "    def modules(self): return [self]\n"
    "    weights = ()\n"
    "    def parameters(self): return iter(self.weights)\n",
    vars(transformers),
)


@check
def static_cache():
    return generation.GenerationMixin().generate()


generation = types.ModuleType("transformers.generation.utils")
exec(
    "class GenerationMixin:\n"
    "    seen = []\n"
    "    step = staticmethod(lambda: None)\n"
    "    config = None\n"
    "    def generate(self, inputs=None, generation_config=None, **options):\n"
    "        self.step()\n"
    "        if inputs is None and options.get('is_dict'):\n"
    "            return {'past_key_values': 'a cache'}\n"
    "        if inputs is not None:\n"
    "            self.seen.append(inputs.shape[1])\n"
    "            made = inputs.repeat_interleave(2, 0)\n"
    "            return {'sequences': made} if options.get('is_dict') else made\n"
    "        self.seen.append(options)\n"
    "        return tuple(options.items())\n",
    vars(generation),
)


CONVOLUTION = torch.nn.Conv2d(1, 1, 1)
"""Without any there is nothing for cuDNN to try."""


@check
def cudnn_benchmark():
    return torch.backends.cudnn.benchmark


@check
def cudnn_benchmark_off():
    return torch.backends.cudnn.benchmark


@check
def distribution_checks_off():
    try:
        torch.distributions.Categorical(probs=torch.tensor([2.0, -1.0]))
    except ValueError:
        return "checked"
    return "taken"


@check
def cupy_pool_kept():
    pool = cupy.get_default_memory_pool()
    cupy.cuda.set_allocator(None)
    cupy.cuda.set_allocator(len)
    return pool.free_all_blocks(), pool.used_bytes(), cupy.cuda.set_allocator()


cupy = types.ModuleType("cupy")
exec(
    "class Pool:\n"
    "    def free_all_blocks(self): return 'freed'\n"
    "    def used_bytes(self): return 5\n"
    "get_default_memory_pool = get_default_pinned_memory_pool = Pool\n"
    "class cuda:\n"
    "    class Stream:\n"
    "        def synchronize(self): return 'waited'\n"
    "    set_allocator = set_pinned_memory_allocator = staticmethod(lambda f=None: f or 'none')\n",
    vars(cupy),
)


def numpy_like():
    transforms = types.SimpleNamespace(**vars(numpy.fft))
    names = ("concatenate", "asarray", "float32", "square")
    return {"fft": transforms, **{name: getattr(numpy, name) for name in names}}


vars(cupy).update(numpy_like())
cupyx_fft = types.ModuleType("cupyx.scipy.fft")
vars(cupyx_fft).update(vars(numpy_like()["fft"]))
for name in ("cupyx", "cupyx.scipy"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["cupyx.scipy.fft"] = cupyx_fft


@check
def profiler_off():
    with torch.profiler.profile() as profile:
        torch.ones(2) + 1
        return profile is not None and torch._C._autograd._profiler_enabled()


@check
def no_tensorboard():
    tensorboard.FileWriter("events").add_event(1)
    there = os.path.exists("events")
    if there:
        os.remove("events")
    return there


CHECKS["no_tensorboardx"] = no_tensorboard
tensorboard = types.ModuleType("torch.utils.tensorboard.writer")
exec(
    "class FileWriter:\n"
    "    def __init__(self, log_dir): self.file = open(log_dir, 'w')\n"
    "    def add_event(self, event): self.file.write(str(event))\n",
    vars(tensorboard),
)


@check
def no_wandb():
    return wandb.init(mode="online")


wandb = types.ModuleType("wandb")
exec("def init(project=None, mode=None): return mode", vars(wandb))


@check
def no_mlflow():
    mlflow.set_tracking_uri("https://server")
    return list(mlflow.used), mlflow.tracking.MlflowClient("https://server").uri


mlflow = types.ModuleType("mlflow")
exec(
    "used = []\n"
    "def set_tracking_uri(uri): used[:] = [*used, uri][-1:]\n"
    "class tracking:\n"
    "    set_tracking_uri = set_tracking_uri\n"
    "    class MlflowClient:\n"
    "        def __init__(self, uri=None): self.uri, used[:] = uri, []\n",
    vars(mlflow),
)


@check
def fused_sdpa():
    cuda = torch.backends.cuda
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        within = cuda.flash_sdp_enabled()
    return within, cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()


@check
def gradients_off():
    return BACKBONE(torch.ones(64)).requires_grad


@check
def compile_off():
    model = torch.nn.Linear(1, 1)
    model.compile()
    return torch.compile(abs) is abs, torch.compile()(abs) is abs, model._compiled_call_impl is None


@check
def cudnn_attention_off():
    return torch.backends.cuda.cudnn_sdp_enabled()


@check
def channels_last():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    out = model(torch.ones(2, 3, 8, 8))
    return out.is_contiguous(memory_format=torch.channels_last)


WEIGHT = torch.nn.Parameter(torch.ones(4))
OPTIMIZERS = []


def make_optimizers():
    odd = torch.nn.Parameter(torch.ones(4, dtype=torch.complex64))
    OPTIMIZERS[:] = torch.optim.AdamW([WEIGHT], foreach=False), torch.optim.AdamW([odd])


def do_not_train():
    OPTIMIZERS.clear()
    for each in (WEIGHT, BACKBONE.weight, BACKBONE.bias):
        each.grad = None


@check
def fused_optimizer():
    optimizer, odd = OPTIMIZERS
    assert not odd.param_groups[0]["fused"], "not for parameters that no kernel takes"
    before = WEIGHT[0].item()
    WEIGHT.grad = torch.ones(4)
    optimizer.step()
    assert abs(before - WEIGHT[0].item()) > 1e-4, "it goes on"
    return [optimizer.param_groups[0][name] for name in ("fused", "foreach")]


BACKBONE = torch.nn.Linear(64, 64)


@check
def unowned_gradients_off():
    BACKBONE.weight.grad = BACKBONE.bias.grad = None
    loss = (BACKBONE(torch.ones(64)) * WEIGHT[0]).sum()
    loss.backward()
    return BACKBONE.weight.grad is None


@check
def padded_products():
    layer = torch.nn.Linear(1024, 1501)
    x = torch.randn(2, 1024)
    made = layer(input=x)
    assert torch.allclose(made, x @ layer.weight.T + layer.bias, atol=1e-4)
    return made.stride()


@check
def jax_x64_off():
    jax.config.update("jax_enable_x64", True)
    jax.config.update("other", jax.config.jax_enable_x64)
    return jax.config.jax_enable_x64


@check
def jax_scans_unrolled():
    scan = jax.lax.scan
    assert scan(None, 0, [numpy.zeros(12)]) == scan(None, 0, None, 100, unroll=1) == 1
    assert scan(None, 0, None, length=2) == 1
    return scan(None, 0, [numpy.zeros(100)]), scan(None, 0, length=100)


@check
def jax_lengths_padded():
    """How many lengths of texts functions are given; what they give, and labels, are the same."""
    lengths, draw = {}, numpy.random.default_rng(0)

    def given(of):
        def of_texts(ids, mask, weights=1.0, labels=None):
            lengths.setdefault(of.__name__, set()).add(ids.shape[1])
            return of(ids, mask, labels) * weights

        return jax.jit(of_texts, donate_argnums=0)

    def total(ids, mask, labels):
        return (ids * mask).sum(1) + (0 if labels is None else (labels != -100).sum(1))

    def average(ids, _mask, _labels):
        return (1.0 * ids).mean(1)

    def each(ids, _mask, _labels):
        return 1.0 * ids

    functions = [given(of) for of in (total, average, each)]
    for length in (9, 17, 20, 33, 40, 64, 70, 3, 51):
        ids = draw.integers(1, 9, (2, length))
        labels = numpy.where(ids > 4, ids, -100)
        totals = functions[0](ids, mask=ids > 2, labels=labels)
        assert totals.tolist() == total(ids, ids > 2, labels).tolist()
        assert functions[1](ids, ids > 2).tolist() == ids.mean(1).tolist()
        assert functions[2](ids, ids > 2).tolist() == ids.tolist()
    return lengths["total"]


@check
def jax_remat_off():
    kept = [jax.checkpoint(abs), jax.remat(abs, policy=1), functools.partial(jax.remat)(abs)]
    assert [each(-1) for each in kept] == [1, 1, 1]
    return [each is abs for each in kept]


@check
def jax_gradients_jitted():
    jax.compiled.clear()

    def step(held, x):
        return jax.value_and_grad(lambda y: [y * held])(x)

    for turn in range(3):
        assert step(2.0 + turn, numpy.ones(2))[0].tolist() == [2.0 + turn, 2.0 + turn]
    assert step(jax.core.Tracer(), 2) == ["traced"]
    count = len(jax.compiled)
    assert [step(turn, 1.0) for turn in range(9)] == [[float(turn)] for turn in range(9)]
    assert len(jax.compiled) - count in (0, 9), "a count that changes is traced"
    return count


def give_gradients_that_draw():
    """Where a call gives something else when it is made both ways the cure ends."""
    cure, drawn = cures()["jax_gradients_jitted"](""), iter(range(99))
    cure.prepare(jax)
    take, draw = (jax.grad(each) for each in (lambda y: [y], lambda y: [y + next(drawn)]))
    for _ in range(4):
        take(1.0)
    undo = cure.apply(jax)
    assert [take(2.0), take(3.0)] == [[2.0], [3.0]]
    assert (cure.ended, cure.note()) == ("", "2 calls made both ways give the same")
    assert draw(1.0) == [2.0], "what the program would have had"
    assert cure.ended == "what is compiled gives something else"
    undo()
    return 0


class Agent:
    def __init__(self):
        self.target, self.turns = 1.0, 0

    def loss(self, y):
        return [y * self.target * SHARE["of_loss"]]


SHARE, NOTED = {"of_loss": 1.0}, []


def give_gradients_by_what_changes():
    """What a function, or one that it calls, takes from objects, its module and its cells is as it
    is now; what does more than compute is not compiled."""
    cure, agent, share, seen = cures()["jax_gradients_jitted"](""), Agent(), 1.0, {}
    cure.prepare(jax)

    def shared(y):
        return [each * share for each in agent.loss(y)]

    def stored(y):
        seen["y"] = y
        return [y]

    def noted(y):
        NOTED.append(y)
        return [y]

    def drawn(y):
        return [y if numpy.random.random() < 2.0 else -y]

    take = jax.grad(lambda y: shared(y))
    for _ in range(4):
        take(1.0)
    undo = cure.apply(jax)
    count = len(jax.compiled)
    assert take(2.0) == take(2.0) == [2.0]
    assert len(jax.compiled) == count + 2
    for turn in range(2):
        agent.turns = turn  # nothing is computed by it
        assert take(3.0) == [3.0]
    agent.target = 2.0
    assert take(3.0) == [6.0]
    SHARE["of_loss"] = 3.0
    assert take(3.0) == [18.0]
    share = 2.0
    assert take(3.0) == [36.0]
    undo()
    cure = cures()["jax_gradients_jitted"]("")
    SHARE["of_loss"] = 1.0
    jax.grad = jax.grad.__wrapped__
    cure.prepare(jax)
    store, note, draw = map(jax.grad, (stored, noted, drawn))
    for turn in range(4):
        store(float(turn))
    undo = cure.apply(jax)
    for turn in range(4):
        assert store(float(turn)) == [seen["y"]] == [float(turn)]
        note(float(turn))
        draw(1.0)
    undo()
    assert NOTED == [0.0, 1.0, 2.0, 3.0]
    return cure.used


def hold_a_schedule():
    """What is held by what a function holds tells; what a cure stands in with does not."""
    rates, cure = [1.0], cures()["jax_gradients_jitted"]("")
    real = jax.grad, jax.value_and_grad
    cure.prepare(jax)
    taken = jax.grad(lambda y: [y * rates[0]])
    jax.grad, jax.value_and_grad = real
    update = functools.partial(lambda grads: taken(grads))
    keys = [computes_by([update.func], of_libraries=True)[0]]
    for rate in (1.0, 2.0):
        rates[0] = rate
        assert taken(1.0) == [rate]
        keys.append(computes_by([update.func], of_libraries=True)[0])
    return keys[0] == keys[1] != keys[2]


@check
def jax_debug_off():
    WAITED.clear()
    assert jax.debug.print("loss {x}", x=1) is jax.debug.callback(WAITED.append, 2) is None
    return len(WAITED)


@check
def jax_floats_traced():
    def step(x, rate, size):
        return x, rate, size

    jitted = jax.jit(step, static_argnames=("rate",), static_argnums=2)
    return jitted(1, 0.5, 3), jitted(1, rate=2, size=3)


@check
def jax_jit_kept():
    size, rows = 3, [1]
    same = [jax.jit(lambda x: x + size) for _ in range(2)]
    for may_change in (lambda x: x + rows, lambda x, of=rows: x + of, lambda x: x + NUMBERS):
        one, other = (jax.jit(copied(may_change)) for _ in range(2))
        assert one is not other, "what it computes by may change"
    assert jax.jit(donate_argnums=0)(abs).options == {"donate_argnums": 0}
    return same[0] is same[1]


def copied(function):
    return types.FunctionType(
        function.__code__, globals(), "", function.__defaults__, function.__closure__
    )


TABLE = numpy.zeros(1 << 18)


@check
def jax_arrays_kept():
    look_up, takes = jax.jit(len), jax.jit(len, donate_argnums=0)
    for view in (TABLE[:], TABLE[: 1 << 17], TABLE[:9]):
        assert [look_up(view) for _ in range(9)][-1][0] is view, "it may be written to"
    assert [takes(TABLE) for _ in range(9)][-1][0] is TABLE, "a call takes it over"
    assert look_up(TABLE, 5, rate=TABLE)[1] == 5
    return [type(each) for each in look_up(TABLE)]


def jax_option(name, value):
    jax.config.update(name, value)
    return getattr(jax.config, name)


@check
def jax_products():
    return jax_option("jax_default_matmul_precision", "highest")


@check
def jax_checks_off():
    return jax_option("jax_debug_nans", True), jax_option("jax_disable_jit", True)


WAITED = []


@check
def jax_waits_idle():
    WAITED.clear()
    (array,) = jax.live_arrays()
    assert jax.block_until_ready(5) == 5
    assert array.block_until_ready() is array
    return len(WAITED)


@check
def cupy_waits_idle():
    return cupy.cuda.Stream().synchronize()


jax = types.ModuleType("jax")
jax.waited = WAITED
jax.numpy = types.SimpleNamespace(**numpy_like())
sys.modules["jax"] = jax
exec(
    "class Config:\n"
    "    jax_enable_x64 = jax_debug_nans = jax_disable_jit = True\n"
    "    jax_default_matmul_precision = 'highest'\n"
    "    def update(self, name, value): setattr(self, name, value)\n"
    "config = Config()\n"
    "class Jitted:\n"
    "    lower = None\n"
    "    def __init__(self, options, names=(), function=None):\n"
    "        self.options, self.names, self.function = options, names, function\n"
    "    def __call__(self, *args, **kwargs):\n"
    "        if self.names == 'of_arrays': compiled.append(args)\n"
    "        if self.names in ('of_texts', 'of_arrays', '_distance'):\n"
    "            return self.function(*args, **kwargs)\n"
    "        return args if self.names == 'len' else self.options\n"
    "class Array:\n"
    "    def __init__(self, value=None): self.value = value\n"
    "    def block_until_ready(self): return waited.append(self) or self\n"
    "class core:\n"
    "    class Tracer:\n"
    "        def __rmul__(self, other): return 'traced'\n"
    "class tree_util:\n"
    "    def tree_flatten(tree):\n"
    "        if not isinstance(tree, tuple): return [tree], None\n"
    "        return [*tree[0], *tree[1].values()], (len(tree[0]), (*tree[1],))\n"
    "    def tree_unflatten(shape, leaves):\n"
    "        rest = leaves[shape[0] :]\n"
    "        return tuple(leaves[: shape[0]]), dict(zip(shape[1], rest))\n"
    "    def tree_map(change, tree):\n"
    "        return tuple(map(change, tree[0])), {k: change(v) for k, v in tree[1].items()}\n"
    "    def tree_leaves(tree):\n"
    "        if not isinstance(tree, tuple): return tree if isinstance(tree, list) else []\n"
    "        args, kwargs = tree\n"
    "        return [*args, *kwargs.values()]\n"
    "class lax:\n"
    "    def scan(f, init, xs=None, length=None, reverse=False, unroll=1): return unroll\n"
    "compiled = []\n"
    "def value_and_grad(fun, argnums=0): return lambda *args: fun(*args)\n"
    "grad = value_and_grad\n"
    "def checkpoint(fun, *, policy=None): return lambda *args: fun(*args)\n"
    "remat = checkpoint\n"
    "class debug:\n"
    "    def callback(function, *args): function(*args)\n"
    "    def print(text, **values): waited.append(text)\n"
    "device_put, arrays = Array, [Array()]\n"
    "def live_arrays(): return arrays\n"
    "def block_until_ready(x): return waited.append(x) or x\n"
    "def jit(function=None, **options):\n"
    "    return (lambda f: jit(f, **options)) if function is None "
    "else Jitted(options, function.__name__, function)\n",
    vars(jax),
)


class GradientTransformation:
    def __new__(cls, _init, update):
        self = object.__new__(cls)
        self.update = update
        return self


optax = types.ModuleType("optax")
optax.GradientTransformation = GradientTransformation
optax.apply_updates = lambda *_: "eager"


@check
def optax_jitted():
    grads = jax.Array()
    assert optax.apply_updates(jax.core.Tracer(), grads) == "eager"
    update = GradientTransformation(None, lambda *_: "eager").update
    eager = [update(grads, None) == "eager", optax.apply_updates(grads, grads) == "eager"]
    assert len({*eager}) == 1
    return eager


@check
def foreach_clip():
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    seen = []
    real = torch.nn.utils.clip_grad._get_total_norm

    def noted(*args, **kwargs):
        seen.append(args[3] if len(args) > 3 else kwargs.get("foreach"))
        return real(*args, **kwargs)

    torch.nn.utils.clip_grad._get_total_norm = noted
    torch.nn.utils.clip_grad_norm_([weight], 1.0, foreach=False)
    torch.nn.utils.clip_grad._get_total_norm = real
    return seen


def _compiled():
    calls = []
    real = torch.nn.Module.compile
    torch.nn.Module.compile = lambda self, **options: calls.append((type(self).__name__, options))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    model(torch.ones(1, 2))
    torch.nn.ReLU()(torch.ones(1))
    torch.nn.Module.compile = real
    return calls


@check
def compile():
    return _compiled()


@check
def compile_reduce_overhead():
    return _compiled()


@check
def compile_dynamic():
    seen = []
    module = torch.nn.Linear(2, 2)
    real = torch._dynamo.optimize
    torch._dynamo.optimize = lambda **options: seen.append(options["dynamic"]) or (lambda f: f)
    torch.compile(abs, dynamic=False)
    module.compile()
    torch._dynamo.optimize = real
    return seen


@check
def compile_optimizer():
    class Own(torch.optim.SGD):
        def step(self):
            steps.append(torch.compiler.is_compiling())

    steps = []
    real = torch.compile
    torch.compile = lambda _step: lambda *_args: steps.append("compiled")
    Own([torch.nn.Parameter(torch.ones(1))]).step()
    torch.compile = real
    return steps


@check
def float32():
    dtypes = [torch.as_tensor(rows, dtype=dtype).dtype for dtype in (None, torch.float64)]
    return torch.from_numpy(rows).dtype, *dtypes, torch.tensor([1]).dtype


rows = numpy.zeros(2)


@check
def kv_cache():
    seen = generation.GenerationMixin.seen = []
    generation.GenerationMixin().generate(use_cache=False)
    generation.GenerationMixin().generate(other=1)
    return seen


def generate_without_cache():
    """The cure knows whether there is a cache, in a step of generate() and after it."""
    generate = generation.GenerationMixin.generate
    cure, whys = cures()["kv_cache"](""), []
    cure.prepare(generation)
    mixin = generation.GenerationMixin()
    mixin.step = lambda: whys.append(cure.useless(generation))
    for has_cache in (True, False):
        mixin.generate(generation_config=types.SimpleNamespace(use_cache=has_cache))
    assert whys == ["no generate() is without a KV cache", None]
    assert cure.useless(generation) is None
    mixin.generation_config = types.SimpleNamespace(use_cache=False)
    with_one = cure.apply(generation)
    assert mixin.generate() == (("use_cache", True),)
    assert mixin.generate(use_cache=True) == (("use_cache", True),)
    assert mixin.generate(output_attentions=True) == (("output_attentions", True),)
    assert mixin.generate(is_dict=True) == {"past_key_values": None}, "it would be kept"
    with_one()
    assert mixin.generate() == ()
    generation.GenerationMixin.generate = generate


@check
def copies_kept():
    made = []
    for _ in range(3):
        made.append(COPIED.to("cpu", copy=True))
        assert made[-1].equal(COPIED)
    other = COPIED.clone()
    assert other.to("cpu", copy=True).equal(COPIED)
    before = COPIED.to("cpu", copy=True)
    COPIED.add_(1)
    assert COPIED.to("cpu", copy=True).equal(before + 1)
    for _ in range(4):  # the program may write to what it got
        own = other.to("cpu", copy=True)
        assert own.equal(other)
        own.zero_()
    is_kept = {made[1] is made[2], *slices_kept()}
    assert len(is_kept) == 1
    return is_kept.pop()


def slices_kept():
    """A slice of one tensor is another object for each copy; what is written to it by way of
    another slice, or of what shows the same memory with a count of its own, is seen."""
    whole, half = torch.zeros(1 << 19), 1 << 18
    slices = [whole[half:].to("cpu", copy=True) for _ in range(3)]
    whole[half + 1] = 5.0
    assert whole[half:].to("cpu", copy=True)[1] == 5.0
    assert whole[:half].to("cpu", copy=True).equal(whole[:half])
    written = whole.clone()
    for value in range(4):
        written.data.fill_(value)
        assert written.data.to("cpu", copy=True)[0] == value
    with torch.inference_mode():
        shards = torch.arange(2.0 * half)
        for _ in range(3):
            slices += [shards[at : at + half].to("cpu", copy=True) for at in (0, half)]
        assert slices[5].equal(shards[:half])
        assert slices[6].equal(shards[half:])
    return slices[1] is slices[2], slices[5] is slices[7], slices[6] is slices[8]


COPIED = torch.zeros(1 << 18)


@check
def arrays_stacked():
    """The same numbers and types, of whatever arrays."""
    draw, stack, stacked = numpy.random.default_rng(0), numpy.stack, []
    numpy.stack = lambda arrays: stacked.append(1) or stack(arrays)
    for kind in ("float64", "float32", "int32", "uint8", "bool"):
        rows = [(100 * draw.random((2, 3))).astype(kind) for _ in range(4)]
        for dtype in (None, torch.float32):
            own = torch.as_tensor(rows[0]).dtype if dtype is None else dtype
            expected = torch.tensor([row.tolist() for row in rows], dtype=own)
            for function in (torch.tensor, torch.as_tensor):
                made = function(rows, dtype=dtype)
                assert (made.dtype, made.equal(expected)) == (own, True)
    made[0] = 0
    assert rows[0].all()  # the tensor is the program's own
    numpy.stack = stack
    assert torch.tensor([1, 2.5]).tolist() == [1, 2.5]
    try:
        torch.tensor([rows[0], rows[0][:1]])
    except ValueError:
        return bool(stacked), made_of_lists()


def made_of_lists():
    """How many lists of numbers an array was made of; the tensors are the same."""
    numbers, seen = numpy.random.default_rng(0).normal(size=(20, 20)), []
    whole = (1000 * numbers).astype(int)
    nested = [[numbers[0].tolist()] * 8] * 8
    lists = (
        [[1.0] * 20] * 20 + [[1.0]], [["a"] * 20] * 20, [[1.0, numpy.float64(2)] * 20] * 20,
        [[numpy.float32(1), 2] * 20] * 20, [[torch.tensor(1.5)] * 20] * 20,
        [numbers[0], numbers[0].astype("float32")] * 20, [[numbers[0].astype("uint8")] * 2] * 20,
        numbers.tolist(), whole.tolist(), (numbers > 0).tolist(), list(numbers.flatten()),
        list(whole.flatten()), list(numbers.astype("float32").flatten()), nested,
        [[numbers[0], numbers[1]]] * 20, [[1, 2.5] * 10] * 20, [[True, 2] * 10] * 20,
        [[1 << 40] * 20] * 20, [[1.7] * 20] * 20,
    )  # fmt: skip
    dtypes = (None, torch.float32, torch.float16, torch.int64, torch.int32, torch.bool)
    array = numpy.array
    for rows in lists:
        for dtype in dtypes:
            results = []
            for each in (rows, tuple(rows), [*rows]):
                numpy.array = lambda given: seen.append(1) or array(given)
                results.append(made_or_refused(each, dtype))
                numpy.array = array
            results.append(made_or_refused(Listed(rows), dtype))
            assert all(each == results[0] for each in results), (rows[0], dtype)
    return len(seen)


class Listed(list):
    """A list that is none of those that are made an array of."""


def made_or_refused(rows, dtype):
    try:
        made = torch.tensor(rows, dtype=dtype)
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:
        return str(error)
    return made.dtype, made.tolist()


@check
def first_alone():
    """What is read of a sort is what the program would get, at whatever end, in whatever way."""
    scores, kinds = SCORES.clone(), set()
    expected = scores.numpy().argsort(1)
    ends = (slice(4), slice(-4, None), 0, -1)
    with torch.inference_mode(), torch.no_grad():
        for _ in range(4):
            order = torch.argsort(scores, dim=1, descending=True)
            kinds.add(type(order) is torch.Tensor)
            assert (order[:, :5].numpy() == expected[:, ::-1][:, :5]).all()
            values, order = scores.sort(descending=True)
            assert values[1, :3].equal(scores[1][order[1, :3]])
            for end in ends:  # a line that asks for both ends
                order = torch.argsort(scores)[..., end]
                assert (order.numpy() == expected[..., end]).all()
            values, order = torch.sort(scores)
            assert (order.numpy() == expected).all()
            assert values.equal(scores.gather(1, order))
    for count in (3, 3, 3, 6):
        assert (scores.argsort(1)[:, :count].numpy() == expected[:, :count]).all()
    assert len(kinds) == 1
    return kinds.pop()


SCORES = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))


@check
def rows_on_gpu():
    expected = HOST_ROWS.clone()[INDEX.clone()]
    for _ in range(2):
        rows = HOST_ROWS[INDEX.cpu()].to("cpu", copy=True)
        assert (type(rows), rows.equal(expected)) == (torch.Tensor, True)
    with torch.inference_mode():
        assert HOST_ROWS[INDEX.cpu()].to("cpu", copy=True).equal(expected)
        assert HOST_ROWS[INDEX.clone()].sum() == expected.sum()
    index, rows = INDEX.cpu(), HOST_ROWS[INDEX.clone()]
    assert (index.shape, index.dtype, index.device.type, len(index)) == (
        (4096,),
        torch.int64,
        "cpu",
        4096,
    )
    assert HOST_ROWS[index].to("cpu", torch.float64, copy=True).dtype is torch.float64
    assert numpy.asarray(rows).shape == rows.numpy().shape == (4096, 32)
    assert (rows + 1).sum() == (expected + 1).sum()
    assert INDEX.cpu().tolist() == INDEX.tolist()
    assert torch.tensor([expected[0, 0], expected[1, 0]]).equal(expected[:2, 0])
    target = torch.empty(4096, 32)
    target[:] = HOST_ROWS[INDEX.clone()]
    assert target.equal(expected)
    kind, late = type(rows), HOST_ROWS[INDEX.clone()]
    HOST_ROWS.add_(1)  # it is as it was taken
    assert late.equal(expected)
    HOST_ROWS.sub_(1)
    return kind is torch.Tensor


HOST_ROWS = torch.arange(1.0 * (1 << 20)).reshape(-1, 32)
INDEX = torch.arange(0, 1 << 15, 8)


@check
def fft_convolution():
    signal = torch.randn(2, 3, 2000, generator=torch.Generator().manual_seed(0))
    taps = torch.randn(3, 1, 700, generator=torch.Generator().manual_seed(1)).requires_grad_()
    made = torch.nn.functional.conv1d(signal, taps, torch.ones(3), padding=5, groups=3)
    assert torch.nn.functional.conv1d(signal[:, :, :4], taps[:, :, :3], groups=3).shape[2] == 2
    right = 1 + (signal[0, 2, 95:795] * taps[2, 0]).sum()
    assert torch.isclose(made[0, 2, 100], right, rtol=1e-4)
    (taps_grad,) = torch.autograd.grad(made.sum(), taps)
    assert taps_grad.shape == taps.shape
    return "Convolution" in str(made.grad_fn.next_functions) + str(made.grad_fn)


class OfInference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
        self.register_buffer("angles", torch.ones(4), persistent=False)

    def forward(self, x, scale=None):
        self.types = [x.dtype, scale.dtype, self.inner.weight.dtype, self.norm.running_mean.dtype]
        return {"made": (self.norm(self.inner(x)) * self.angles).argmax(1), "scaled": x * scale}


@check
def bf16_weights():
    model = OfInference().eval()
    with torch.no_grad():
        made = model(torch.ones(2, 4), scale=torch.ones(4))
    assert (made["made"].dtype, made["scaled"].dtype) == (torch.int64, torch.float32)
    assert model.angles.dtype is torch.float32
    trained = OfInference()
    trained(torch.ones(2, 4), scale=torch.ones(4))["scaled"]
    assert set(trained.types) == {torch.float32}
    (kind,) = set(model.types)
    return kind


@check
def bf16_autocast():
    return (torch.nn.Linear(2, 2)(torch.ones(1, 2))).dtype


@check
def expandable_segments():
    return os.environ.get("PYTORCH_CUDA_ALLOC_CONF")


@check
def launch_blocking_off():
    return os.environ.get("CUDA_LAUNCH_BLOCKING")


with torch.inference_mode():
    OTHER_TOKENS = torch.arange(4)


@check
def items_together():
    x = torch.ones(4)
    values = [value.item() for value in x]
    assert values == [1.0] * 4
    x += 1
    pairs = [(a.item(), b.item()) for a, b in zip(x, 2 * x, strict=True)]
    assert pairs == [(2.0, 4.0)] * 4
    changed = x.clone()
    element = changed[0]
    element += 5
    assert (changed.tolist(), element.item()) == ([7.0, 2.0, 2.0, 2.0], 7.0)
    assert numpy.array(x[0]) == 2.0
    views = list(x)
    assert (float(views[0]), int(views[1]), bool(views[2])) == (2.0, 2, True)
    with torch.inference_mode():
        tokens, copies = torch.arange(4), []
        real = torch.Tensor.tolist
        torch.Tensor.tolist = lambda self: copies.append(self.shape) or real(self)
        for turn in range(3):
            assert [tokens[n].item() for n in range(4)] == [turn + n for n in range(4)]
            pairs = zip(tokens, OTHER_TOKENS, strict=True)
            assert sum(int(a) + b.item() for a, b in pairs) == 6 + 4 * turn + 6
            assert (int(tokens[1]), bool(tokens[0]), float(tokens[-1])) == (
                turn + 1,
                turn > 0,
                turn + 3,
            )
            tokens += 1
        first = tokens[0]
        tokens.zero_()
        assert first.item() == 0, "it is a view"
        assert isinstance(first, torch.Tensor)
        assert (first == 0).item()
        assert torch.stack([first, tokens[1] + 1]).tolist() == [0, 1]
        assert [*range(3)][tokens[2]] == 0
        torch.Tensor.tolist = real
    assert len(copies) <= 10, copies
    with torch.inference_mode():
        assert (bool(tokens[1] == 0), bool(tokens[1] > 0), bool(tokens[1] != tokens[2])) == (
            True, False, False,
        )  # fmt: skip
        assert torch.stack([tokens[0] == 0, tokens[0] >= 1]).tolist() == [True, False]
        assert {first: 1}[first] == 1
    table, places = torch.arange(3.0 * 8000).view(3, 8000), torch.tensor([[4, 5], [6, 7]])
    total = sum(table[n, places[n, -1]].item() for n in range(2)) / 2
    one = table[2, 1].item()
    table.zero_()
    assert (total, one, table[2, 1].item()) == ((5 + 8007) / 2, 16001.0, 0.0)
    rows = torch.arange(4.0).view(2, 2)
    entry = rows[0, 0]
    entry += 1  # which writes to all
    entry = rows[0, 0]
    entry -= 1
    assert rows.flatten().tolist() == [0, 1, 2, 3]
    assert pickle.loads(pickle.dumps([rows[1, 1]]))[0].equal(rows[1, 1])
    assert [row[1].item() for row in rows] == [1.0, 3.0]
    # C is given elements for numbers, and lists of them.
    whole, parts = torch.tensor([2, 3]), torch.tensor([0.5, 2.0])
    number, low, high = whole[0], parts[0], parts[1]
    assert torch.arange(6).reshape(number, 3).chunk(number)[1].tolist() == [[3, 4, 5]]
    assert torch.add(x, x, alpha=number).equal(3 * x)
    assert 0.5 <= torch.empty(1).uniform_(low, high).item() <= 2.0
    assert torch.full((2,), high).tolist() == [2.0, 2.0]
    assert torch.tensor([low, high]).equal(parts)
    assert torch.Tensor([low, high]).equal(parts)
    is_two = number == 2
    is_two.logical_not_()
    assert (bool(is_two), bool(number == 2), f"{low:.2f}") == (False, True, "0.50")
    x.numpy()[3] = 5.0
    assert x[3].item() == x[3] == 5.0
    return type(x[3]) is torch.Tensor


class DynamicLayer:
    sums = torch.zeros(1)


class Summing(transformers.PreTrainedModel):
    """Causal: what it gives for a token is the sum of it and those before it."""

    training = False
    lengths = ()
    main_input_name = "input_ids"

    def get_output_embeddings(self):
        return self

    def forward(self, input_ids=None, past_key_values=None, logits_to_keep=0, **_options):
        self.lengths = (*self.lengths, input_ids.shape[1])
        before = past_key_values.layers[0].sums if past_key_values is not None else 0
        sums = before + input_ids.cumsum(1)
        cache = past_key_values or types.SimpleNamespace(layers=[DynamicLayer()])
        cache.layers[0].sums = sums[:, -1:]

        def repeat(times):
            cache.layers[0].sums = cache.layers[0].sums.repeat_interleave(times, 0)

        cache.batch_repeat_interleave = repeat
        logits = sums[:, -logits_to_keep:, None].float()
        return types.SimpleNamespace(logits=logits, past_key_values=cache)


SUMMING = Summing(types.SimpleNamespace())


@check
def beginning_kept():
    SUMMING.lengths = ()
    first, other = torch.arange(70), torch.arange(70, 140)
    for beginning in (first, first, first, other, other):
        texts = torch.cat((beginning.expand(2, -1), torch.randint(9, (2, 7))), 1)
        with torch.no_grad():
            one = SUMMING.forward(texts, use_cache=False, logits_to_keep=1).logits
            whole = SUMMING.forward(input_ids=texts).logits
        assert one.equal(texts.sum(1).float()[:, None, None])
        assert whole.equal(texts.cumsum(1).float()[..., None])
    assert SUMMING.forward(texts).logits.equal(whole), "gradients are asked for"
    assert SUMMING.lengths[-1] == 77
    return SUMMING.lengths


CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
PADDED = torch.zeros(2, 1, 6, 6).masked_fill(CAUSAL.logical_not(), -1e9)


def masked(q, k, v):
    scores = (q @ k.transpose(-2, -1)) * 0.5
    return scores.masked_fill(CAUSAL == 0, float("-inf")).softmax(-1) @ v


def biased(q, k, v):
    scores = torch.matmul(q, k.mT) / 2
    scores += PADDED
    weights = torch.nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
    return torch.nn.functional.dropout(weights, 0.1, training=False) @ v


def batched(q, k, v):
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    return torch.bmm(torch.bmm(q, k.mT).softmax(dim=2), v).view(2, 3, 6, 4)


def summed(q, k, v):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    weights = torch.where(CAUSAL, torch.einsum("bqhd,bkhd->bhqk", q, k), -1e9).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).transpose(1, 2)


def read(q, k, v):
    scores = q @ k.mT
    return (scores - scores.amax(-1, keepdim=True)).softmax(-1) @ v


class OwnSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(_context, x):
        return x.softmax(-1)

    @staticmethod
    def backward(_context, gradient):
        return gradient


BARRED = torch.ones(6, 6, dtype=torch.bool).triu(1)
ODD_ATTENTION = {
    "what is barred first": lambda s, v: torch.where(BARRED, -1e9, s).softmax(-1) @ v,
    "subtracted from": lambda s, v: (BARRED.float() - s).softmax(-1) @ v,
    "by torch": lambda s, v: torch.sub(BARRED.float(), s).softmax(-1) @ v,
    "divided by": lambda s, v: (BARRED.float() / s).softmax(-1) @ v,
    "from the left": lambda s, v: v.mT.matmul(s.softmax(-1)),
    "summed from the left": lambda s, v: torch.einsum("bjd,bij->bid", v, s.softmax(-1)),
    "added into another": lambda s, v: BARRED.float().expand(3, 6, 6).clone().add_(s).softmax(-1)
    @ v,
}


@check
def attention_fused():
    q, k, v = torch.randn(3, 3, 6, 4, generator=torch.Generator().manual_seed(0))
    for name, attend in ODD_ATTENTION.items():
        right = attend(torch.baddbmm(torch.zeros(3, 6, 6), q, k.mT), v)
        assert torch.allclose(attend(q @ k.mT, v), right, atol=1e-4), name
    draw, called = torch.Generator().manual_seed(0), []
    real = torch.nn.functional.scaled_dot_product_attention

    def counting(*args, **kwargs):
        called.append(args[5])
        return real(*args, **kwargs)

    torch.nn.functional.scaled_dot_product_attention = counting
    for attend, is_causal in ((masked, 1), (biased, 1), (batched, 0), (summed, 1), (read, 0)):
        q, k, v = torch.randn(3, 2, 3, 6, 4, generator=draw).requires_grad_()
        right = real(
            q, k, v, is_causal=bool(is_causal), scale=0.5 if attend in (masked, biased) else 1
        )
        made = attend(q, k, v)
        assert torch.allclose(made, right, atol=1e-5), attend
        own, expected = (torch.autograd.grad(each.square().sum(), (q, v)) for each in (made, right))
        assert all(map(functools.partial(torch.allclose, atol=1e-4), own, expected)), attend
        with torch.inference_mode():
            assert torch.allclose(attend(q, k, v), right, atol=1e-5), attend
    q = torch.randn(1, 6, 4, requires_grad=True)
    gradients = [
        torch.autograd.grad(OwnSoftmax.apply(scores)[..., 0].sum(), q)[0]
        for scores in (q @ q.mT, torch.baddbmm(torch.zeros(1, 6, 6), q, q.mT))
    ]
    assert torch.allclose(*gradients, atol=1e-5)
    mask = torch.zeros(6, 6)
    barred = (q @ q.mT + mask).softmax(-1)
    mask += BARRED * -1e9
    assert is_lost(lambda: barred @ q) == (type(barred) is not torch.Tensor)
    torch.nn.functional.scaled_dot_product_attention = real
    return called


HEAD = torch.nn.Linear(3, 4096)


@check
def logits_asked():
    hidden = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        right = HEAD(hidden[:1])[0].log_softmax(-1)
        logits = HEAD(hidden)
        last = torch.nn.functional.log_softmax(logits.float() / 1.0, dim=-1)[:, -1, :]
        assert torch.allclose(last[0], right[-1], atol=1e-5)
        soft = logits.log_softmax(dim=2)
        for index in (
            (0, -1), (slice(1), slice(-2, None)), (torch.tensor([0]), torch.tensor([3])),
            (Ellipsis, 5, slice(None)), (slice(1), -1, torch.tensor([4, 7])), 0,
            (slice(None), slice(None), 3), torch.arange(16).view(2, 8) < 4,
            (slice(None), torch.tensor([1, 1])), (None, 0), (Ellipsis, slice(2, 5)),
        ):  # fmt: skip
            whole = torch.stack((right, HEAD(hidden[1])[:].log_softmax(-1)))
            assert torch.allclose(soft[index], whole[index], atol=1e-5), index
        assert soft.select(1, -1).shape == (2, 4096)
        kind = type(logits)
        assert torch.allclose(logits.argmax(-1)[0], right.argmax(-1))
        assert soft.sum(-1).shape == logits.shape[:2]
        assert logits.type() == "torch.FloatTensor"
        late, right = HEAD(hidden), HEAD(hidden)[:]
        hidden += 1  # it is as it was made
        assert torch.allclose(late[:, -1], right[:, -1], atol=1e-5)
        late = HEAD(hidden)
        HEAD.weight += 0
        assert is_lost(lambda: late[:, -1]) == (kind is not torch.Tensor)
    made, words = HEAD(hidden), torch.full((16,), -100)
    assert made.requires_grad
    words[3], words[14] = 7, 4000
    loss = torch.nn.functional.cross_entropy(made.float().view(-1, 4096), words)
    (gradient,) = torch.autograd.grad(loss, HEAD.bias)
    assert torch.allclose(gradient.sum(), torch.zeros(()), atol=1e-5)
    assert torch.allclose(
        loss, -HEAD(hidden)[:].log_softmax(-1).view(16, 4096)[[3, 14], [7, 4000]].mean()
    )
    words = {"input": torch.zeros(2, 3), "target": torch.tensor([1, 2])}
    assert torch.nn.functional.cross_entropy(**words) > 1
    words = {"input": hidden, "weight": HEAD.weight}
    assert torch.nn.functional.linear(**words).shape == (2, 8, 4096)
    return kind is torch.Tensor


@check
def texts_kept():
    SUMMING.lengths = ()
    first = torch.arange(2 * 6).reshape(2, 6)
    for mode, words in ((torch.no_grad, {}), (torch.inference_mode, {"logits_to_keep": 1})):
        text, mask = first, torch.ones_like(first)
        for token in range(7):
            with mode():
                made = SUMMING.forward(text, attention_mask=mask, **words)
                assert made.logits[:, -1].equal(text.sum(1).float()[:, None])
                assert made.logits[..., -1, :].equal(made.logits[:, -1])
                if not words and token % 2:
                    assert made.logits.equal(text.cumsum(1).float()[..., None])
                    assert made.logits.amax(1).equal(text.sum(1).float()[:, None])
                elif not words:  # what is written to it is in it
                    last = made.logits[:, -1]
                    last += 1
                    assert made.logits[:, -1].equal(text.sum(1).float()[:, None] + 1)
                    made.logits[:, -1, 0] = -5
                    assert made.logits[:, -1].tolist() == [[-5], [-5]]
                    assert made.logits[:, -2].equal(text[:, :-1].sum(1).float()[:, None])
                text = torch.cat((text, torch.full((2, 1), token)), 1)
                mask = torch.ones_like(text)
    with torch.no_grad():
        SUMMING.forward(text + 1)
        SUMMING.forward(text)  # another text
        assert SUMMING.forward(torch.cat((text + 1, text), 1)).logits.sum() > 0
        lengths, another = SUMMING.lengths, copy.deepcopy(SUMMING)
        assert another.forward(text + 7).logits.equal((text + 7).cumsum(1).float()[..., None])
        assert (another.lengths[-1], SUMMING.lengths) == (13, lengths), "a copy has its own"
        SUMMING.weights = [torch.zeros(1)]
        SUMMING.forward(text)
        SUMMING.weights[0].add_(1)  # it is trained
        SUMMING.forward(torch.cat((text, text), 1))
        assert SUMMING.lengths[-1] == 26
    lengths = SUMMING.lengths
    assert "logits_to_keep" in inspect.signature(SUMMING.forward).parameters
    SUMMING.forward(torch.cat((text, text), 1))  # gradients are asked for
    assert SUMMING.lengths[-1] == 26
    return lengths, kv_cache()


MOVED = torch.nn.Linear(2, 2)


def give_texts(*shapes):
    for shape in shapes:
        mask = torch.arange(shape[1]).expand(shape) < 20
        decoding.note_call(SUMMING, (), {"input_ids": torch.ones(shape), "attention_mask": mask})


KEPT = []


@check
def items_later():
    copies = []
    real = torch.Tensor.tolist
    torch.Tensor.tolist = lambda self: copies.append(self.shape) or real(self)
    x, total, squares, seen = torch.ones(()), 0.0, 0.0, []
    for step in range(1, 101):
        x.mul_(0.5) if step % 50 == 0 else x.add_(1)
        total += x.item() / 2
        seen.append((x * 2).item())
        squares += seen[-1] ** 2
    text = f"{total:.3f}, {seen[-1]:.2f} {max(seen)} {round(seen[0])}"
    torch.Tensor.tolist = real
    assert text == "1893.000, 74.00 148.0 4", text
    assert squares**0.5 == math.sqrt(sum(float(each) ** 2 for each in seen))
    last = seen[-1]
    assert isinstance(last, float)
    file = io.BytesIO()
    torch.save(obj={"loss": [x.item()]}, f=file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == {"loss": [x.item()]}
    assert (last > 73, last == 74, bool(last), int(last), -last, last**2) == (
        True, True, True, 74, -74, 74**2,
    )  # fmt: skip
    assert torch.ones(2).mul_(last).tolist() == (torch.ones(2) * last).tolist() == [74, 74]
    assert torch.tensor([last]).item() == last == float(numpy.float64(1) * last)
    assert (numpy.mean(seen[-1:]), math.floor(last), last.is_integer()) == (74, 74, True)
    assert type(torch.tensor(3).item()) is int
    KEPT.append(x.item())  # some outlive the cure
    for value in KEPT:
        texts = [json.dumps({"loss": [value]}, indent=indent) for indent in (None, 1)]
        assert [json.loads(text) for text in texts] == [{"loss": [37.0]}] * 2
        assert torch.tensor([value]).equal(torch.as_tensor([value]))
        assert numpy.isfinite([value]).all()
        assert numpy.array([value]).dtype == float
        assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == 37.0
        assert statistics.mean([value, value]) == 37.0
    return copies


whisper = types.ModuleType("transformers.models.whisper.feature_extraction_whisper")


class WhisperFeatureExtractor:
    def __call__(self, audio, sampling_rate=16000, device="cpu"):
        return audio, sampling_rate, device


whisper.WhisperFeatureExtractor = WhisperFeatureExtractor


@check
def features_on_gpu():
    assert WhisperFeatureExtractor()(1, device="meta")[2] == "meta"
    return WhisperFeatureExtractor()(1, sampling_rate=2)


@check
def reduced_first():
    draw = torch.Generator().manual_seed(0)
    copied = []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            hidden = torch.randn(2, 5, 3, generator=draw)
            right, late = hidden.clone(), hidden.cpu()
            copied.append(type(late) is torch.Tensor)
            assert (late.shape, late.device.type, late.dtype) == (right.shape, "cpu", torch.float32)
            assert late[:, 0].equal(right[:, 0])
            assert numpy.asarray(hidden.to("cpu").argmax(-1)).tolist() == right.argmax(-1).tolist()
            assert hidden.cpu().float().mean(1).tolist() == right.mean(1).tolist()
            values, places = hidden.cpu().topk(2, dim=-1)
            assert (values.tolist(), places.tolist()) == tuple(x.tolist() for x in right.topk(2))
            assert hidden.cpu()[right.sum(-1) > 0].equal(right[right.sum(-1) > 0])
            assert torch.stack([hidden.cpu()[0], right[1]]).equal(right)
            of_each, targets = right.log_softmax(-1), right.argmax(-1)
            late = hidden.cpu().log_softmax(-1)
            scores = late.gather(-1, targets.unsqueeze(-1))
            assert scores.equal(of_each.gather(-1, targets.unsqueeze(-1)))
            assert (hidden.cpu().argmax(-1) == hidden.cpu().argmax(-1)).all(-1).sum() == 2
            total = 0.0 + scores.sum()
            total += scores.sum()  # no part of what it was computed of
            assert torch.as_tensor(total).equal(of_each.amax(-1).sum() * 2)
            loss = torch.nn.functional.cross_entropy(hidden.cpu().view(-1, 3), targets.view(-1))
            assert loss.equal(
                torch.nn.functional.cross_entropy(right.view(-1, 3), targets.view(-1))
            )
            assert torch.where(hidden.cpu() > 0, 1.0, hidden.cpu()).equal(right.where(right < 0, 1))
            largest = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.long)
            torch.max(hidden.cpu(), 1, out=largest)
            assert largest[0].equal(right.amax(1))
            with torch.enable_grad():
                scale = torch.ones(3, requires_grad=True)
                if mode is torch.no_grad:
                    assert (hidden.cpu() * scale.exp()).requires_grad
            late = hidden.cpu()
            back = late.to("cpu", non_blocking=True)
            assert back.equal(right)
            hidden += 1
            # On the CPU .cpu() gives the tensor itself.
            assert late.equal(right if not copied[-1] else right + 1)
    return copied


class Named(torch.nn.Sequential):
    calls = 0

    def forward(self, x, more=None, less=None, **_words):
        self.calls += 1
        made = x.to_dense() + 1
        made = made if more is None else made + more
        return {"x": super().forward(x.to_dense()), "n": made if less is None else made - less}


NAMED = Named(torch.nn.Linear(2, 2), torch.nn.ReLU()).eval()


@check
def inputs_kept():
    NAMED.calls = 0
    with torch.inference_mode():
        right = NAMED(torch.ones(3, 2))
        for turn in range(6):
            made = NAMED(torch.ones(3, 2), mask=torch.zeros(1))
            assert made["x"].equal(right["x"])
            made["n"].zero_()  # the program's own
            assert NAMED(torch.full((3, 2), 1.0 * turn))["n"].equal(torch.full((3, 2), 1.0 + turn))
    with torch.no_grad():
        assert NAMED(torch.ones(3, 2), mask=torch.zeros(1))["n"].equal(right["n"])
        NAMED[0].bias += 1
        assert not NAMED(torch.ones(3, 2), mask=torch.zeros(1))["x"].equal(right["x"])
        NAMED[0].bias -= 1
    with torch.no_grad():
        for _ in range(2):
            for words, right in (((2, None), 4.0), ((None, 2), 0.0)):
                assert NAMED(torch.ones(3, 2), *words)["n"].equal(torch.full((3, 2), right))
            assert NAMED(torch.eye(2).to_sparse())["n"].equal(torch.eye(2) + 1)
        # Models of an ensemble, one after the other in the same place, and one that is trained.
        for value in range(5):
            model = torch.nn.Sequential(torch.nn.Linear(2, 1))
            model[0].weight.fill_(value)
            model[0].bias.zero_()
            assert model.eval()(torch.ones(1, 2)).item() == 2 * value
        model[0].weight.grad, before = torch.ones(1, 2), model(torch.ones(1, 2))
        torch.optim.AdamW([model[0].weight], lr=1.0, fused=True).step()
        assert not model(torch.ones(1, 2)).equal(before)
    assert NAMED(torch.ones(3, 2))["x"].requires_grad
    return NAMED.calls


@check
def modules_stay():
    copied = []
    real = torch.nn.Module._apply
    torch.nn.Module._apply = lambda self, *_args: copied.append(self) or self
    assert MOVED.to("cpu") is MOVED.to(device=torch.device("cpu")) is MOVED.cpu() is MOVED
    MOVED.to(torch.float32)
    MOVED.to("cpu", torch.float32)
    torch.nn.Module._apply = real
    return len(copied)


def compute_where_it_was_put():
    """A module that stays, and is given what is on the CPU."""
    copies.ModulesStay.is_far = lambda _, each: each is model.weight
    stays, model, seen = cures()["modules_stay"](""), torch.nn.Linear(2, 2), []
    stays.prepare(torch)
    model._apply = lambda *_: seen.append("moved") or model
    for _ in range(4):
        model.to("cpu")
    undo = stays.apply(torch)
    seen.clear()
    model.to("cpu")
    assert not seen
    model(torch.ones(2))
    undo()
    assert seen == ["moved"]
    assert not model._forward_pre_hooks
    return stays.ended


class Embedding(transformers.PreTrainedModel):
    """Gives each token its number, and no more."""

    lengths = ()
    classes = None

    def get_output_embeddings(self):
        return None

    def forward(self, input_ids=None, attention_mask=None, labels=None, places=0, **_options):
        self.lengths = (*self.lengths, input_ids.shape[1])
        input_ids = input_ids + places
        hidden = (input_ids * attention_mask).float()[..., None].expand(-1, -1, 3)
        if self.classes is not None:
            return {"logits": hidden.new_ones(len(hidden), self.classes)}
        loss = None if labels is None else (labels != -100).sum()
        return {"loss": loss, "logits": hidden.repeat(1, 1, 1366), "hidden": hidden}


EMBEDDING = Embedding(types.SimpleNamespace())


@check
def texts_trimmed():
    EMBEDDING.lengths = ()
    ids = torch.tensor([[5] * 3 + [0] * 29, [6] * 9 + [0] * 23])
    mask, labels = (ids > 0).long(), torch.where(ids > 0, ids, -100)
    made = EMBEDDING.forward(ids, attention_mask=mask, labels=labels)
    assert made["loss"] == 12
    assert made["hidden"].equal(ids.float()[..., None].expand(-1, -1, 3))
    assert made["logits"].shape == (2, 32, 4098)
    assert made["logits"][..., 0].equal(ids.float())
    EMBEDDING.forward(input_ids=ids, attention_mask=mask, labels=ids)
    EMBEDDING.forward(input_ids=ids.flip(1), attention_mask=mask.flip(1))
    assert EMBEDDING.lengths[1:] == (32, 32), "a label is not left out, nor what comes first"
    lengths, EMBEDDING.classes = EMBEDDING.lengths, 16
    made = EMBEDDING.forward(ids, attention_mask=mask)
    assert made["logits"].shape == (2, 16), "of classes, as many as columns are left"
    EMBEDDING.classes = None
    places = torch.zeros(1, 32, dtype=torch.int64)  # for as many columns as there were
    made = EMBEDDING.forward(ids, attention_mask=mask, places=places)
    assert made["hidden"].shape == (2, 32, 3)
    return lengths


class Reader(torch.nn.Module):
    """Reads texts: each with a score, and a vector for each token."""

    def __init__(self, knows_padding=True):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(20, 16), torch.nn.Embedding(64, 16)
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.score, self.lengths, self.knows_padding = torch.nn.Linear(16, 1), [], knows_padding

    def forward(self, ids, mask=None, more=None):
        self.lengths.append(ids.shape[1])
        mask = ids != 0 if mask is None else mask
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.layers(x, src_key_padding_mask=~mask if self.knows_padding else None)
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"score": self.score(mean)[:, 0], "tokens": (x, more)}


READER = Reader()


@check
def own_texts_trimmed():
    """The lengths of texts; scores, and what is learned of them, are the same."""
    ids = torch.randint(1, 20, (4, 40))
    for row, length in enumerate((3, 17, 9, 5)):
        ids[row, length:] = 0
    mask, drawn = ids > 0, torch.get_rng_state()
    with torch.no_grad():
        right = Reader.forward(READER.eval(), ids, mask)
    READER.lengths.clear()
    for words in ({}, {"mask": mask}):
        for _ in range(2):
            made = READER(ids, **words)
            torch.testing.assert_close(made["score"], right["score"])
            assert made["tokens"][0].shape == (4, 40, 16)
            torch.testing.assert_close(made["tokens"][0][mask], right["tokens"][0][mask])
            made["score"].sum().backward()
            READER.zero_grad()
    other = mask.clone()
    other[0, -1] = True
    READER(ids, other)
    READER(ids.flip(1))
    assert torch.get_rng_state().equal(drawn)
    assert READER.lengths[-2:] == [40, 40], "a column counts"
    READER.train()
    READER(ids)
    READER.eval()
    return min(READER.lengths)


def look_up_by_name_and_in_part():
    """Layers that are given their columns by name, and layers that are left out: these learn
    nothing."""
    together, codes = cures()["columns_together"](""), torch.zeros(3, 8, dtype=torch.int64)
    tables = torch.nn.ModuleList(torch.nn.Embedding(3, 2) for _ in range(8))
    undo = together.apply(torch)
    for count in (8, 8, 4, 4):
        codes = codes + 0
        for table in tables:
            table.weight.grad = None
        rows = [tables[n](input=codes[:, n]) for n in range(count)]
        torch.cat(rows).sum().backward()
    alike = torch.from_dlpack(torch.ones(3, 1, dtype=torch.int64).expand(3, 8))
    assert tables[0](alike[:, 0]).equal(tables[0].weight[[1, 1, 1]])
    undo()
    return [table.weight.grad is None for table in tables]


def give_more_now_and_then():
    reader, trimmed = Reader().eval(), cures()["own_texts_trimmed"]("")
    trimmed.prepare(torch)
    ids = torch.ones(4, 40, dtype=torch.int64).tril(4)
    for _ in range(3):
        reader(ids)
    undo = trimmed.apply(torch)
    assert {reader(ids)["tokens"][0].shape[1] for _ in range(4)} == {40}
    trimmed.look()
    made = reader(ids, more=torch.ones(4, 16))
    assert (trimmed.used, made["tokens"][1].shape) == (4, (4, 16))
    trimmed.look()
    undo()
    return trimmed.used


def read_what_is_padded():
    """A module that takes padding for texts is left alone."""
    reader, trimmed = Reader(False).eval(), cures()["own_texts_trimmed"]("")
    trimmed.prepare(torch)
    ids = torch.ones(4, 40, dtype=torch.int64).tril(4) * torch.randint(1, 20, (4, 40))
    for _ in range(3):
        right = reader(ids)["score"]
    undo = trimmed.apply(torch)
    assert all(reader(ids)["score"].equal(right) for _ in range(3))
    trimmed.look()
    undo()
    return trimmed.used


def of_one_hot(index, weight, logits):
    """What programs compute of one-hot rows, and gradients of it."""
    functional = torch.nn.functional
    whole = functional.one_hot(index, 50)
    rows, flat = whole.float(), logits.flatten(0, 1)
    logp = functional.log_softmax(logits, -1)
    made = [
        rows @ weight, rows.view(-1, 50) @ weight, whole.to(weight.dtype).matmul(weight),
        functional.linear(rows, weight.t(), weight[0]), -(rows * logp).sum(-1).mean(),
        (-(logp * rows)).sum(), (logp * rows).sum(dim=-1, keepdim=True), (logp * rows).sum(0),
        functional.cross_entropy(flat, rows.flatten(0, 1)), rows.flatten(0, 1).t() @ flat,
        rows[0].T @ logits[0], rows[0].transpose(0, 1).mm(logits[0]), rows.sum((0, 1)),
        rows.argmax(-1).float(), torch.einsum("btc,cd->btd", rows, weight), rows * 2.0,
        whole.sum(0).float(), (rows - logits).pow(2).mean(),
        functional.cross_entropy(logits[0], rows[0], reduction="sum"),
    ]  # fmt: skip
    sum(each.sum() for each in made if each.requires_grad).backward()
    gradients = [weight.grad, logits.grad]
    weight.grad = logits.grad = None
    return [*made, *gradients]


@check
def one_hot_indexed():
    """How many products reach torch with one-hot rows; what is computed is the same."""
    torch.manual_seed(0)
    index = torch.randint(0, 50, (3, 7))
    weight = torch.randn(50, 4, requires_grad=True)
    logits = torch.randn(3, 7, 50, requires_grad=True)
    if not RIGHT_OF_ONE_HOT:
        RIGHT_OF_ONE_HOT.extend(of_one_hot(index, weight, logits))
    products = Products()
    with products:
        made = of_one_hot(index, weight, logits)
    for each, right in zip(made, RIGHT_OF_ONE_HOT, strict=True):
        torch.testing.assert_close(each, right, atol=1e-5, rtol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        rows = torch.nn.functional.one_hot(index, 50).float()
        assert (rows @ weight).equal(weight.bfloat16()[index])
    index.zero_()
    assert rows[0, 0].sum() == 1
    return products.count


RIGHT_OF_ONE_HOT = []


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts products of matrices."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.__name__.split(".")[0] in ("mm", "addmm", "bmm")
        return function(*args, **(kwargs or {}))


@check
def heads_shared():
    """How many times attention is given keys of as many heads as queries; what it gives, and
    gradients, are the same."""
    torch.manual_seed(0)
    attend, shared = torch.nn.functional.scaled_dot_product_attention, Shared()
    q = torch.randn(2, 8, 5, 16)
    k, v = (torch.randn(2, 2, 5, 16, requires_grad=True) for _ in range(2))

    def spread(x):
        return x[:, :, None].expand(2, 2, 4, 5, 16)

    ways = (
        lambda x: x.repeat_interleave(4, dim=1), lambda x: torch.repeat_interleave(x, 4, 1),
        lambda x: spread(x).reshape(2, -1, 5, 16),
        lambda x: x.transpose(1, 2).repeat_interleave(4, dim=2).transpose(1, 2).contiguous(),
    )  # fmt: skip
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[0, 4] = False
    for repeat in ways:
        for words in ({"is_causal": True}, {"attn_mask": mask}):
            right = attend(q, k.repeat(1, 1, 4, 1).view(2, 8, 5, 16), ways[0](v) + 0.0, **words)
            with shared:
                made = attend(q, repeat(k), repeat(v), **words)
            torch.testing.assert_close(made, right)
            made.square().sum().backward()
            gradients = k.grad, v.grad
            k.grad = v.grad = None
            right.square().sum().backward()
            torch.testing.assert_close((k.grad, v.grad), gradients, atol=1e-5, rtol=1e-5)
            k.grad = v.grad = None
    assert ways[0](k).sum().isclose(4 * k.sum())
    return shared.count


class Shared(torch.overrides.TorchFunctionMode):
    """Counts keys of eight heads that attention is given."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ == "scaled_dot_product_attention":
            key = args[1] if len(args) > 1 else kwargs["key"]
            self.count += key.shape[1] == 8 and type(key) is torch.Tensor
        return function(*args, **(kwargs or {}))


MASKS = (
    lambda n: torch.triu(torch.ones(n, n), diagonal=1).bool().to(torch.device("cpu")),
    lambda n: torch.full((n, n), -math.inf).triu(1)[None, None].to("cpu", torch.float32),
    lambda n: torch.ones((n, n), dtype=torch.bool).tril().logical_not().expand(2, -1, -1),
    lambda n: torch.zeros(n, n).masked_fill(torch.ones(n, n).tril() == 0, -math.inf),
    lambda n: (1.0 - torch.tril(torch.ones(n, n, dtype=torch.float64))) * -1e9,
    lambda n: torch.zeros(n, n).fill_(3.0), lambda n: torch.eye(n)[1:, :2],
    lambda n: torch.nn.Transformer.generate_square_subsequent_mask(n),
)  # fmt: skip


@check
def prompts_trimmed():
    """How long the prompts are that generate() is given; what it gives has all columns."""
    mixin, seen = generation.GenerationMixin(), []
    generation.GenerationMixin.seen = seen
    ids = torch.arange(1, 81).view(2, 40)
    mask = torch.ones_like(ids)
    mask[0, :20] = mask[1, :29] = 0
    for words in ({"max_new_tokens": 3}, {}, {"max_new_tokens": 3, "streamer": 1}):
        made = mixin.generate(ids, attention_mask=mask, **words)
        assert made.equal(ids.repeat_interleave(2, 0))
    made = mixin.generate(inputs=ids, attention_mask=mask, max_new_tokens=3, is_dict=True)
    assert made["sequences"].equal(ids.repeat_interleave(2, 0))
    mixin.generate(ids, attention_mask=mask.flip(1), max_new_tokens=3)
    assert seen[1:3] == [40, 40] == [40, seen[4]]
    return seen


class Adapted(torch.nn.Module):
    """A linear layer with an adapter, which may be followed by something that is no product."""

    def __init__(self, after=lambda x: x):
        super().__init__()
        self.base = torch.nn.Linear(32, 24)
        self.down, self.up = torch.nn.Linear(32, 4, bias=False), torch.nn.Linear(4, 24, bias=False)
        self.after, self.scale = after, 0.5

    def forward(self, x):
        return self.after(self.base(x) + self.up(self.down(x)) * self.scale)


class AdaptedLinear(torch.nn.Linear):
    def __init__(self):
        super().__init__(32, 24, bias=False)
        self.a = torch.nn.Parameter(torch.randn(4, 32))
        self.b = torch.nn.Parameter(torch.randn(24, 4))

    def forward(self, x):
        return super().forward(x) + x @ self.a.t() @ self.b.t()


ADAPTED_BY_HAND = [Adapted().eval(), AdaptedLinear().eval(), Adapted(torch.relu).eval()]


@check
def own_adapters_merged():
    """How many products modules compute; what they give is the same, also where it is trained."""
    x, counts = torch.randn(3, 5, 32), []
    for module in ADAPTED_BY_HAND:
        right = type(module).forward(module, x)
        products = Products()
        with torch.no_grad(), products:
            torch.testing.assert_close(module(x), right)
        assert module(x.clone().requires_grad_()).requires_grad
        counts.append(products.count)
    return counts


def write_to_adapters():
    merged = cures()["own_adapters_merged"]("")
    undo = merged.apply(torch)
    merged.look()
    assert not merged.ended
    with torch.no_grad():
        ADAPTED_BY_HAND[1].b.mul_(2.0)
    merged.look()
    undo()
    return merged.ended


@check
def sorts_on_gpu():
    """How many sorts are torch's; what they give is the same."""
    draw, sorts = numpy.random.default_rng(0), Sorts()
    with sorts:
        for dtype in ("float32", "float64", "int64", "float16"):
            scores = (1e3 * draw.normal(size=(40, 2000))).astype(dtype)
            for words in ({}, {"axis": 0}, {"kind": "stable"}):
                axis = words.get("axis", -1)
                order = numpy.argsort(scores, **words)
                assert order.dtype == numpy.int64
                numpy.testing.assert_array_equal(
                    numpy.take_along_axis(scores, order, axis), numpy.sort(scores, **words)
                )
            first = numpy.argpartition(-scores, 10, axis=1)[:, :10]
            best = numpy.sort(numpy.take_along_axis(scores, first, 1))
            numpy.testing.assert_array_equal(best, numpy.sort(scores)[:, -10:])
        assert numpy.argsort(scores[:, ::-1][:1].astype("float32")).shape == (1, 2000)
        assert numpy.sort(numpy.zeros((300, 300))[::-1], axis=None).shape == (90000,)
        assert numpy.argsort([2, 1]).tolist() == [1, 0]
    return sorts.count


class Sorts(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts sorts."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.__name__.split(".")[0] == "sort"
        return function(*args, **(kwargs or {}))


@check
def constants_kept():
    """How many large tensors are made; they are right, and what is written to is the program's."""
    made, x = Made(), torch.randn(300, 300, requires_grad=True)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        for number in (300, 300, 310):
            for place, mask in enumerate(MASKS):
                if not RIGHT_MASKS.get((place, number)) is not None:
                    RIGHT_MASKS[place, number] = mask(number).clone()
                with mode(), made:
                    got = mask(number)
                    right = RIGHT_MASKS[place, number]
                    assert (got.shape, got.dtype) == (right.shape, right.dtype)
                    assert got.equal(right), place
                    if number == 300 and place != 2:
                        got[..., 0] = 5  # two are there now
                        assert not got.equal(right)
    whole = torch.ones(300, 300)
    row, same = whole[3], whole.float()
    column = same.t()[:, 1:2]
    column.zero_()
    assert (whole[:, 1].sum(), row[1], same[0, 1], row.sum(), whole.sum()) == (
        299,
        1,
        1,
        300,
        89700,
    )
    both = [torch.zeros(300, 300) for _ in range(2)]
    assert both[0].sum() == both[1].sum() == 0
    both[0].numpy().fill(1)
    torch._foreach_add_(both, 2.0)
    assert (both[0].mean(), both[1].mean(), torch.zeros(300, 300).sum()) == (3, 2, 0)
    torch.where(MASKS[0](300), 0.0, x).sum().backward()
    assert x.grad.equal(torch.ones(300, 300).tril())
    return made.count


RIGHT_MASKS = {}


class Made(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts tensors of ones, zeros or a number that are made, but to find their shape."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name, is_meta = function.__name__.split(".")[0], "meta" in str((kwargs or {}).get("device"))
        self.count += name in ("ones", "zeros", "full", "eye") and not is_meta
        return function(*args, **(kwargs or {}))


@check
def checks_later():
    """How many answers are read by themselves; all are right."""
    x, asked = torch.ones(4), Asked()
    with asked:
        for _ in range(20):
            assert not torch.isnan(x).any()
            assert torch.isfinite(x).all().item()
            if (x < 0).any():
                raise ValueError
    return asked.count


class Asked(torch.overrides.TorchFunctionMode):
    """Counts values that are read."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function.__name__ in ("__bool__", "item", "tolist")
        return function(*args, **(kwargs or {}))


def find_no_number():
    """A line that finds one after a while is told so by the end of the block."""
    later_, x, found = cures()["checks_later"](""), torch.ones(4), []
    undo = later_.apply(torch)
    for number in range(400):
        x[0] = math.nan if number == 100 else 1.0
        found.append(bool(torch.isnan(x).any()))
        if number == 99:
            later_.look()
            assert (later_.ended, any(found)) == ("", False)
    later_.look()
    undo()
    return later_.ended


@check
def padding_trimmed():
    ids = torch.tensor([[5] * 3 + [0] * 29, [6] * 9 + [0] * 23])
    mask, labels = (ids > 0).long(), torch.where(ids > 0, ids, -100)
    whole = {"input_ids": ids, "attention_mask": mask, "labels": labels, "y": torch.ones(2)}
    other = {**whole, "labels": ids}
    left = {"input_ids": ids.flip(1), "attention_mask": mask.flip(1)}
    batches = [whole, other, left, (ids, mask), (ids, ids)]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    shapes = []
    for batch in loader:
        values = batch.values() if isinstance(batch, dict) else batch
        shapes.append([tuple(each.shape) for each in values])
    assert shapes[1] == [(2, 32)] * 3 + [(2,)], "a label is not left out"
    assert shapes[2] == shapes[4] == [(2, 32)] * 2
    assert shapes[0][3] == (2,)
    assert {*shapes[0][:3], *shapes[3]} in ({(2, 32)}, {(2, 16)})
    return shapes


@check
def computed_kept():
    matrix, other = 2 * torch.eye(2), torch.eye(2)
    packed, scale = torch.eye(2, dtype=torch.int8), torch.full((2, 1), 0.5)
    weights = [((packed >> 0).float() - 1) * scale for _ in range(6)]
    assert weights[5].tolist() == [[0, -0.5], [-0.5, 0]]
    scale += 1
    assert ((packed >> 0).float() - 1).mul(scale).tolist() == [[0, -1.5], [-1.5, 0]]
    with torch.inference_mode():
        made = [other * 2 + 1 for _ in range(6)]
        assert (made[5] is made[4]) == (weights[5] is weights[4])
        made[5].zero_()
        assert (other * 2 + 1).equal(2 * torch.eye(2) + 1), "what was kept was written to"
    inverses = [torch.linalg.inv(matrix) for _ in range(4)]
    assert inverses[3].equal(torch.eye(2) / 2)
    matrix += 2 * torch.eye(2)
    assert torch.linalg.inv(matrix).equal(torch.eye(2) / 4), "it was written to"
    assert [torch.linalg.inv(each).sum() for each in (other, matrix, other)] == [2, 0.5, 2]
    rows = [matrix[n].softmax(-1) for n in (0, 1, 0, 1, 0, 1)]
    assert rows[4].equal(rows[0])
    assert not rows[4].equal(rows[5])
    once = [other.sort(-1, descending=n > 0).values[0, 0] for n in (0, 1, 0, 1, 0, 1)]
    assert once == [0, 1, 0, 1, 0, 1]
    weight = torch.ones(2, 2, requires_grad=True)
    assert torch.matmul(weight, other).requires_grad
    assert torch.matmul(weight, other).grad_fn is not torch.matmul(weight, other).grad_fn
    return inverses[2] is inverses[3]


COLUMNS = torch.nn.ModuleList(torch.nn.Embedding(3 + n, 2) for n in range(8))
SMALL_LAYERS = torch.nn.ModuleList([torch.nn.Linear(2, 3) for _ in range(8)])


@check
def columns_together():
    codes = torch.arange(24).view(3, 8) % 3
    looked_up = []
    for _ in range(2):
        codes = (codes + 1) % 3
        rows = [table(codes[:, 7 - n]) for n, table in enumerate(COLUMNS)]
        looked_up.append(torch.cat(rows, 1))
    for n, table in enumerate(COLUMNS):
        assert looked_up[1][:, 2 * n : 2 * n + 2].equal(table.weight[codes[:, 7 - n]])
        table.weight.grad = None
    looked_up[1][:, 2:4].sum().backward()
    grads = [table.weight.grad for table in COLUMNS]
    assert grads[1].sum() == 6
    assert all(each is None or not each.any() for each in [grads[0], *grads[2:]])
    with torch.no_grad():
        COLUMNS[0].weight += 1
    again = [COLUMNS[0](codes[:, 7]) for _ in range(2)]
    assert again[0].equal(again[1])
    assert again[0].equal(COLUMNS[0].weight[codes[:, 7]])
    for table in COLUMNS:
        table.weight.grad = None
    numbers = torch.randn(3, 9)
    for _ in range(2):
        numbers = numbers + 1
        made = [layer(numbers[:, n : n + 2]) for n, layer in enumerate(SMALL_LAYERS)]
    for n, layer in enumerate(SMALL_LAYERS):
        right = numbers[:, n : n + 2] @ layer.weight.T + layer.bias
        assert torch.allclose(made[n], right, atol=1e-6)
        layer.weight.grad = None
    made[1].sum().backward()
    right = numbers[:, 1:3].sum(0).expand(3, 2)
    assert torch.allclose(SMALL_LAYERS[1].weight.grad, right, atol=1e-5)
    SMALL_LAYERS.zero_grad()
    first = SMALL_LAYERS[0]
    with torch.no_grad():
        first.bias += 1
        right = numbers[:, :2] @ first.weight.T + first.bias
        assert torch.allclose(first(input=numbers[:, :2]), right)
    kinds = {type(each.grad_fn).__name__ for each in (rows[0], made[0])}
    return kinds == {"UnbindBackward0"}


@check
def results_kept():
    x = torch.ones(2)
    with torch.no_grad():
        made = [ENCODER(x) for _ in range(4)]
        x += 1
        assert ENCODER(x).equal(2 * made[0]), "it was written to"
        x += 1
        ENCODER(x).zero_()
        assert ENCODER(x).equal(2 * x), "what it gave was written to"
        DRAWN.training = False
        assert not [DRAWN(x) for _ in range(4)][2].equal(DRAWN(x)), "it draws numbers"
    with torch.inference_mode():
        y = torch.ones(2)
        for _ in range(5):
            kept = [ENCODER(y) for _ in range(2)]
        assert (kept[0] is kept[1]) == (made[2] is made[3]), "it does not count, and is compared"
    assert ENCODER(x) is not ENCODER(x), "gradients are asked for"
    return made[2] is made[3]


class Encoder(torch.nn.Module):
    def forward(self, x):
        return 2 * x if self is ENCODER else x * torch.rand(2)


ENCODER, DRAWN = Encoder().eval(), Encoder()


@check
def activations_stay():
    x = torch.ones(2, requires_grad=True)
    kept = torch.autograd.graph.save_on_cpu()
    with kept:
        y = (x * x).sum()
    y.backward()
    assert x.grad.equal(torch.full((2,), 2.0))
    return kept.pack_hook(x) is x


@check
def cores_freed():
    return os.sched_getaffinity(0)


@check
def attention_weights_off():
    x = torch.ones(1, 2, 4)
    assert ATTENTION(x, x, x, need_weights=False)[1] is None
    return type(ATTENTION(x, x, x)[1]) is torch.Tensor


ATTENTION = torch.nn.MultiheadAttention(4, 2)


def read_weights(**words):
    """They are what they would be."""
    off = cures()["attention_weights_off"]("")
    off.prepare(torch)
    q, k = torch.randn(3, 5, 4), torch.randn(3, 7, 4)
    each = torch.nn.MultiheadAttention(4, 2, batch_first=words.pop("batch_first", True))
    if not each.batch_first:
        q, k = q.transpose(0, 1), k.transpose(0, 1)
    if words.pop("is_single", False):
        q, k = q[0], k[0]
    right = [each(q, k, value=k, **words) for _ in range(2)][1]
    undo = off.apply(torch)
    made = each(q, k, value=k, **words)
    undo()
    assert torch.allclose(made[0], right[0], atol=1e-5)
    assert not off.ended
    assert made[1].shape == right[1].shape
    assert torch.allclose(made[1] * 2, right[1] * 2, atol=1e-5)
    return off.ended


@check
def caching_on():
    return os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")


@check
def memory_history_off():
    if not RECORDED:
        torch.cuda.memory._record_memory_history("all", stacks="python")
    return RECORDED[-1]


RECORDED = []


def record_memory():
    memory = torch.cuda.memory
    memory._record_memory_history = lambda *args, **kwargs: RECORDED.append((args, kwargs))


@check
def tracing_off():
    return sys.getprofile() is None, sys.gettrace() is None


def trace():
    sys.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)


def turn_cudnn_off():
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.enabled = False


@check
def cudnn_on():
    return torch.backends.cudnn.enabled


@check
def one_thread():
    return torch.get_num_threads()


@check
def all_threads():
    return torch.get_num_threads()


@check
def checkpointing_off():
    runs = []

    def layer(x):
        runs.append(1)
        return x * x

    x = torch.ones(2, requires_grad=True)
    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert x.grad.tolist() == [2, 2]
    return len(runs)


NUMBERS = iter(range(100))


def report():
    return next(NUMBERS)


def chained(x):
    return (x * 2 + 1).relu()


def trains(x):
    x.backward()


@check
def compile_function():
    try:
        compiling.CompileFunction("each_cure.py:trains").apply(torch)
    except CannotApply:
        return chained.__code__.co_name  # to call it takes a compiler
    return "trains is compiled"


@check
def flex_compiled():
    """How often it went by what is compiled."""
    compile_, compiled = torch.compile, []
    torch.compile = lambda function, **_: lambda *args: compiled.append(1) or function(*args)
    made = [flex.flex_attention(number, 1) for number in range(3)]
    torch.compile = compile_
    assert made == [1, 2, 3]
    return len(compiled)


flex = types.ModuleType("torch.nn.attention.flex_attention")
flex.flex_attention = lambda query, key: query + key


@check
def skip():
    return report() != report()


@check
def repeat_batch():
    batches = iter(torch.utils.data.DataLoader(Numbers(), batch_size=2))
    return torch.equal(next(batches), next(batches))


@check
def last_values():
    return [torch.tensor(value).item() for value in (1, 2)]


@check
def keep_copies():
    moved = [torch.ones(2).to("meta") for _ in range(2)]
    assert torch.ones(2).to(torch.float64).dtype is torch.float64
    return moved[0] is moved[1]


COUNTED = [0]


def count_on():
    while True:
        count_one()


def count_one():
    COUNTED[0] += 1


@check
def hold_threads():
    """Whether another thread goes on."""
    before, until = COUNTED[0], time.monotonic() + 0.5
    while time.monotonic() < until and COUNTED[0] - before < 1000:
        time.sleep(0.001)
    return COUNTED[0] - before >= 1000


@check
def no_saves():
    memory = io.BytesIO()
    torch.save({"of": "memory"}, memory)  # no file: it is read again
    memory.seek(0)
    assert torch.load(memory) == {"of": "memory"}
    save_by_name({}, "saved.pt")
    there = os.path.exists("saved.pt")
    if there:
        os.remove("saved.pt")
    with open("kept.pt", "wb") as file:
        save_by_name({"is": there}, file)
    assert torch.load("kept.pt")["is"]  # or it is as it was before
    return there


class Adapted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.merged_adapters = torch.nn.Linear(2, 2), []

    def get_base_layer(self):
        return self.base


class PeftModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Adapted()

    def merge_adapter(self):
        self.layer.base.weight.data += 0.1
        self.layer.merged_adapters.append("default")

    def unmerge_adapter(self):
        self.layer.base.weight.data -= 0.1 + 1e-6  # it rounds
        self.layer.merged_adapters.clear()


peft = types.ModuleType("peft")
peft.PeftModel, ADAPTED = PeftModel, PeftModel()


@check
def adapters_merged():
    return ADAPTED.layer.base.weight.tolist()


TEACHER = torch.nn.Sequential(torch.nn.Linear(1024, 1024)).requires_grad_(False)


@check
def frozen_autocast():
    x = torch.rand(2, 1024, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        assert TEACHER[0].weight.dtype is torch.float32
    made = TEACHER(x)
    assert made.dtype is torch.float32
    assert not torch.is_autocast_enabled("cpu")
    try:
        TEACHER(None)
    except TypeError:
        assert not torch.is_autocast_enabled("cpu"), "it is left however the module ends"
    return made.tolist()


def transformed(fft, array, axis_word):
    """A convolution and a correlation of 100 and 32 values: 131, a prime."""
    signal, kernel = numpy.arange(100.0), numpy.cos(numpy.arange(32.0))
    given = {axis_word: -1}
    spectra = [fft.rfft(array(each), n=131, **given) for each in (signal, kernel)]
    convolved = numpy.asarray(fft.irfft(spectra[0] * spectra[1], 131))
    assert numpy.allclose(convolved, numpy.convolve(signal, kernel))
    lags = numpy.correlate(signal, kernel, "full")  # the first of them are negative
    correlated = numpy.asarray(fft.irfft(spectra[0] * spectra[1].conj(), n=131))
    assert numpy.allclose(correlated, numpy.roll(lags, -31))
    length = fft.rfft(array(numpy.ones(131))).shape[-1]
    assert length == fft.rfft(array(signal), n=130).shape[-1] == 66, "not padded, or fast"
    image = array(numpy.ones((2, 3)))
    assert fft.rfft2(image, (131, 5)).shape[-1] == 3
    is_longer = spectra[0].shape[-1] == 71
    assert is_lost(lambda: fft.irfft(spectra[0] / (spectra[1] + 0.1), 131)) == is_longer
    return spectra[0].shape[-1], fft.rfft2(image, (131, 5)).shape


@check
def fft_lengths():
    assert torch.fft.rfft(input=torch.ones(4)).shape == (3,)
    return transformed(torch.fft, torch.tensor, "dim")


@check
def cupy_fft_lengths():
    seen = [transformed(each, numpy.array, "axis") for each in (cupy.fft, cupyx_fft)]
    assert seen[0] == seen[1]
    return seen


@check
def jax_fft_lengths():
    return transformed(jax.numpy.fft, numpy.array, "axis")


class Accelerator:
    mixed_precision = "bf16"


accelerate = types.ModuleType("accelerate")
accelerate.Accelerator = Accelerator
accelerator = Accelerator()
accelerator._models = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())]


@check
def accelerate_autocast():
    x = torch.linspace(0, 1, 4)
    (model,) = accelerator._models
    with torch.autocast("cpu", torch.bfloat16):
        assert model[0](x).dtype is torch.bfloat16
    made = model[0](x)
    assert made.dtype is torch.float32
    return made.tolist()


class TrainingArguments:
    def __init__(self, batch, accumulation):
        self.per_device_train_batch_size, self.gradient_accumulation_steps = batch, accumulation
        self.__post_init__()

    def __post_init__(self):
        self.whole = self.per_device_train_batch_size * self.gradient_accumulation_steps


training_arguments = types.ModuleType("transformers.training_args")
training_arguments.TrainingArguments = TrainingArguments


@check
def accumulation_merged():
    made = TrainingArguments(2, 8)
    assert made.whole == 16
    return made.per_device_train_batch_size, made.gradient_accumulation_steps


def stand_on_gpu():
    copies.PinnedResults.is_far = lambda *_: True
    copies.PinnedResults.empty = lambda _, torch, source: torch.empty_like(source)
    torch.cuda.is_available = lambda: True


BEFORE = {
    "sorts_on_gpu": lambda: setattr(stays_on_gpu.SortsOnGpu, "device", lambda _: "cpu"),
    "own_adapters_merged": lambda: (
        OPTIMIZERS.clear(),
        gc.collect(),
        torch._dynamo.utils.counters.clear(),
    ),
    "heads_shared": lambda: setattr(kernels.HeadsShared, "is_worth", lambda *_: True),
    "one_hot_indexed": lambda: setattr(one_hot.OneHotIndexed, "is_worth", lambda *_: True),
    "own_texts_trimmed": torch._dynamo.utils.counters.clear,
    "function_kept": torch._dynamo.utils.counters.clear,
    "casts_kept": lambda: setattr(precision.CastsKept, "is_worth", precision.CastsKept._is_fp32),
    "anomaly_off": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic_off": lambda: torch.use_deterministic_algorithms(True),
    "cudnn_attention_off": lambda: torch.backends.cuda.enable_cudnn_sdp(True),
    "hold_threads": lambda: threading.Thread(target=count_on, daemon=True).start(),
    "one_thread": lambda: torch.set_num_threads(2),
    "all_threads": lambda: torch.set_num_threads(1),
    "launch_blocking_off": lambda: os.environ.update(CUDA_LAUNCH_BLOCKING="1"),
    "cores_freed": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "caching_on": lambda: os.environ.update(PYTORCH_NO_CUDA_MEMORY_CACHING="1"),
    "memory_history_off": record_memory,
    "tracing_off": trace,
    "cudnn_on": turn_cudnn_off,
    "cudnn_benchmark_off": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    # Importing torch._dynamo turns them off.
    "distribution_checks_off": lambda: (
        torch.distributions.Distribution.set_default_validate_args(True)
    ),
    "fused_sdpa": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "fused_optimizer": make_optimizers,
    "pinned_results": stand_on_gpu,
    "kv_cache": generate_without_cache,
    "rows_on_gpu": lambda: (
        torch._dynamo.utils.counters.clear(),
        setattr(
            stays_on_gpu.RowsOnGpu,
            "is_far",
            lambda _, place: (
                place is INDEX if isinstance(place, torch.Tensor) else str(place) == "cpu"
            ),
        ),
    ),
    "first_alone": lambda: setattr(unread.FirstAlone, "is_worth", lambda *_: True),
    "copies_kept": lambda: setattr(stays_on_gpu.CopiesKept, "is_far", lambda *_: True),
    "items_together": lambda: (
        torch._dynamo.utils.counters.clear(),
        setattr(waits.ItemsTogether, "is_far", lambda *_: True),
    ),
    "computed_kept": lambda: setattr(recomputed.ComputedKept, "is_far", lambda *_: True),
    "graphs_kept": lambda: setattr(recomputed.ComputedKept, "is_far", lambda *_: True),
    "checks_later": lambda: setattr(later.ChecksLater, "is_far", lambda *_: True),
    "items_later": lambda: setattr(later.ItemsLater, "is_far", lambda *_: True),
    "reduced_first": lambda: setattr(waits.ReducedFirst, "is_far", lambda *_: True),
    "features_on_gpu": lambda: setattr(copies.FeaturesOnGpu, "has_gpu", lambda _: True),
    "inputs_kept": lambda: (
        setattr(cures()["inputs_kept"], "is_worth", lambda *_: True),
        do_not_train(),
    ),
    "modules_stay": lambda: setattr(
        copies.ModulesStay, "is_far", lambda _, parameter: parameter is MOVED.weight
    ),
    "texts_kept": lambda: give_texts((2, 6), (2, 7)),
    "texts_trimmed": lambda: give_texts((2, 32), (2, 32)),
    "attention_fused": lambda: setattr(attention.AttentionFused, "is_worth", lambda *_: True),
    "logits_asked": lambda: (
        OPTIMIZERS.clear(),
        setattr(unread.LogitsAsked, "is_worth", lambda *given: given[-1] is HEAD.weight),
    ),
    "cache_grows": lambda: setattr(recomputed.CacheGrows, "is_worth", lambda *_: True),
    "jax_pool_on": lambda: os.environ.update(XLA_PYTHON_CLIENT_ALLOCATOR="platform"),
    "gradients_off": do_not_train,
    "unowned_gradients_off": lambda: (make_optimizers(), unowned_gradients_off()),
}
LIBRARIES = {
    "torch": torch,
    "torch.profiler": torch.profiler,
    flex.__name__: flex,
    "torch.utils.data": torch.utils.data,
    "torch.utils.data.dataloader": torch.utils.data.dataloader,
    "torch.utils.checkpoint": torch.utils.checkpoint,
    "transformers.modeling_utils": transformers,
    whisper.__name__: whisper,
    "torch.utils.tensorboard.writer": tensorboard,
    "tensorboardX.writer": tensorboard,
    "transformers.generation.utils": generation,
    "transformers.training_args": training_arguments,
    "peft": peft,
    "jax": jax,
    "optax": optax,
    "torch_geometric": geometric,
    "numpy": numpy,
    "accelerate": accelerate,
    "cupy": cupy,
    "wandb": wandb,
    "mlflow": mlflow,
    None: None,
}


def outcome(kind):
    functions = {"skip": "report", "compile_function": "chained", "function_kept": "made_mask"}
    cure = kind(f"each_cure.py:{functions[kind.name]}" if kind.argument else "")
    if cure.name in ("numa_affinity", "modules_on_gpu", "averages_on_gpu"):
        try:
            cure.apply(torch)
        except CannotApply:
            return "acts, undone"  # there is no GPU
        return "it was applied without a GPU"
    if cure.name in ("all_threads", "cores_freed") and len(os.sched_getaffinity(0)) == 1:
        return "acts, undone"  # one core has nothing to add
    if cure.name == "hold_threads" and not hasattr(threading, "setprofile_all_threads"):
        return "acts, undone"  # Python before 3.12
    BEFORE.get(cure.name, lambda: None)()
    see = CHECKS[cure.name]
    module = LIBRARIES[cure.library]
    cure.prepare(module)
    for _ in range(3):  # once or twice is not in a loop
        before = see()
    undo = cure.apply(module)
    during = see()
    undo()
    after = see()
    os.sched_setaffinity(0, CORES)
    if before == during:
        return f"it changed nothing: {before}"
    return "acts, undone" if after == before else f"not undone: {before}, {after}"


def switch_in_inference_mode():
    """Autocast is as it was switched after an inference mode that was on meanwhile."""
    autocast, undos, dtypes = cures()["bf16_autocast"](""), [], []
    autocast.prepare(torch)
    for switch in (lambda: undos.append(autocast.apply(torch)), lambda: undos.pop()()):
        with torch.inference_mode():
            switch()
        dtypes.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
    return dtypes


def leave_a_device_meanwhile():
    """What the program enters, and the cure, are each left by who entered it."""
    together = cures()["items_together"]("")
    torch._dynamo.utils.counters.clear()
    with torch.device("meta"), torch.overrides.BaseTorchFunctionMode():
        undo = together.apply(torch)
    before = torch.zeros(1).device.type
    with torch.device("meta"):
        undo()
        during = torch.zeros(1).device.type
    return before, during, torch._C._len_torch_function_stack()


class Stateful(torch.nn.Sequential):
    count = 0

    def forward(self, x):
        self.count += 1
        return super().forward(x) + self.count


def count_calls():
    """A module that holds what it gives for equal tensors."""
    cures()["inputs_kept"].is_worth = lambda *_: True
    kept, module = cures()["inputs_kept"](""), Stateful(torch.nn.ReLU(), torch.nn.Linear(1, 1))
    kept.prepare(torch)
    module[1].weight.data.zero_()
    module[1].bias.data.zero_()
    module.eval()
    with torch.no_grad():
        counts = [module(torch.ones(1)).item() for _ in range(5)]
        undo = kept.apply(torch)
        counts += [module(torch.ones(1)).item() for _ in range(5)]
        undo()
    assert counts == list(range(1, 11))
    return kept.ended


def write_to_what_is_sorted():
    """All is asked for of what was sorted once it is another."""
    unread.FirstAlone.is_worth = lambda *_: True
    alone, scores = cures()["first_alone"](""), SCORES.clone()
    alone.prepare(torch)

    def best(step):
        values, _ = scores.sort(descending=True)
        first = values[:, :3]
        if step > 5:
            scores.zero_()
            return values.sum(), first
        return first

    for step in range(7):
        if step == 3:
            undo = alone.apply(torch)
        best(step)
    undo()
    return alone.ended


def write_to_what_grows():
    recomputed.CacheGrows.is_worth = lambda *_: True
    grows, more = cures()["cache_grows"](""), torch.ones(1)
    undo = grows.apply(torch)
    with torch.no_grad():
        second = torch.cat((torch.cat((torch.ones(4), more)), more))
    undo()
    undo = grows.apply(torch)  # nothing was written to
    with torch.no_grad():
        second = torch.cat((torch.cat((torch.ones(4), more)), more))
        second.zero_()
    grows.look()
    undo()
    return grows.ended


def write_to_a_part():
    """Of what is copied from the GPU: the rest does not see it."""
    waits.ReducedFirst.is_far = lambda _, source: type(source) is torch.Tensor
    reduced = cures()["reduced_first"]("")
    undo = reduced.apply(torch)
    first = torch.ones(4, 4).cpu()[0]
    first /= 2  # nothing else is of that memory
    undo()
    undo = reduced.apply(torch)
    whole = torch.ones(4, 4).cpu()
    whole[0].zero_()
    reduced.look()
    undo()
    return reduced.ended


def write_what_is_kept():
    """In inference mode, where that is seen at the end only."""
    kept = cures()["results_kept"]("")
    kept.prepare(torch)
    with torch.inference_mode():
        y = torch.ones(2)
        for _ in range(5):
            ENCODER(y)
        undo = kept.apply(torch)
        assert ENCODER(y) is ENCODER(y)
        y += 1
        kept.look()
    undo()
    return kept.ended


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.calls, self.is_counting, self.scale = 0, False, [1.0]

    def forward(self, x):
        self.calls += self.is_counting
        return x * self.weight * self.scale[0] + self.calls


def put_another_weight(module, _):
    module.weight = torch.nn.Parameter(module.weight * 2)


UNCOUNTED_WRITES = {
    "another weight of as many writes": put_another_weight,
    "calls that are counted": lambda module, _: setattr(module, "is_counting", True),
    "a write through .data": lambda _, x: x.data.add_(1),
    "a weight written through .data": lambda module, _: module.weight.data.mul_(2),
    "a write from elsewhere": lambda _, x: x.numpy().__iadd__(1),
    "what is held": lambda module, _: module.scale.insert(0, module.scale[0] + 1),
}


def write_unseen(name):
    """Modules give the same with the cure and without, whatever changes between."""
    made = []
    for is_on in (False, True):
        kept, module, x = cures()["results_kept"](""), Scaled().eval(), torch.ones(2)
        kept.prepare(torch)
        with torch.no_grad():
            for _ in range(5):
                module(x)
            undo = kept.apply(torch) if is_on else lambda: None
            for _ in range(6):
                made.append(module(x).clone())
                UNCOUNTED_WRITES[name](module, x)
            undo()
    return torch.equal(torch.stack(made[:6]), torch.stack(made[6:]))


WRITES_TO_LOGITS = {
    "the last, and all are read": lambda logits: (logits[:, -1].div_(2.0), logits.sum()),
    "the last, and it is taken again": lambda logits: (logits[:, -1].div_(2.0), logits[:, -1]),
    "what is seen in another shape": lambda logits: logits.view(-1, 4096).add_(1),
    "what is of that type already": lambda logits: logits.float().mul_(2),
    "elements": lambda logits: logits.detach().__setitem__(0, 1.0),
    "the last, which is read": lambda logits: logits[:, -1].div_(2.0).sum(),
    "all, which are read": lambda logits: logits.div_(2.0).sum(),
    "a copy": lambda logits: logits.clone().zero_(),
}


def write_to_logits():
    """Those of which another tensor would see what was written: the cure ends."""
    refused = []
    for mode in (torch.no_grad, torch.inference_mode):
        for name, write in WRITES_TO_LOGITS.items():
            asked = cures()["logits_asked"]("")
            asked.prepare(torch)
            undo = asked.apply(torch)
            with mode():
                write(HEAD(torch.ones(2, 8, 3)))
            undo()
            if asked.ended:
                refused.append(name)
    return refused


def write_to_what_is_copied(write):
    """What is given in two places is one tensor, and what numpy writes is not counted."""
    kept, source = cures()["copies_kept"](""), torch.ones(1 << 18)
    undo = kept.apply(torch)
    made = [source.to("cpu", copy=True) for _ in range(3)]
    write(source, made[2])
    kept.look()
    undo()
    return kept.ended


class Whole(Summing):
    """Not causal: each token gets the sum of all."""

    def forward(self, input_ids=None, past_key_values=None, **options):
        made = super().forward(input_ids, past_key_values, **options)
        made.logits = made.logits * 0 + made.logits[:, -1:]
        return made


class Masked(Summing):
    """It keeps nothing."""

    def forward(self, input_ids=None):
        return types.SimpleNamespace(logits=input_ids.float()[..., None])


def keep_what_is_no_beginning(kind):
    """A program never sees that."""
    model, kept = kind(types.SimpleNamespace()), cures()["beginning_kept"]("")
    kept._models = [model]
    texts = torch.arange(80).expand(2, -1)
    right = model.forward(texts).logits
    undo = kept.apply(transformers)
    with torch.no_grad():
        made = [model.forward(texts).logits for _ in range(3)]
    undo()
    return all(each.equal(right) for each in made) and not kept.ended


def write_to_what_is_read():
    """By what is not torch."""
    waits.ItemsTogether.is_far = lambda *_: True
    together, tokens = cures()["items_together"](""), torch.zeros(4)
    torch._dynamo.utils.counters["frames"]["total"] = 1  # it compiles: by views alone
    undo = together.apply(torch)
    views = tokens.unbind()
    assert views[0].item() == 0.0
    together.look()
    assert not together.ended
    tokens.numpy().fill(1)
    together.look()
    assert views[0].item() == 1.0
    undo()
    torch._dynamo.utils.counters.clear()
    return together.ended


def ask_for_gradients():
    off, layer = cures()["gradients_off"](""), torch.nn.Linear(2, 2)
    off.prepare(torch)
    undo = off.apply(torch)
    undo()
    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(layer(x).sum(), x)
    try:
        off.apply(torch)
    except CannotApply as reason:
        return str(reason)


def clip_all():
    """Gradients of what no optimizer has count in the norm."""
    off = cures()["unowned_gradients_off"]("")
    off.prepare(torch)
    owned, unowned = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(owned.parameters(), 0.1)
    unowned(owned(torch.ones(64))).sum().backward()
    off.apply(torch)()
    unowned(owned(torch.ones(64))).sum().backward()
    parameters = [*owned.parameters(), *unowned.parameters()]
    torch.nn.utils.clip_grad_norm_((each for each in parameters), 1.0)
    optimizer.zero_grad()
    for each in unowned.parameters():
        each.grad = None
    try:
        off.apply(torch)
    except CannotApply as reason:
        return str(reason)


def write_table_by_numpy():
    """What nobody counts is seen at the end."""
    kept, written = cures()["rows_on_gpu"](""), numpy.zeros((1 << 15, 32))
    table = torch.from_numpy(written)
    undo = kept.apply(torch)
    table[torch.arange(4096)].to("cpu", copy=True)
    written[1::2] = 1
    kept.look()
    undo()
    return kept.ended


def write_to_one_of_two():
    """What was given twice is one tensor: where it is written to, the cure ends."""
    kept, x = cures()["results_kept"](""), torch.ones(2)
    kept.prepare(torch)
    with torch.no_grad():
        for _ in range(5):
            ENCODER(x)
        undo = kept.apply(torch)
        made = [ENCODER(x) for _ in range(2)]
        made[0].zero_()
        kept.look()
    undo()
    return kept.ended


def scored(weights):
    return (weights * 2.0).sum()


def skip_what_is_trained_through():
    """A reference without gradients, and what is trained: neither is the other's last result."""
    weights = torch.ones(3, requires_grad=True)
    undo = cures()["skip"]("each_cure.py:scored").apply(torch)
    for _ in range(2):
        with torch.no_grad():
            reference = scored(weights)
        (scored(weights) - reference).backward()
    undo()
    return reference.requires_grad


assert threading.active_count() == 1
assert not skip_what_is_trained_through()
assert switch_in_inference_mode() == [torch.bfloat16, torch.float32]
BEFORE["logits_asked"]()
BEFORE["rows_on_gpu"]()
BEFORE["copies_kept"]()
assert not write_to_what_is_copied(lambda *_: None)
assert not write_to_what_is_copied(lambda source, _: source.zero_())
for write in (lambda _, made: made.zero_(), lambda source, _: source.numpy().fill(2)):
    assert write_to_what_is_copied(write) == "what is copied again was written to between"
assert all(map(keep_what_is_no_beginning, (Whole, Masked)))
assert compute_where_it_was_put() == "modules that are put on the CPU compute there"
for words in ({}, {"batch_first": False}, {"average_attn_weights": False}, {"is_single": True}):
    assert read_weights(**words) == "attention weights are read"
BEFORE["casts_kept"]()
BEFORE["function_kept"]()
BEFORE["checks_later"]()
BEFORE["own_adapters_merged"]()
assert write_to_adapters() == "weights that are merged are written to"
assert find_no_number() == "what looks for NaN and infinity comes to find some"
assert read_what_is_padded() == give_more_now_and_then() == give_gradients_that_draw() == 0
assert give_gradients_by_what_changes() == 0
assert look_up_by_name_and_in_part() == 4 * [False] + 4 * [True]
assert hold_a_schedule()
assert make_something_else() == (
    "what the function made is written to", "stored changes what it is given"
)  # fmt: skip
assert write_to_weights_unseen() == "weights are written to by what does not count it"
assert give_another_mask() == "a line gives attention another mask after a while"
assert ask_for_gradients() == "the program asks for gradients"
assert "are clipped with the others" in clip_all()
assert write_to_what_is_read().endswith("written to by what is not torch")
assert write_table_by_numpy() == "the table is written to, and not by torch"
assert write_to_logits() == 2 * list(WRITES_TO_LOGITS)[:5]
assert all(map(write_unseen, UNCOUNTED_WRITES))
assert write_to_one_of_two() == "what modules are given again was written to between"
assert count_calls() == "a model gives something else for equal tensors"
assert write_to_what_is_sorted() == "what is sorted may be written to before all of it is read"
assert write_to_what_grows() == "tensors that grow are written to in place"
assert write_to_a_part().endswith("is written to by way of one of its parts")
assert leave_a_device_meanwhile() == ("cpu", "meta", 0)
assert write_what_is_kept() == "what modules are given again was written to between"
print(json.dumps({name: outcome(kind) for name, kind in cures().items()}))
