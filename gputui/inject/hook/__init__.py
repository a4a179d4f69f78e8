"""The folder put first in an annotated child's PYTHONPATH; see sitecustomize."""
