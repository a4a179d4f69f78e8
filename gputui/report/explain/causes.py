"""What each leaf means where it is large: the verdict's word, its sentence, what to try.

`recoverable` is the share of the leaf's time that goes where its cause is cured: all of what is
idle, and of what is busy as much as the better way is faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputui.model.leaves import Leaf


@dataclass(frozen=True, slots=True)
class Cause:
    """One leaf as a finding. `sentence` takes {share} and {time}, the time a step."""

    word: str
    sentence: str
    advice: str
    recoverable: float = 1.0
    source: str = ""
    usual: float = 0.0
    """Share of the time up to which it is no fault."""


SOME_RANKS = Cause(
    "RANKS WAIT",
    "The GPU waits for other ranks {share} of {scope}{time}, not all of which are in sight.",
    "look at all ranks: only together do they show who is late",
)
"""In place of that of Leaf.RANK where a job has further ranks."""

UNSEEN_COLLECTIVES = Cause(
    "COLLECTIVES WAIT",
    "The GPU waits for the CPU in collectives {share} of {scope}{time}; no one rank is late.",
    "NCCL, with a GPU for each rank: Gloo moves all data through the CPU; else send less, or "
    "balance the work of the ranks",
)
"""The same where no collective ran on the GPU: it may take that long, and nobody be waited for."""

CAUSES: dict[Leaf, Cause] = {
    Leaf.LAUNCH: Cause(
        "LAUNCH-BOUND",
        "The GPU waits for the next kernel launch {share} of {scope}{time}.",
        'CUDA graphs, torch.compile(mode="reduce-overhead"), a fused optimizer, larger batches',
    ),
    Leaf.SYNC: Cause(
        "SYNC-BOUND",
        "The CPU synchronizes with the GPU, which then idles {share} of {scope} until it gets "
        "work again{time}.",
        "keep values on the GPU: no .item(), .cpu() or print of a tensor in the loop; "
        "read them every N steps",
    ),
    Leaf.ALLOCATION: Cause(
        "ALLOCATION-BOUND",
        "The GPU idles {share} of {scope} while the CPU is in cudaMalloc and cudaFree{time}.",
        "no torch.cuda.empty_cache() in the loop; leave the allocator room to keep its blocks",
    ),
    Leaf.CUDA: Cause(
        "CUDA CALLS",
        "The GPU idles {share} of {scope} while the CPU is in other CUDA calls{time}.",
        "load modules, capture graphs and register memory before the loop",
    ),
    Leaf.HOST: Cause(
        "CPU-BOUND",
        "The GPU idles {share} of {scope} while the CPU runs the program's own code{time}.",
        "do it less often, on the GPU (random numbers, metrics), or off this thread: DataLoader "
        "workers (num_workers > 0) for input, a thread for saving and logging",
    ),
    Leaf.INPUT: Cause(
        "INPUT-BOUND",
        "The GPU waits for the next batch {share} of {scope}{time}.",
        "more DataLoader workers, kept between epochs (persistent_workers=True), prefetch_factor, "
        "several producers where a queue is read, faster storage, a cheaper transform",
    ),
    Leaf.WAIT: Cause(
        "CPU WAITS",
        "The GPU idles {share} of {scope} while the launching thread sleeps{time}.",
        "find what it waits for: a lock (Python's own, where other threads compute), a queue, a "
        "sleep, another process",
    ),
    Leaf.SCHEDULER: Cause(
        "NO CPU CORE",
        "The launching thread is ready and gets no CPU core {share} of {scope}{time}.",
        "give it a core of its own: taskset, fewer busy workers, a larger CPU quota",
    ),
    Leaf.COMPILE: Cause(
        "COMPILING",
        "The GPU idles {share} of {scope} while the program compiles{time}.",
        "keep shapes fixed or mark them dynamic; TORCH_LOGS=recompiles names the reason",
    ),
    Leaf.RANK: Cause(
        "RANKS WAIT",
        "The GPU waits for other ranks {share} of {scope}{time}; no one rank is late.",
        "the waits are spread: balance the work of each step, synchronize less often",
    ),
    Leaf.SHARED: Cause(
        "SHARED GPU",
        "Another process runs on this GPU: kernels lose {share} of {scope} to it{time}.",
        "give this program a GPU of its own: the list of processes shows the other one",
        1.0,
        "the driver's use by process, and kernels at least 1.3 times as long as their shortest",
    ),
    Leaf.DEPENDENCY: Cause(
        "QUEUED WORK WAITS",
        "Work launched in time waits for something else {share} of {scope}{time}.",
        "look for event and stream waits, for other processes on this GPU, and for layers on "
        "several GPUs that work one after the other",
    ),
    Leaf.COPY_PAGEABLE: Cause(
        "COPY-BOUND",
        "Copies from or to pageable memory that overlap nothing take {share} of {scope}{time}.",
        "pin the host memory (pin_memory=True), copy with non_blocking=True, copy less",
        0.87,
        "7.5 GB/s pageable against 55 pinned on one PCIe 5 link",
    ),
    Leaf.COPY_PINNED: Cause(
        "COPY-BOUND",
        "Copies that overlap no kernel take {share} of {scope}{time}.",
        "copy the next batch on a stream of its own while this one computes",
    ),
    Leaf.MATMUL_SIMT: Cause(
        "NO TENSOR CORES",
        "Matrix products in full precision (FP32 or FP64) take {share} of {scope}{time}.",
        'torch.set_float32_matmul_precision("high"), or bf16 autocast; FP64 comes from NumPy',
        0.86,
        "67 against 495 TFLOP/s, FP32 and TF32 of an H100 (data sheet)",
    ),
    Leaf.MATMUL_UNALIGNED: Cause(
        "MISALIGNED SHAPES",
        "Matrix products with a dimension that is not a multiple of 8 take {share} of "
        "{scope}{time}.",
        "pad the dimension: a multiple of 64 is best (a vocabulary of 50,304 for 50,257)",
        0.6,
        "cuBLAS falls back to Turing kernels that load one element at a time",
    ),
    Leaf.ELEMENTWISE_CHAIN: Cause(
        "MEMORY-BOUND",
        "Elementwise kernels in a row, over the same memory, take {share} of {scope}{time}.",
        "torch.compile makes one kernel of the chain, fused=True one of an optimizer's",
        0.6,
        "a chain of n two-operand kernels moves 3n tensors, the fused one 3; eager Llamas, "
        "trained and prefilled on an H200, spend 24 to 27 % in such chains",
        1 / 3,
    ),
    Leaf.ATTENTION_UNFUSED: Cause(
        "UNFUSED ATTENTION",
        "Unfused attention, with its scores in memory, takes {share} of {scope}{time}.",
        "torch.nn.functional.scaled_dot_product_attention",
        0.8,
        "6 to 8 T² of memory traffic that a fused kernel does not have",
    ),
    Leaf.COMMUNICATION: Cause(
        "COMMUNICATION-BOUND",
        "Collectives that overlap nothing take {share} of {scope}{time}.",
        "overlap them with the backward pass: larger buckets, gradient accumulation",
    ),
}
"""What can be a finding. Leaves that are not here are work."""
