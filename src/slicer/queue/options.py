"""What the command line of ``slicer queue`` says."""

from __future__ import annotations

from slicer.record import record

DEFAULT_LOG_DIR = "slicer_logs"


@record
class Options:
    """``gpus``: indices, UUIDs or beginnings of UUIDs; () all. None in another field: as configured."""

    jobs_file: str
    log_dir: str
    gpus: tuple[str, ...] = ()
    idle_threshold_mib: int | None = None
    margin_mib: int | None = None
    spike_buffer: float | None = None
    tolerance: float = 0.10
    poll_s: float = 5.0
    exclusive: bool = False
    watch: bool = False
    oom_retries: int = 0
    fresh: bool = False
    verbose: bool = False
    profile: str = "gpu"
    at_a_time: int | None = None  # how many jobs may run at once, beyond what the ledger says
    backend: str = "auto"
    trust_file: bool = False  # root runs it, though other users may change it
