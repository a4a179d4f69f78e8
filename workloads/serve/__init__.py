"""`serve`: an engine answers requests as they arrive, by continuous batching.

The files follow the path of a request: `requests` draws when it arrives and how long it is,
`scheduler` decides what each step computes and in which pages of the KV cache, `engine` computes
it, `results` turns the moments of its tokens into figures, and `run` is the loop.

Ranges: `wait` while there is nothing to do; `step` for each turn of the loop, with `schedule`, one
of `prefill`, `decode` and `mixed` by what the step computes, `sample`, and `detokenize`, in which
the tokens come to the host, and `tokenize` for what comes over HTTP (`routes`, with metrics under
vLLM's names). Inside the pass are the ranges of a decoder's parts (see `inference`).
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..inference.shapes import OLD_NAMES, PARTS, SHAPES
from ..parameters import (
    DEVICE,
    DEVICE_NAME,
    EFFECTIVE_PRECISION,
    PEAK_ALLOCATED,
    PEAK_RESERVED,
    SEED,
    STEP_MS,
    choice,
    precision,
    whole,
)

SERVED = tuple(name for name, shape in SHAPES.items() if shape.family == "llama")

ARRIVALS = {
    "poisson": "independent requests at a mean rate",
    "constant": "one every 1 / rate",
    "burst": "all at once",
    "trace": "the moments and lengths of the file `trace`",
    "http": "whoever asks at `port`, as OpenAI's clients do; metrics at /metrics",
}
LENGTHS = {
    "fixed": "the mean",
    "uniform": "from half the mean to one and a half",
    "lognormal": "many short and few long ones (sigma 0.8), as people's are",
}

_LATENCY = tuple(
    Figure(f"{name}_{which}_ms", f"{which} of {what}")
    for name, what in (
        ("ttft", "the times from arrival to first token, the queue included"),
        ("tpot", "(latency - TTFT) / (output tokens - 1), a request"),
        ("itl", "the gaps between two tokens of a request"),
        ("e2e", "the times from arrival to last token"),
    )
    for which in ("mean", "p50", "p90", "p99")
)

SERVE = Workload(
    name="serve",
    summary="continuous batching: requests share steps and a paged KV cache",
    description=(
        "Requests arrive by a clock, whether or not the engine keeps up. Each step computes up to "
        "a budget of tokens: one of every running request, and pieces of waiting prompts. Keys and "
        "values lie in pages; where none is free, the request that came last is put back and "
        "computed again. Latency counts from the arrival, so that a queue shows. Weights are "
        "random, tokens are the likeliest, and every request writes as many as it was drawn to."
    ),
    parameters=(
        choice("size", "qwen2.5-0.5b", SERVED,
               "shape of the model, one of the workload inference with rotary positions",
               cpu_default="llama-tiny",
               aliases={old: name for old, name in OLD_NAMES.items() if name in SERVED}),
        whole("requests", 128, 1, 100_000, "requests in all; with arrivals=http it ends after them",
              cpu_default=24),
        choice("arrivals", "poisson", tuple(ARRIVALS),
               "; ".join(f"{name}: {text}" for name, text in ARRIVALS.items())),
        Parameter("rate", "float", 16.0, "mean arrivals a second", minimum=0.001, maximum=1e6,
                  unit="requests/s", cpu_default=40.0),
        Parameter(
            "trace",
            "text",
            "",
            "for arrivals=trace: a CSV file with a line for each request: seconds since the first, "
            "prompt tokens, output tokens",
        ),
        whole("port", 8000, 0, 65_535,
              "for arrivals=http: where to listen on 127.0.0.1; 0 takes any that is free"),
        whole("prompt", 512, 1, 100_000, "mean length of a prompt", cpu_default=48, unit="tokens"),
        whole("output", 128, 1, 100_000, "mean length of an answer", cpu_default=12, unit="tokens"),
        choice("lengths", "lognormal", tuple(LENGTHS),
               "; ".join(f"{name}: {text}" for name, text in LENGTHS.items())),
        whole("sequences", 64, 1, 4096, "requests computed together at most", cpu_default=8),
        whole("budget", 1024, 1, 65_536, "tokens of a step at most", cpu_default=64, unit="tokens"),
        Parameter("chunked", "bool", True,
                  "cut prompts to what the budget leaves; else they go whole"),
        whole("page", 16, 1, 1024, "positions of a page of the KV cache", unit="positions"),
        whole("pages", 0, 0, 10_000_000,
              "pages of the KV cache; 0: as many as `sequences` of twice the mean length take"),
        whole("tokenizer_us", 0, 0, 10**6,
              "keep a core busy so long for each token that is read or written as text, as a slow "
              "tokenizer does", unit="µs"),
        whole("held_objects", 0, 0, 10**8,
              "keep so many Python objects, as an engine's caches of requests and tokens do, and "
              "collect garbage among them in each 32nd step"),
        whole("ttft_target", 1000, 1, 10**6, "for goodput: time to first token at most", unit="ms"),
        whole("tpot_target", 100, 1, 10**6, "for goodput: time of a further token at most",
              unit="ms"),
        precision("of weights, KV cache and matrix products; tf32 stores fp32"),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "a few seconds on any machine",
               {"size": "llama-tiny", "requests": 8, "rate": 50.0, "prompt": 24, "output": 6,
                "sequences": 4, "budget": 32}),
        Preset("laptop", "half a billion parameters, for a GPU of 4 GiB",
               {"size": "qwen2.5-0.5b", "requests": 64, "rate": 4.0, "prompt": 256, "output": 96,
                "sequences": 16, "budget": 512}),
        Preset("chat", "an 8-billion model: short prompts, longer answers",
               {"size": "llama-3.1-8b", "rate": 12.0, "prompt": 220, "output": 200}),
        Preset("summarize", "long prompts, short answers: prefill decides",
               {"prompt": 3000, "output": 60, "rate": 4.0, "budget": 2048}),
        Preset("overload", "all at once: the queue decides", {"arrivals": "burst"}),
        Preset("http", "a server for any client: gputui --workload serve -p preset=http",
               {"arrivals": "http", "requests": 100_000}),
        Preset("few-pages", "too little KV cache: requests are put back",
               {"arrivals": "burst", "pages": 160, "prompt": 256, "output": 128, "sequences": 32}),
    ),
    phases=(*("load", "wait", "step", "schedule", "prefill", "decode", "mixed"), *PARTS, "sample",
            "tokenize", "detokenize"),
    step_range="step",
    results=(
        DEVICE_NAME,
        EFFECTIVE_PRECISION,
        STEP_MS,
        Figure("parameter_count", "weights, including the padded vocabulary"),
        Figure("weight_bytes", "memory of the weights"),
        Figure("kv_cache_bytes", "memory of all pages"),
        Figure("kv_pages", "pages of the KV cache"),
        Figure("completed", "requests that were answered"),
        Figure("duration_s", "from the first arrival to the last token"),
        Figure("requests_per_s", "completed over the duration", unit="requests/s"),
        Figure("tokens_per_s", "output tokens over the duration", unit="tokens/s"),
        Figure("input_tokens_per_s", "prompt tokens over the duration"),
        *_LATENCY,
        Figure("goodput_per_s", "requests within both targets over the duration",
               unit="requests/s"),
        Figure("goodput_percent", "requests within both targets"),
        Figure("steps", "turns of the loop that computed something"),
        Figure("tokens_per_step", "output tokens a step, mean"),
        Figure("preemptions", "times that a request was put back for want of pages"),
        Figure("peak_kv_percent", "most pages in use"),
        Figure("peak_waiting", "longest queue"),
        PEAK_ALLOCATED,
        PEAK_RESERVED,
    ),
    tables=(
        Table(
            "serve_steps",
            "Steps by kind",
            (
                Figure("kind", "prefill, decode, or mixed: both in one step"),
                Figure("steps", "how many"),
                Figure("tokens", "computed in all of them"),
                Figure("output_tokens", "made in all of them"),
                Figure("mean_ms", "wall time of one"),
                Figure("p99_ms", "99th percentile"),
                Figure("time_percent", "of the time in steps"),
            ),
        ),
        Table(
            "serve_timeline",
            "Queue and KV cache over time",
            (
                Figure("time_s", "since the first arrival; the end of the interval"),
                Figure("running", "requests computed, mean over its steps"),
                Figure("waiting", "requests in the queue, mean"),
                Figure("kv_used_percent", "pages in use, mean"),
                Figure("step_tokens", "tokens a step, mean"),
                Figure("tokens_per_s", "output tokens in the interval", unit="tokens/s"),
            ),
        ),
        Table(
            "serve_requests",
            "Requests",
            (
                Figure("request", "in order of arrival; the first 200"),
                Figure("arrival_s", "since the first"),
                Figure("prompt", "length of the prompt", unit="tokens"),
                Figure("output", "tokens written", unit="tokens"),
                Figure("queue_ms", "until its prompt was begun"),
                Figure("ttft_ms", "until its first token"),
                Figure("tpot_ms", "time per further token"),
                Figure("e2e_ms", "until its last token"),
                Figure("preemptions", "times it was put back"),
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=2,
)  # fmt: skip
