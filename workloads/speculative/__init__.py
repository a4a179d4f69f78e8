"""`speculative`: a small model proposes tokens, the large one checks them in one pass.

A row is a range named after it; in it `prefill` 1, and a `step` for every pass of the target: in
each `draft` 1 (none in the row that proposes nothing), `verify` 1 and `accept` 1.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..inference.shapes import SHAPES
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, STEP_MS, choice, precision, whole

SIZES = [name for name, shape in SHAPES.items() if shape.family == "llama"]

SPECULATIVE = Workload(
    name="speculative",
    summary="speculative decoding: a draft proposes, the target checks",
    description=(
        "Greedy decoding of a model with random weights, plainly and with a draft that writes "
        "1, 2, 4 … tokens ahead, which the model then reads in one pass and keeps as far as it "
        "would have written them itself (Leviathan et al., 2023): the text stays the same, but for "
        "ties that rounding decides. The "
        "draft is the model's own first layers, as in self-speculative decoding. How far random "
        "layers agree is set by `later`; what trained models accept is another matter."
    ),
    parameters=(
        choice("size", "llama-3.2-1b", SIZES, "shape of the target", cpu_default="llama-tiny"),
        whole("draft", 4, 1, 1000, "layers of the target that make the draft", cpu_default=1,
              unit="layers"),
        Parameter("later", "float", 0.05, "how much of what random layers would add the others "
                  "do: with 0 draft and target agree but for rounding", minimum=0, maximum=1),
        whole("ahead", 8, 1, 64, "most tokens that the draft proposes at once", cpu_default=4,
              unit="tokens"),
        whole("batch", 1, 1, 256, "sequences answered together", unit="sequences"),
        whole("prompt", 128, 1, 8192, "length of the prompt", cpu_default=16, unit="tokens"),
        whole("tokens", 128, 2, 8192, "to write for each sequence", cpu_default=16, unit="tokens"),
        precision("of weights, KV cache and matrix products"),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "a tiny model", {"size": "llama-tiny", "draft": 1, "prompt": 16,
                                         "tokens": 16}),
        Preset("agree", "a draft that is always right: the most there is to gain", {"later": 0.0}),
        Preset("disagree", "a draft of layers that know little: what it costs", {"later": 1.0}),
        Preset("batch-16", "16 sequences: each keeps what is its own", {"batch": 16}),
    ),
    phases=("prefill", "step", "draft", "verify", "accept"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("plain_tpot_ms", "a token of the target by itself"),
        Figure("best_tpot_ms", "a token in the fastest row"),
        Figure("best_speedup", "of it over the target by itself"),
        Figure("acceptance_percent", "of the proposals that were looked at, in all rows"),
    ),
    tables=(
        Table(
            "speculative",
            "Decoding with a draft",
            (
                Figure("ahead", "tokens proposed at once", unit="tokens"),
                Figure("passes", "of the target"),
                Figure("acceptance_percent", "of the proposals that were looked at"),
                Figure("tokens_per_pass", "written with each pass of the target"),
                Figure("expected_tokens_per_pass", "by that acceptance: (1 - a^(n + 1)) / (1 - a)"),
                Figure("draft_ms", "a pass of the draft: one proposal"),
                Figure("verify_ms", "a pass of the target"),
                Figure("tpot_ms", "a token"),
                Figure("speedup", "over the row that proposes nothing"),
                Figure("same_percent", "of the tokens as in that row; below 100 where the order of "
                       "sums decides a tie"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    forecast=f"{__name__}.forecast:forecast",
    rank=4,
)  # fmt: skip
