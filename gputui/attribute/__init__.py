"""What the capture library saw, as events: attribution and statistics of the traced processes."""

from gputui.attribute.numbering import Numbering
from gputui.attribute.reader import CaptureReader

__all__ = ["CaptureReader", "Numbering"]
