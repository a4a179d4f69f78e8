"""A recording as a source that can be paused, stepped and seeked."""

from __future__ import annotations

from gputui.playback.moments import Moment
from gputui.playback.player import Playback
from gputui.playback.requests import MAXIMUM_SPEED, MINIMUM_SPEED

__all__ = ["MAXIMUM_SPEED", "MINIMUM_SPEED", "Moment", "Playback"]
