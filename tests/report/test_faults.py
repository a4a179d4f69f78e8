"""Programs with one known fault each, recorded on an H100: the cause comes first, the cured and the
healthy ones are silent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.model.leaves import CAUSES, Leaf
from gputui.report.explain import Analysis, conclusion, findings
from gputui.report.explain.advice import (
    COMPUTE,
    FEW_SIZES,
    IN_A_PROCESS,
    IN_ATTENTION,
    LET_GO,
    PLANS,
    REDUCE_FIRST,
    SAVE,
    better_advice,
)
from gputui.report.explain.evidence import EAGER, outside_jit
from gputui.report.explain.launches import (
    BETWEEN_NODES,
    CLIPS,
    COMPILE_WHOLE,
    FEWER_WAITS,
    GRAPHS_IN_USE,
    IN_A_SCAN,
    LOOP,
    NODE_TRACING,
    ONE_BY_ONE,
    UNBLOCK,
    WITHOUT_OPTIMIZER,
    launch_advice,
)
from gputui.report.explain.verdict import Verdict, verdict
from gputui.report.tables.bounds import phase_causes
from gputui.report.tables.time import leaf_rows
from gputui.state import Run, Session
from gputui.state.remarks import remarks
from tests.conftest import DATA
from tests.sessions_for_tests import analysed, loaded_once

FOLDER = DATA / "faults"
DEMO = DATA.parents[1] / "gputui" / "demo"

FIRST = {
    "launch": "idle.launch",
    "input": "idle.input",
    "workers": "idle.input",
    "pageable": "busy.copy_pageable",
    "overlap": "busy.copy_pinned",
    "tensor_cores": "busy.matmul_simt",
    "odd_shapes": "busy.matmul_unaligned",
    "unfused": "busy.elementwise_chain",
    "attention": "busy.attention_unfused",
    "recompiling": "idle.compile",
    "optimizer": "idle.launch",
    "sync": "idle.sync",
    "allocator": "idle.alloc",
    "starved": "idle.scheduler",
    "logits": "busy.copy_pageable",
    "shared_gpu": "busy.shared",
    "with_eval": "busy.shared",
    "ddp_small": "idle.rank",
    "varied_docs": "idle.host",
    "crops": "cudnn_plans",
    "log_sync": "idle.sync",
    "queue_thread": "idle.input",
    "numpy_aug": "idle.host",
    "checkpoint_each": "idle.host",
    "sleepy_logger": "idle.wait",
    "gil_thread": "idle.wait",
    "offload_layers": "busy.copy_pageable",
    "pageable_images": "busy.copy_pageable",
    "handmade_norms": "busy.elementwise_chain",
    "hf_generate": "idle.host",
    "lightning_train": "idle.input",
    "lstm_loop": "idle.launch",
    "alloc_each": "idle.alloc",
    "sync_each": "idle.sync",
    "save_each_ten": "idle.host",
    "offload_adam": "busy.copy_pageable",
    "two_locked_threads": "idle.wait",
    "gil_in_the_way": "idle.wait",
    "lock_while_asleep": "idle.wait",
    "anomaly_left_on": "idle.sync",
    "anomaly_slow_cpu": "idle.sync",
    "embedding_on_cpu": "idle.host",
    "two-launches": "idle.launch",
    "two-pageable": "busy.copy_pageable",
    "two-products": "busy.matmul_simt",
}
"""Variants of the workload, programs of other styles, and two faults at once: the larger one."""

SILENT = {
    "healthy_training": "HEALTHY",
    # It reads each token before it goes on to the next: 24 % of each step.
    "healthy_decode": "PARTLY IDLE",
    "healthy_copy": "HEALTHY",
    "pathology_vit_pretrain": "HEALTHY",
    "healthy_server": "WAITS FOR WORK",
    "tensor_cores-cure": "HEALTHY",
    "odd_shapes-cure": "HEALTHY",
    "attention-cure": "HEALTHY",
    "pageable-cure": "HEALTHY",
    "overlap-cure": "HEALTHY",
    "sync-cure": "HEALTHY",
    "allocator-cure": "HEALTHY",
    "workers-cure": "HEALTHY",
    "recompiling-cure": "HEALTHY",
    "input-cure": "HEALTHY",
    "optimizer-cure": "HEALTHY",
    "starved-cure": "HEALTHY",
    "shared_gpu-cure": "HEALTHY",
    "unfused-cure": "HEALTHY",
    "healthy_reduce": "HEALTHY",
    "healthy_batch_inference": "HEALTHY",
    "healthy_prefill": "HEALTHY",
    "healthy_shallow_water_jax": "HEALTHY",
    "healthy_photo_embedding_job": "HEALTHY",
}


def recording(path: Path) -> tuple[Session, Run]:
    loaded = loaded_once(str(path))
    assert loaded.run is not None
    return loaded.session, loaded.run


def fault(name: str) -> tuple[Session, Run]:
    return recording(FOLDER / f"{name}.gputui.gz")


def verdict_on(name: str) -> Verdict:
    found = verdict(analysed(fault(name)[1]))
    assert found is not None
    return found


@pytest.mark.parametrize("name", FIRST)
def test_the_cause_comes_first(name: str) -> None:
    assert verdict_on(name).findings[0].cause == FIRST[name]


@pytest.mark.parametrize("name", SILENT)
def test_nothing_is_found_where_nothing_is_wrong(name: str) -> None:
    found = verdict_on(name)
    assert (found.word, found.findings) == (SILENT[name], ())


def test_one_cause_is_found_once() -> None:
    """Saving a model is computing, reading and waiting at one line, in some steps: these are long,
    and grow, the usual ones do not. Where copies take 91 %, half of the kernels' time is little."""
    for name in ("checkpoint_each", "pageable_images", "logits"):
        session, run = fault(name)
        assert [one.cause for one in findings(Analysis(session, run))] == [FIRST[name]]
    [found] = verdict_on("checkpoint_each").findings
    [gain] = found.modelled
    assert gain.low < 1 / (1 - 0.508 - 0.179 - 0.086) < gain.high < 6
    assert found.evidence == (
        "In 100 % of 28 samples the program was at checkpoint_each.py:10 <module>",
    )
    # The gain follows from what the sentence says, and the screen names the line.
    assert found.sentence == (
        "The GPU idles 77 % of the time while the program is at one line: 12 of 47 steps take "
        "281 ms longer than the others (CPU code 51 %, input 18 %, CPU waiting 9 %)."
    )
    assert found.share_percent == pytest.approx(100 * found.recoverable)
    assert found.covers == ("idle.input", "idle.wait")
    said = verdict_on("checkpoint_each").headline
    assert said == f"{found.sentence} Mostly at checkpoint_each.py:10."
    # What is copied back, for the CPU to work on.
    [found] = verdict_on("logits").findings
    assert found.evidence == ("In 97 % of 30 samples the program was at variants.py:485 step",)
    assert "(pageable copies 52 %, CPU code 41 %, CPU waiting 1 %)" in found.sentence
    assert found.share_percent == pytest.approx(100 * found.recoverable)
    assert found.advice == REDUCE_FIRST
    assert verdict_on("save_each_ten").findings[0].advice == SAVE
    assert verdict_on("embedding_on_cpu").findings[0].advice == COMPUTE
    # Plans for each new length and size, most of them made by autograd's thread.
    assert findings(Analysis(*fault("varied_docs")))[0].advice.startswith(PLANS)
    assert findings(Analysis(*fault("crops")))[0].advice.startswith(FEW_SIZES)
    assert verdict_on("offload_layers").findings[0].advice == CAUSES[Leaf.COPY_PAGEABLE].advice


def test_setting_up_again_once_a_rank_is_no_habit() -> None:
    """Four ranks train by one scheme, then by another: four or five pauses each, 47 % of the time,
    in which they were at no one line. The schemes are rows of a benchmark, whose steps differ; of a
    program that declares no steps they are slow ones."""
    run = recording(DATA / "ranks" / "nobody.gputui.gz")[1]
    found = verdict(analysed(run))
    assert found is not None
    assert (found.word, found.findings) == ("HEALTHY", ())
    found = verdict(analysed(replace(run, started=replace(run.started, step_range=None))))
    assert found is not None
    assert (found.word, found.findings) == ("UNEVEN STEPS", ())
    assert found.headline.startswith("90 of 226 steps are slow")


def test_what_another_thread_does_while_the_launching_one_sleeps_is_named() -> None:
    """Ratings computed in Python, and a robot's arm that is moved under the lock of its replay
    buffer: two programs on an H200."""
    ratings = verdict_on("gil_in_the_way").findings[0]
    assert ratings.evidence == ("Meanwhile another thread ran in run (rl_selfplay.py)",)
    assert ratings.advice == IN_A_PROCESS.format(where="run (rl_selfplay.py)")
    arm = verdict_on("lock_while_asleep").findings[0]
    assert arm.evidence == (
        "In 88 % of 56 samples the program was at arm_sac.py:110 update",
        "Meanwhile another thread slept in move (arm_sac.py)",
    )
    assert arm.advice == LET_GO.format(where="move (arm_sac.py)")


def test_copies_on_the_gpu_lead_where_they_are_most_of_its_work() -> None:
    """Each token repeats the cache's heads four times, on an H200 that works 88 % of each step."""
    session, run = fault("repeated_heads")
    found = conclusion(Analysis(session, run))
    assert found is not None
    assert [one.cause for one in found.findings] == ["copies"]
    assert "68 % of each step: 18.1 ms of 26.7 ms" in found.headline


@pytest.mark.parametrize(
    ("name", "kernel", "advice"),
    [
        ("scan", "tensor_kernel_scan_innermost_dim 65 %", "sums over chunks as matrix products"),
        ("distances", "cdist_kernel_cuda_impl 100 %", 'compute_mode="use_mm_for_euclid_dist"'),
    ],
)
def test_kernels_that_use_little_of_the_gpu_that_they_fill(
    name: str, kernel: str, advice: str
) -> None:
    """A cumulative sum along 8,192 values, and distances without a matrix product, on an H200."""
    found = conclusion(Analysis(*fault(name)))
    assert found is not None
    [one] = found.findings
    assert one.cause == "slow_kernels"
    assert found.word == "SLOW KERNELS"
    assert one.evidence[0].startswith(f"The longest: {kernel}")
    assert one.advice.startswith(advice)


def test_what_public_programs_were_called_healthy_for_is_found() -> None:
    """Eight blocks on 132 multiprocessors; a replay memory that torch.cat shifts in each step;
    small products one after another; checkpointing in steps that the CPU takes the time of."""
    first = {
        "cupy_orbits": "few_blocks",
        "sac_memory": "copies",
        "ensemble_forecast": "few_blocks",
        "lora_sft": "recomputation",
        # Each length is compiled in a pause; indices are sorted, and each new tensor is filled.
        "protein_lm_mixed_lengths": "idle.compile",
        "mesh_simulator_gnn": "serial_scatter",
    }
    for name, cause in first.items():
        session, run = recording(DATA / "gains" / f"{name}.gputui.gz")
        answer = conclusion(Analysis(session, run))
        assert answer is not None
        assert answer.findings[0].cause == cause, name


def test_the_line_of_a_loop_over_the_parameters_is_in_the_advice() -> None:
    """An optimizer of the program's own, beside a model that is replayed from CUDA graphs; clipping
    whose kernels say what they are."""
    advice = {
        name: launch_advice(Analysis(*recording(DATA / "gains" / f"{name}.gputui.gz")))
        for name in ("lion_vit", "translate_clip", "optimizer")
    }
    assert advice == {
        "lion_vit": LOOP.format(where="lion_vit.py:34 step"),
        "translate_clip": FEWER_WAITS + CLIPS,
        "optimizer": ONE_BY_ONE,
    }


def test_a_librarys_validation_is_named() -> None:
    session, run = recording(DATA / "gains" / "news_trainer.gputui.gz")
    [found] = [one for one in findings(Analysis(session, run)) if one.cause == "other_work"]
    assert "47 % of the time: 120 batches of it between 50 steps" in found.sentence


def test_who_holds_the_lock_of_python_in_one_call_is_named() -> None:
    """A thread that writes JSON: for its call in C nobody goes on, the sampler of lines neither."""
    outcome = verdict(Analysis(*fault("json_holds_lock")))
    assert outcome is not None
    [found] = outcome.findings
    assert (found.cause, found.advice) == (
        "lock_held",
        "move what save (gil.py) computes to a process",
    )
    assert found.evidence == ("It sleeps at gil.py:16 step",)


def test_replays_of_a_captured_update_are_the_steps_though_four_marked_ones_came_first() -> None:
    outcome = verdict(Analysis(*fault("warmed_up_graph")))
    assert outcome is not None
    assert outcome.tree is not None
    assert (outcome.tree.program_steps, outcome.findings[0].cause) == (3246, "busy.matmul_simt")


def test_kernels_over_strides_are_told_to_have_their_arrays_laid_out_otherwise() -> None:
    """Nine populations as the innermost axis of a lattice; not a chain over contiguous arrays."""
    told = {}
    for name in ("cavity_lbm", "unfused", "gray_scott"):
        outcome = verdict(Analysis(*recording(DATA / "gains" / f"{name}.gputui.gz")))
        assert outcome is not None
        told[name] = outcome.findings[0].advice
        assert outcome.findings[0].cause == "busy.elementwise_chain"
    assert told["cavity_lbm"].startswith("arrays in which")
    assert not any("arrays in which" in told[name] for name in ("unfused", "gray_scott"))


def test_forward_passes_that_are_computed_again_while_memory_is_left() -> None:
    """A LoRA fine-tuning on an H200: 131 ms a step with gradient checkpointing, 100 without."""
    found = conclusion(Analysis(*fault("checkpointing")))
    assert found is not None
    [one] = found.findings
    assert one.cause == "recomputation"
    assert "6.12 GiB of 140 GiB" in found.headline
    assert one.evidence == ("Computed again: lora_tune.py:60 forward",)
    assert one.modelled[0].low < 131 / 100 < one.modelled[0].high
    assert one.modelled[0].middle == pytest.approx(131 / 100, rel=0.03)


def test_what_only_some_steps_have_is_said_so() -> None:
    """Every tenth step of three kernels ends with a write to disk and a sleep."""
    [found] = verdict_on("sleepy_logger").findings
    assert found.advice == SAVE  # by what it is called
    assert re.search(
        r"% of the time while .*: 170 of 1,707 steps take [\d.]+ ms longer than the others\.$",
        found.sentence,
    )
    assert "each step" not in found.sentence


def test_slow_steps_are_those_that_take_half_as_long_again_as_the_median_one() -> None:
    """12 of 47 steps save: the capture, which compares with the steps before, counted none."""
    for name, slow in (("checkpoint_each", 12), ("gil_thread", 13)):
        tree = analysed(fault(name)[1]).tree
        assert tree is not None
        assert tree.slow_steps == slow
        usual = tree.step_ns.median or 0
        assert tree.slow_ns > slow * 1.5 * usual
        others = (tree.step_ns.total - tree.slow_ns) / (tree.steps - slow)
        assert others <= 1.5 * usual


def test_the_phase_says_what_is_waited_for_where_no_line_does() -> None:
    """A server between requests: no lock, and no queue."""
    found = verdict(analysed(recording(DATA / "h200-serve.gputui.gz")[1]))
    assert found is not None
    assert found.findings[0].cause == "idle.wait"
    assert found.findings[0].evidence[0] == "93 % of it is in the phase wait"


def test_memory_that_grows_is_found_beside_the_tree() -> None:
    """16 million floats are kept in every step."""
    session, run = fault("leak")
    [found] = findings(Analysis(session, run))
    assert found.cause == "memory_grows"
    assert re.search(
        r"never falls: [\d.]+ GiB of 79.6 GiB when the run ended, full after", found.sentence
    )
    assert found.sentence.endswith(" s.")
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert answer.findings == (found,)
    assert answer.speed.startswith("Nothing stands out: the GPU works 81 % of each step")
    assert "If nothing idled (launch-bound 9 %" in answer.speed


def test_advice_knows_what_launches() -> None:
    """An optimizer that goes tensor by tensor, and a program that replays CUDA graphs."""
    session, run = fault("optimizer")
    assert launch_advice(analysed(run, session.kernel_names)) == ONE_BY_ONE
    assert launch_advice(analysed(run, {})) is None
    found = conclusion(Analysis(session, run))
    assert found is not None
    assert found.findings[0].advice == ONE_BY_ONE
    session, run = fault("launch")
    assert launch_advice(analysed(run, session.kernel_names)) == WITHOUT_OPTIMIZER
    session, run = recording(DEMO / "graphs.gputui.gz")
    assert launch_advice(analysed(run, session.kernel_names)) == GRAPHS_IN_USE


def test_blocking_launches_are_named() -> None:
    """CUDA_LAUNCH_BLOCKING, left over from debugging, makes any program launch-bound."""
    session, run = fault("launch")
    assert "CUDA_LAUNCH_BLOCKING" not in [remark.about for remark in remarks(run)]
    [process] = run.processes.values()
    before, process.attached = process.attached, replace(process.attached, launch_blocking=True)
    try:
        assert launch_advice(analysed(run, session.kernel_names)) == UNBLOCK
        assert "CUDA_LAUNCH_BLOCKING" in [remark.about for remark in remarks(run)]
    finally:
        process.attached = before  # others have the same


def test_waits_among_launches_are_counted_and_come_first() -> None:
    """A step that reads a value for every few kernels cannot be captured into a CUDA graph."""
    session, run = fault("two-launches")
    waits = sum(c.time.count for c in run.api.values() if "Synchronize" in c.name)
    main = max(run.loops.values(), key=lambda sums: sums.operations)
    others = sum(sums.steps for sums in run.loops.values()) - main.steps
    found = conclusion(Analysis(session, run))
    assert found is not None
    [number] = re.findall(r" operations a step, some (\d+) waits", found.findings[0].evidence[0])
    assert (waits - others) / main.steps <= int(number) <= waits / main.steps
    assert found.findings[0].advice.startswith(FEWER_WAITS)


def test_the_line_that_launches_is_named() -> None:
    """A loop over time steps in Python; a decoder's launches come from all over it."""
    [found, *_] = verdict_on("lstm_loop").findings
    assert found.place == "lstm_loop.py:10"
    assert found.evidence[1].endswith("the program was at lstm_loop.py:10 <module>")
    [found, *_] = verdict_on("launch").findings
    assert not found.place


def test_where_a_graphs_nodes_wait_no_other_stream_is_suspected() -> None:
    """Launch-bound, cured by a graph of kernels of some µs each, whose nodes were traced: a step
    idles too little for a finding of its own."""
    analysis = Analysis(*fault("launch-cure"))
    assert analysis.tree is not None
    said = better_advice(analysis, analysis.tree.leaves, Leaf.DEPENDENCY)
    assert said == BETWEEN_NODES + NODE_TRACING
    assert "idle.dependency" not in {one.cause for one in findings(analysis)}
    # JAX's graphs are its compiled functions.
    analysis = Analysis(*fault("healthy_shallow_water_jax"))
    assert analysis.tree is not None
    said = better_advice(analysis, analysis.tree.leaves, Leaf.DEPENDENCY)
    assert said == IN_A_SCAN + NODE_TRACING


def test_work_that_grows_step_by_step_leads_over_a_smaller_leaf() -> None:
    """The whole text again for each token: 512 to 1,088 tokens. Steps are too uneven to show it,
    the GPU's work in them is not."""
    session, run = fault("no_cache")
    found = conclusion(Analysis(session, run))
    assert found is not None
    assert found.findings[0].cause == "steps_grow"
    assert "4.02 ms to 8.59 ms" in found.headline
    assert "KV cache" in found.findings[0].advice
    # Launching and loading took longer for a while; the work was the same. With a cache only
    # attention grows.
    for name in ("lstm_loop", "lightning_train", "no_cache-cure"):
        session, run = fault(name)
        assert "steps_grow" not in {one.cause for one in findings(Analysis(session, run))}


def test_a_text_gone_through_again_leads_over_what_cudnn_plans_for_its_lengths() -> None:
    """The whole text again for each token, without Hugging Face: 512 to 768 tokens of 32 melodies.
    Both go with a KV cache."""
    session, run = fault("prefix_each_token")
    found = conclusion(Analysis(session, run))
    assert found is not None
    first, second = found.findings[:2]
    assert (first.cause, second.cause) == ("steps_grow", "idle.host")
    assert "cuDNN plans attention anew: 54 % of each step" in first.sentence
    assert first.modelled[0].low > second.modelled[0].high > 2
    assert PLANS in second.advice
    # With a cache cuDNN plans, too, but no step multiplies more than the one before.
    session, run = fault("hf_generate")
    assert "steps_grow" not in {one.cause for one in findings(Analysis(session, run))}


def test_operators_that_xla_compiled_one_by_one_belong_into_one_function() -> None:
    session, run = fault("jax_operators")
    found = conclusion(Analysis(session, run))
    assert found is not None
    [first] = found.findings
    assert (first.cause, first.advice) == ("idle.launch", COMPILE_WHOLE)
    assert any("jax_ode.py:6 f" in one for one in first.evidence)
    for node in run.ranges.values():  # how often each ran was not counted then
        if "hlo_module=jit_tanh," in node.definition.name:
            node.cpu.count = EAGER * Analysis(session, run).all_steps
    assert "JAX such as tanh" in (outside_jit(Analysis(session, run)) or "")


def test_growing_steps_lead_over_the_memory_that_they_fill() -> None:
    """The same on an H200: PyTorch keeps blocks for each new length, 105 of 140 GiB in the end."""
    session, run = fault("no_cache_and_memory")
    assert {"steps_grow", "memory_grows"} < {one.cause for one in findings(Analysis(session, run))}
    found = conclusion(Analysis(session, run))
    assert found is not None
    assert [one.cause for one in found.findings if one.leads] == ["steps_grow"]
    assert found.word == "STEPS GROW"


def test_a_wait_in_each_of_few_operations_is_not_the_one_that_a_step_needs() -> None:
    """The index of each token is read: of a few products, not of a step of the program."""
    [found] = verdict_on("logits-cure").findings
    assert found.cause == "idle.sync"


def test_what_a_library_does_at_the_one_line_of_the_program_is_named() -> None:
    session, run = fault("hf_generate")
    found = conclusion(Analysis(session, run))
    assert found is not None
    assert found.findings[0].evidence == (
        "In 100 % of 51 samples the program was at hf_generate.py:7 <module>, mostly in "
        "sdpa_attention_forward (transformers/integrations/sdpa_attention.py:79)",
    )
    assert found.findings[0].advice == IN_ATTENTION
    assert found.headline.endswith("Mostly at hf_generate.py:7, in sdpa_attention_forward.")


WITHOUT_LEAVES = {"h200-annotated.gputui.gz", "h200-inference.gputui", "h200-medium.gputui",
                  "schema-3.gputui"}  # fmt: skip
"""Recordings from before there were any."""

EXPORTS = [DATA / "h100-training.json.gz", DATA / "h200-ranges.sqlite.gz"]
"""Of torch.profiler and of nsys."""


@pytest.mark.parametrize(
    "path",
    sorted([*FOLDER.iterdir(), *DATA.glob("*.gputui*"), *EXPORTS]),
    ids=lambda path: path.name,
)
def test_shares_sum_to_a_hundred(path: Path) -> None:
    session, run = recording(path)
    rows = leaf_rows(run)
    if path.name in WITHOUT_LEAVES:
        assert rows == []
        return
    assert sum(row.share_percent for row in rows) == pytest.approx(100.0, abs=0.1)
    for tree in analysed(run).device_trees.values():
        assert sum(tree.leaves.values()) == tree.wall_ns
    for phase in phase_causes(session, run):
        # Older recordings do not say why a GPU idled for a phase, and nothing of libraries' ranges.
        whole_ns = phase.wall_ns if run.timing.range_leaves else phase.busy_ns
        if run.timing.range_leaves or phase.leaves:
            assert sum(phase.leaves.values()) == pytest.approx(whole_ns, rel=1e-3)
