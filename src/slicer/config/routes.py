"""Routes of the configuration: whether a job goes to the GPU or the CPU, by what its input measures."""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    ProbeKind = Literal["duration", "size", "lines", "tokens", "pixels", "count", "command"]
    Mode = Literal["gpu", "cpu"]
    OnBusy = Literal["fail", "wait", "other"]
    OnProbeError = Literal["fail", "gpu", "cpu"]
    OnGpuOom = Literal["fail", "cpu"]


@record
class Probe:
    """How one metric of the input is measured.

    Its unit: ``duration`` seconds, ``size`` bytes, ``pixels`` pixels of one frame; all others count.
    """

    kind: ProbeKind
    command: tuple[str, ...]  # of "command", with "{}" where the input goes; () for the built-in ones
    timeout_s: float
    tokens_per_word: float  # of "tokens"


@record
class Destination:
    """One way that a job of a route can go."""

    name: str  # "gpu", "cpu", or what the file calls it
    mode: Mode
    up_to: tuple[float | None, ...]  # the largest metric of each probe that it takes; None: any
    args: tuple[str, ...]  # put after the command's own arguments
    prepend: tuple[str, ...]  # put before them
    replace: tuple[tuple[str, str | None], ...]  # options and their new values; None takes the option away
    profile: str
    max_jobs: int | None  # how many of them at a time; None: as many as the ledger gives
    slot: str  # the ledger's name for these: "whisper-gpu"; "" without max_jobs
    vram_mib: int | None  # of one GPU; None: what the profile says
    memory_bytes: int | None  # MemoryMax of a job; None: what the profile says
    on_busy: OnBusy
    exit_code: int  # when it is blocked


@record
class Route:
    """One ``[routes.NAME]``, with every default decided. Its destinations are in the order of their bounds.

    A job goes to the first destination whose bounds hold for all metrics. ``sources`` names the origin of
    each key ("threshold", "gpu.args", "to.small.up_to").
    """

    name: str
    description: str
    probes: tuple[Probe, ...]
    input: int | str | None  # an index (from 1, or from -1), an option, a glob, "stdin"; None: find it
    destinations: tuple[Destination, ...]
    on_probe_error: OnProbeError
    on_gpu_oom: OnGpuOom
    idempotent: bool  # whether a job that has written something may run again
    memory_reserve_bytes: int | None  # of the machine, for everything else; None: the default
    sources: dict[str, str]
