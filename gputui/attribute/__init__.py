"""Attribution and statistics of traced processes: what the capture library saw, as events.

`reader.CaptureReader` is the way in; `numbering.Numbering` is shared by the readers of a session.
Nothing is imported here, so that what only needs numbers does not load NumPy.
"""
