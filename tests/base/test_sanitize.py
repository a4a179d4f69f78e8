"""Strings from outside: what is drawn and stored of them obeys nobody, and takes what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.base.sanitize import cell_width, clean_output, cut_to_width, sanitize, sanitize_document

ANY_TEXT = st.text(
    st.one_of(
        st.characters(),
        st.characters(categories=["Cc", "Cf", "Cs", "Mn"]),
        st.sampled_from("\t\n\r\x1b\u202e\u2028"),
    ),
    max_size=60,
)


@given(ANY_TEXT, st.integers(1, 80))
def test_whatever_it_was_it_is_harmless_short_and_can_be_encoded(text: str, limit: int) -> None:
    cleaned = sanitize(text, limit)
    assert len(cleaned) <= limit
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in cleaned)
    assert not set(cleaned) & set("\u200e\u200f\u202a\u202e\u2066\u2069\u2028\u2029\ufeff")
    cleaned.encode()
    assert sanitize(cleaned, limit) == cleaned


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("plain", 5, "plain"),
        ("plain", 4, "pla…"),
        ("plain", 1, "…"),
        ("a\tb", 9, "a    b"),
        ("\t\t", 5, "    …"),
        ("é\x00", 9, "é\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_cut_is_shown_and_tabs_are_spaces(text: str, limit: int, expected: str) -> None:
    assert sanitize(text, limit) == expected


def test_documents_are_cleaned_to_their_leaves() -> None:
    hostile = {"k\x1b": ["v\x07", {"deep\r": "\u202e"}, 1, None, True], "x" * 300: 1.5}
    odd = "\N{REPLACEMENT CHARACTER}"
    assert sanitize_document(hostile) == {
        f"k{odd}": [f"v{odd}", {f"deep{odd}": odd}, 1, None, True],
        "x" * 199 + "…": 1.5,
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain\r\n", "plain"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07shown", "shown"),
        ("10 %\r 50 %\r100 %\n", "100 %"),
        ("half\x1b[", "half"),
        ("bell\x07", "bell\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_printed_line_is_what_a_terminal_would_have_left(line: str, expected: str) -> None:
    assert clean_output(line) == expected


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("plain", 5),
        ("漢字", 4),
        ("ｆｕｌｌ", 8),
        ("é", 1),
        ("e\N{COMBINING ACUTE ACCENT}", 1),
        ("…", 1),
        ("", 0),
    ],
)
def test_columns_of_a_terminal(text: str, columns: int) -> None:
    assert cell_width(text) == columns


@given(st.text(st.sampled_from("a漢\u0301"), max_size=20), st.integers(1, 20))
def test_as_much_as_fits_is_kept_before_the_ellipsis(text: str, width: int) -> None:
    cut = cut_to_width(text, width)
    assert cell_width(cut) <= width
    if cell_width(text) <= width and len(text) <= width:
        assert cut == text
    elif cut != text:
        kept = cut[:-1]
        assert cut == kept + "…"
        assert text.startswith(kept)
        # Of marks, which take no column, not every one is kept.
        assert "\u0301" in text or cell_width(text[: len(kept) + 1]) >= width


def test_what_is_cut_off_is_not_measured() -> None:
    assert cut_to_width("漢" * 10_000_000, 80) == "漢" * 39 + "…"
