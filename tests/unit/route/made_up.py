"""Made-up routes for tests, from the same lines that a user would write."""

from __future__ import annotations

import textwrap

from slicer.config import routes
from slicer.config.files import Layer
from slicer.config.profiles import Config, load
from slicer.config.routes import Route
from slicer.config.toml import parse
from slicer.model import Host
from slicer.record import replace

BOTH = {"gpu": "", "cpu": ""}
GIB = 2**30
HOST = Host(tuple(range(12)), 64 * GIB)


def config(text: str) -> Config:
    """A configuration with this file."""
    bare = load({"HOME": "/nonexistent"}, HOST, system_dir="/nonexistent")
    layer = Layer("slicer.toml", *parse(textwrap.dedent(text).encode(), "slicer.toml"))
    return replace(bare, layers=(*bare.layers, layer))


def route(text: str = "", **tables: str) -> Route:
    """The route ``r`` with these lines in it and in its tables ("gpu", "cpu"; both, empty, without any)."""
    below = "".join(f"[routes.r.{name}]\n{lines}\n" for name, lines in (tables or BOTH).items())
    return routes.find(config(f"[routes.r]\n{textwrap.dedent(text)}\n{below}"), "r")
