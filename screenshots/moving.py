"""Frames of a screen as one SVG that moves.

A line that stays from frame to frame is drawn once. Blocks and rules are drawn as areas, so that no
font matters to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from rich.cells import cell_len
from rich.style import Style
from textual.strip import Strip

_WIDE, _HIGH, _EDGE = 8, 17, 8
"""Of a cell, and around all of them, in pixels."""

_LOWER = {block: size for size, block in enumerate("▁▂▃▄▅▆▇█", 1)}
_LEFT = {block: size for size, block in enumerate("▏▎▍▌▋▊▉", 1)}
_SHADES = {"░": 0.4, "▒": 0.6, "▓": 0.8}
_RULE = "─"
_AREAS = {*_LOWER, *_LEFT, *_SHADES, _RULE}

_STYLE = (
    "text{font:13.3px ui-monospace,Menlo,'DejaVu Sans Mono',Consolas,monospace}.b{font-weight:700}"
)


def moving_svg(frames: Sequence[Sequence[Strip]], lasts_s: Sequence[float], still: int) -> str:
    """The SVG. `still` is the frame for those who want nothing to move."""
    behind = background_of(frames[0])
    rows = [[line_svg(strip, behind) for strip in frame] for frame in frames]
    names = {name for row in rows for line in row for name in re.findall('"(c[0-9a-f]{6})', line)}
    lines, columns = len(rows[0]), frames[0][0].cell_length
    groups: list[str] = []
    spans: set[tuple[int, int]] = set()
    for y in range(lines):
        at = 0
        for content, same in groupby(rows, key=lambda frame, y=y: frame[y]):  # type: ignore[misc]
            end = at + len(list(same))
            whole = (at, end) == (0, len(rows))
            spans |= set() if whole else {(at, end)}
            name = "" if whole else f' class="f{at}_{end}{" s" * (at <= still < end)}"'
            if content:
                place = f'transform="translate({_EDGE} {_EDGE + y * _HIGH})"'
                groups.append(f"<g{name} {place}>{content}</g>")
            at = end
    width, height = columns * _WIDE + 2 * _EDGE, lines * _HIGH + 2 * _EDGE
    looks = "".join(f".{name}{{fill:#{name[1:]}}}" for name in sorted(names))
    motion = "".join(_motion(sorted(spans), lasts_s))
    # Viewers that move nothing (README in a PDF, a file's preview) drew all frames, one on another.
    calm = (
        "g[class]{visibility:hidden}g.s{visibility:visible}"
        "@media(prefers-reduced-motion:reduce){g[class]{animation:none}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
        f"<style>{_STYLE}{looks}{motion}{calm}</style>"
        f'<rect width="{width}" height="{height}" rx="6" fill="{behind}"/>'
        + "\n".join(groups)
        + "</svg>\n"
    )


def background_of(frame: Sequence[Strip]) -> str:
    """The colour behind most of a frame."""
    seen: dict[str, int] = {}
    for strip in frame:
        for text, style, _ in strip:
            color = _colors(style)[1]
            seen[color] = seen.get(color, 0) + cell_len(text)
    return max(seen, key=lambda color: seen[color])


def _motion(spans: Sequence[tuple[int, int]], lasts_s: Sequence[float]) -> Iterator[str]:
    whole_s = sum(lasts_s)
    for first, end in spans:
        begin, stop = (100 * sum(lasts_s[:at]) / whole_s for at in (first, end))
        steps = "" if not first else "0%{visibility:hidden}"
        steps += f"{begin:.2f}%{{visibility:visible}}"
        steps += f"{stop:.2f}%{{visibility:hidden}}" if end < len(lasts_s) else ""
        yield f"@keyframes k{first}_{end}{{{steps}}}"
        yield f".f{first}_{end}{{animation:k{first}_{end} {whole_s:g}s step-end infinite}}"


def line_svg(strip: Strip, behind: str) -> str:
    """One line at the height 0, on this background."""
    parts: list[str] = []
    x = 0
    for text, style, _ in strip:
        color, background, bold = _colors(style)
        if background != behind:
            size = cell_len(text) * _WIDE
            parts.append(f'<path class="{_name(background)}" d="M{x} 0h{size}v{_HIGH}h-{size}"/>')
        look = _name(color)
        for is_area, run in groupby(text, key=_AREAS.__contains__):
            part = "".join(run)
            if is_area:
                parts += _areas(part, x, look)
            else:
                parts += _words(part, x, f"{look}{' b' * bold}")
            x += cell_len(part) * _WIDE
    return "".join(parts)


def _words(text: str, x: int, look: str) -> Iterator[str]:
    """Text, divided where more than one blank would be drawn as one."""
    for found in re.finditer(r"\S+( \S+)*", text):
        at = x + cell_len(text[: found.start()]) * _WIDE
        size = cell_len(found[0]) * _WIDE
        yield f'<text class="{look}" x="{at}" y="13" textLength="{size}">{escape(found[0])}</text>'


def _areas(text: str, x: int, look: str) -> Iterator[str]:
    """Blocks, shades and rules; neighbours that are alike are one."""
    for block, run in groupby(text):
        count = len(list(run))
        size = count * _WIDE
        if block in _SHADES:
            fill = f' fill-opacity="{_SHADES[block]:g}"'
            yield f'<path class="{look}"{fill} d="M{x} 0h{size}v{_HIGH}h-{size}"/>'
        elif block == _RULE:
            yield f'<path class="{look}" d="M{x} 8h{size}v1h-{size}"/>'
        elif block in _LOWER:
            high = round(_HIGH * _LOWER[block] / 8, 1)
            path = f"M{x} {_HIGH}h{size}v-{high:g}h-{size}"
            yield f'<path class="{look}" d="{path}"/>'
        else:
            for at in range(count):
                yield (
                    f'<path class="{look}" d="M{x + at * _WIDE} 0h{_LEFT[block]}v{_HIGH}'
                    f'h-{_LEFT[block]}"/>'
                )
        x += size


def _colors(style: Style | None) -> tuple[str, str, bool]:
    """Of the text, behind it, and whether it is bold."""
    if style is None or style.color is None:
        back = style.bgcolor.get_truecolor().hex if style and style.bgcolor else "#000000"
        return "#ffffff", back, False
    color = style.color.get_truecolor().hex
    back = style.bgcolor.get_truecolor().hex if style.bgcolor else "#000000"
    return (back, color, bool(style.bold)) if style.reverse else (color, back, bool(style.bold))


def _name(color: str) -> str:
    return f"c{color[1:]}"
