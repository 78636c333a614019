"""A size of memory needs its unit, wherever a user writes it. Only a jobs file's is in MiB."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from slicer import api, api_arguments
from slicer.cli.queue import parameters
from slicer.config import values
from slicer.errors import UsageError
from slicer.queue.file import adding, jobs_file
from slicer.queue.model import Kind
from slicer.state import simulated

CLIENT = runpy.run_path(str(Path(api.__file__).with_name("_client.txt")), run_name="client")
MARGIN = click.Option(["--margin"])


def added(size: str) -> str:
    return adding.lines([("vram", size)], ["true"], {})[0]


READERS: dict[str, Callable[[Any], object]] = {
    "run, hold, profiles": lambda size: values.mib((size, "--vram", UsageError), "vram"),
    "queue add": added,
    "queue --margin": lambda size: parameters.mib(click.Context(click.Command("x")), MARGIN, size),
    "import slicer": lambda size: api_arguments._mib(size, "vram"),
    "slicer_client": lambda size: CLIENT["_size"](size, "vram"),
    "SLICER_SIM": lambda size: simulated._size(size, "SLICER_SIM", ""),
}
NUMBERS = {"queue add": "8", "queue --margin": "8", "SLICER_SIM": "8"}  # the others also get numbers


@pytest.mark.parametrize("place", READERS)
def test_memory_without_a_unit_is_refused(place: str) -> None:  # E1
    READERS[place]("8G")
    with pytest.raises((ValueError, UsageError), match=r"(?i)unit|expected"):
        READERS[place](NUMBERS.get(place, 8))


def test_in_a_jobs_file_it_is_mib() -> None:  # E1
    assert jobs_file.parse("[vram=18000] a")[0].attributes.kind == Kind(vram_mib=18000)
