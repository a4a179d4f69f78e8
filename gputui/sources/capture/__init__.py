"""What the capture library saw, as events: attribution and statistics of the traced processes."""

from gputui.sources.capture.numbering import Numbering
from gputui.sources.capture.reader import CaptureReader

__all__ = ["CaptureReader", "Numbering"]
