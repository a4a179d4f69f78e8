"""The formats there are, and what files of them are called."""

from __future__ import annotations

FORMATS = ("json", "csv", "md", "html", "openmetrics", "chrome", "nsys", "parquet", "snapshot")
"""Of a recording. The first four can be had of a run that goes on, too."""

SUFFIXES = {
    "openmetrics": "prom",
    "chrome": "trace.json",
    "nsys": "sqlite",
    "snapshot": "pickle",
}
"""What a file of a format ends in, where that is not the format's own name."""
