"""The folder that stands first in a child's PYTHONPATH while it is annotated; see sitecustomize."""
