"""``import slicer``: its names and their signatures, and what a lease of a program looks like."""

from __future__ import annotations

import inspect
import os
import re
import signal

import slicer
from tests.patience import until
from tests.unit.surface.box import SIMULATED, Box
from tests.unit.surface.shape import Shape
from tests.unit.surface.words import journal, settled

# A program that takes leases, and says what it finds. Objects are shown by their public attributes.
_PROGRAM = """
import asyncio
import slicer

def show(title, thing):
    names = [name for name in dir(thing) if not name.startswith("_") and name != "file"]  # not for others
    for name in names:
        value = getattr(thing, name)
        print(f"{title}.{name}: {'method' if callable(value) else type(value).__name__}")

with slicer.acquire("first", gpus=1, vram="8G", cpu_slots=1, expected_seconds=60) as lease:
    show("lease", lease)
    print("env:", *sorted(lease.env))
    with slicer.acquire(gpus=1, vram="1G") as inner:
        print("inner:", inner.is_own, inner.waited_s, inner.gpus == lease.gpus)

async def other():
    async with slicer.acquire_async("second", gpus=2) as lease:
        show("async lease", lease)

asyncio.run(other())
try:
    slicer.acquire(gpus=3)
except slicer.SlicerError as error:
    print(error.kind, error.exit_code, error)
try:
    slicer.acquire(vram="much")
except Exception as error:
    print(type(error), error)
"""
_BUSY = """
import slicer
try:
    slicer.acquire(gpus=1, wait=False)
except slicer.ResourceBusy as busy:
    print(type(busy).__name__, busy)
    for name, value in sorted((n, getattr(busy.holder, n)) for n in dir(busy.holder) if n[0] != "_"):
        print(f"holder.{name}: {type(value).__name__}")
    print("expected_remaining:", type(busy.expected_remaining()).__name__)
"""
_HOLD = ("hold", "-q", "--name", "holder", "--gpus", "2", "--expect", "1h", "--", "sleep", "99")


def api(box: Box) -> dict[str, str | Shape]:
    """The names for programs, and what they do."""
    found: dict[str, str | Shape] = {"slicer.__all__": "\n".join(sorted(slicer.__all__))}
    for name in sorted(slicer.__all__):
        found[f"slicer.{name}"] = described(getattr(slicer, name))
    done = box.run(script=_PROGRAM, env=SIMULATED)
    found["a program"] = settled(done.out + done.err)
    found |= journal(box.events())
    holder = box.start(*_HOLD, env=SIMULATED)
    until(lambda: box.files("leases"), "the GPUs are held")
    done = box.run(script=_BUSY, env=SIMULATED)
    found["a program that finds it busy"] = settled(done.out + done.err)
    os.kill(holder.pid, signal.SIGTERM)
    box.wait(holder)
    return found


def described(thing: object) -> str:
    """A class by its bases, fields and public methods, a function by its signature."""
    if not inspect.isclass(thing):
        return f"{type(thing).__name__}{_signature(thing)}"
    lines = [f"class({', '.join(base.__name__ for base in thing.__mro__[1:])})"]
    lines += [f"{name}: {kind}" for name, kind in inspect.get_annotations(thing).items()]
    for name, value in sorted(vars(thing).items()):
        is_for_others = not name.startswith("_") or name in _OPERATORS
        if inspect.isfunction(value) and is_for_others and (thing, name) not in _NOT_FOR_OTHERS:
            lines.append(f"{name}{_signature(value)}")
        elif isinstance(value, property):
            lines.append(f"{name}: property")
        elif isinstance(value, str | int) and not name.startswith("_"):
            lines.append(f"{name} = {value!r}")
    return "\n".join(lines)


_OPERATORS = ("__init__", "__enter__", "__exit__", "__aenter__", "__aexit__")
_NOT_FOR_OTHERS = ((slicer.Lease, "__init__"), (slicer.ResourceBusy, "__init__"))  # only slicer makes them


def _signature(thing: object) -> str:
    """As written, without the modules in which the names of types are."""
    assert callable(thing)
    return re.sub(r"\b[a-z_]+\.(?=[A-Z])", "", str(inspect.signature(thing)))
