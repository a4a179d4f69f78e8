"""For screen readers: words only, drawn at keys and for news, the cursor where something is
chosen."""

from __future__ import annotations

import re

from gputui.model.events import RunStarted
from gputui.tui.source import Options
from gputui.tui.widgets.canvas import Row
from gputui.tui.widgets.line_view import chosen_place, readable
from tests.tui import scripted
from tests.tui.conftest import Show

FOR_EYES = re.compile("[\u2500-\u25ff\u2800-\u28ff∙]")


def test_charts_and_textures_are_left_out_and_marks_are_words() -> None:
    rows: list[Row] = [
        (("─ ", "rule"), ("Step time", "title"), (" ───── ", "rule"), ("1 slow ", "dim")),
        (("  50 % ┤", "dim"), ("▁▂█", "accent")),
        (("      0└────-20s───now", "dim"),),
        ((" step time  ", "label"), ("          ", "accent"), (" to 50.0 ms", "value")),
        (("            ", "label"), ("  ▲  ▁▂  ", "accent"), (" ▲ 62.1 ms", "value")),
        (("  ", "text"), ("1 ─── means of 6 each, │ the longest ─── 516", "dim")),
        (("  ", "text"), ("0      1.95 ms      3.90 ms", "dim")),
        ((" Clock ", "label"), (" 98 MHz ", "value"), ("▁▂", "head"), (" to 2 GHz   ", "dim")),
        (("  4.48 ms ", "dim"), ("██▍", "accent"), (" 153", "text")),
        (("0 1 2 loss 0.25", "text"),),
        ((" Power", "label"), ("     148 W ", "value"), ("▁▂▃  ", "power"), (" to 200 W", "dim")),
        (("█████░░░", "cause-launch"),),
        ((" ▾ idle", "title"), ("     81 %", "value")),
        ((" ", "text"), (" launch-bound 79 %  ", "cursor")),
        ((" └─ python train.py", "text"),),
    ]
    said = readable(rows)
    assert ["".join(text for text, _ in row).strip() for row in said] == [
        "Step time  1 slow",
        "Clock  98 MHz",
        "4.48 ms  153",
        "0 1 2 loss 0.25",
        "Power  148 W",
        "open idle  81 %",
        "launch-bound 79 %",
        "python train.py",
    ]
    assert chosen_place(said) == (1, 6)
    assert chosen_place(said[:2]) is None


async def test_every_view_is_words_drawn_at_keys_and_for_news(show: Show) -> None:
    batches = scripted.gpu_session(1, quiet=5)
    at = next(n for n, batch in enumerate(batches) if any(isinstance(e, RunStarted) for e in batch))
    async with show(batches[:at], (120, 40), options=Options(reader=True)) as shown:
        quiet = shown.text
        await shown.give(batches[at - 2 : at])
        assert shown.text == quiet  # a reading is no news

        await shown.give(batches[at:-1])
        assert shown.lines[-1].strip()
        await shown.press("1")
        for key in ("2", "3", "4", "5", "6", "6", "7", "h", "escape", "colon", "escape", "1"):
            await shown.press(key)
            assert shown.text.strip(), key
            assert not FOR_EYES.search(shown.text), key

        view = shown.app.main.view
        x, y = shown.app.cursor_position
        line = view.drawn[y - view.content_region.y]
        assert shown.app.model.run is not None
        assert line[x - view.content_region.x :].strip().split()[0].isupper()  # the verdict's word

        await shown.give(batches[-1:])
        assert "done" in shown.lines[-1]
