"""Attribution and statistics of traced processes: what the capture library saw, as events."""

from gputui.attribute.numbering import Numbering
from gputui.attribute.reader import CaptureReader

__all__ = ["CaptureReader", "Numbering"]
