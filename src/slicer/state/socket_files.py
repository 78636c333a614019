"""Sockets in a state directory, whose owners may have been killed."""

from __future__ import annotations

import socket

from slicer.state.directory import Directory


def sweep(directory: Directory, prefix: str, kind: int) -> None:
    """Remove the sockets with this prefix that nobody listens at. ``kind``: SOCK_STREAM, … Raises OSError."""
    for name in directory.names():
        if not name.startswith(prefix):
            continue
        with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as asking:
            try:
                asking.connect(f"{directory.handle}/{name}")
            except (ConnectionRefusedError, FileNotFoundError):
                directory.remove(name)
            except OSError:
                continue  # its owner lives, and is busy
