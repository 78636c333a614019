"""``slicer queue --detach``: the queue as a service of the user's manager."""

from __future__ import annotations


def detach(log_dir: str) -> int:
    """Start this command line again as a service, and return."""
    raise NotImplementedError(log_dir)
