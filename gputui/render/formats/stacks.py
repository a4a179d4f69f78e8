"""GPU time by phase and cause as stacks, for tools that draw flame graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.render.formats import Format

if TYPE_CHECKING:
    from gputui.state import Run, Session


def _collapsed(_session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.base.sanitize import sanitize
    from gputui.report.icicle import icicle

    if run is None:
        return ""
    # A semicolon would end a frame, and the last blank the stack.
    lines = [
        f"{';'.join(sanitize(name).replace(';', ':') for name in names)} {ns}\n"
        for names, ns in icicle(run).stacks()
    ]
    return "".join(lines)


_COLLAPSED = Format(
    key="collapsed",
    title="GPU time by phase and cause, for flame graphs",
    order=75,
    text=_collapsed,
)


def _speedscope(_session: Session, run: Run | None, _width: int | None) -> str:
    """One document of https://www.speedscope.app/file-format-schema.json: a profile whose samples
    are stacks of phases with a cause innermost, and whose weights are nanoseconds."""
    import json

    from gputui.base.sanitize import sanitize
    from gputui.report.icicle import icicle

    stacks = [] if run is None else list(icicle(run).stacks())
    frames: dict[str, int] = {}
    samples = [[frames.setdefault(sanitize(name), len(frames)) for name in names]
               for names, _ in stacks]  # fmt: skip
    weights = [ns for _, ns in stacks]
    name = "gputui" if run is None else sanitize(run.started.name)
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "gputui",
        "name": name,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": f"{name}: GPU time by phase and cause",
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        ],
    }
    return json.dumps(document, ensure_ascii=False) + "\n"


_SPEEDSCOPE = Format(
    key="speedscope",
    title="GPU time by phase and cause, for speedscope",
    order=76,
    text=_speedscope,
    suffix="speedscope.json",
)


FORMATS = (_COLLAPSED, _SPEEDSCOPE)
