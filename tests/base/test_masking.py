"""Secrets on command lines."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gputui.base.sanitize import configure_masking, masked_line, masked_words


@pytest.fixture
def kept() -> Iterator[None]:
    configure_masking(keep=True)
    yield
    configure_masking(keep=False)


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("train.py --token abc --steps 3", "train.py --token *** --steps 3"),
        ("train.py --token=abc", "train.py --token=***"),
        ("serve --api-key abc", "serve --api-key ***"),
        ("serve --api_key=a=b", "serve --api_key=***"),
        ("x --hf-token abc", "x --hf-token ***"),
        ("x --password abc --secret abc", "x --password *** --secret ***"),
        ("env HF_TOKEN=abc OPENAI_API_KEY=abc x", "env HF_TOKEN=*** OPENAI_API_KEY=*** x"),
        ("env AWS_SECRET_ACCESS_KEY=abc PGPASSWORD=abc x",
         "env AWS_SECRET_ACCESS_KEY=*** PGPASSWORD=*** x"),
        ("x ++model.api_key=abc", "x ++model.api_key=***"),
        ("x https://ann:abc@box/a?b=1", "x https://***@box/a?b=1"),
        ("x --url=postgres://ann:a@b@box/a", "x --url=postgres://***@box/a"),
        ("x https://box/a?b=1&token=abc", "x https://box/a?b=1&token=***"),
        ("x -H Authorization: Bearer abc", "x -H Authorization: Bearer ***"),
        ("x hf_abcdefghijklmnopqrst", "x ***"),
        ("x --password 'a b' c", "x --password *** *** c"),
        ("x --token --steps 3", "x --token --steps 3"),
        # Words joined by spaces do not tell how many belong to a value: the rest may be anything.
        ("x --password a b train.py", "x --password *** b train.py"),
    ],
)  # fmt: skip
def test_secrets_are_hidden(line: str, masked: str) -> None:
    assert masked_line(line) == masked
    assert masked_line(masked) == masked


@pytest.mark.parametrize(
    "line",
    [
        "python -u train.py --lr 3e-4 --max-tokens 100 --num_tokens=5",
        "x --eos-token </s> --pad_token=<pad> --tokenizer meta/llama --stop-token x",
        "x --key value --keys=3 --password-file /etc/x --bypass 3 a@b.c",
        "x CUDA_VISIBLE_DEVICES=0,1 model.name=x https://box/a?b=1&c=2 git@box:a/b",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert masked_line(line) == line


def test_a_shells_line_is_looked_into_and_words_stay_words() -> None:
    words = ("sh", "-c", "HF_TOKEN=abc exec x --password 'a b'", "--password", "two words")
    masked = ("sh", "-c", "HF_TOKEN=*** exec x --password *** ***", "--password", "***")
    assert masked_words(words) == masked


def test_secrets_are_kept_where_that_is_asked_for(kept: None) -> None:  # noqa: ARG001
    assert masked_line("x --token abc") == "x --token abc"


def test_no_line_takes_long() -> None:
    for line in ("_" * 100_000, "a_token" * 20_000, "://" * 50_000, "?a=" * 50_000, "-a-" * 50_000):
        began = time.process_time()
        masked_words((line, f"--{line}", f"{line}=x"))
        assert time.process_time() - began < 2
