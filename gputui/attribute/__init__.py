"""Attribution and statistics of traced processes: what the capture library saw, as events.

`reader.CaptureReader` is the way in.
"""
