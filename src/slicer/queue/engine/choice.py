"""Chooses the queue's engine. Only this file knows which there are."""

from __future__ import annotations

from collections.abc import Mapping

from slicer.ledger.ledger import Ledger
from slicer.queue.engine.engine import Engine
from slicer.queue.events import Events
from slicer.queue.model import LOCAL, QueueOptions


def open_engine(options: QueueOptions, environ: Mapping[str, str], ledger: Ledger, events: Events) -> Engine:
    """The engine of the options. Nothing else may be open but the ledger. Raises BackendError, UsageError."""
    if options.engine == LOCAL:
        return _local(options, environ, ledger, events)
    from slicer.queue.engine.slurm.engine import NAME, SlurmEngine

    if options.engine == NAME:
        return SlurmEngine(options, environ, events)
    from slicer.queue.engine.auto import AutoEngine

    here = _local(options, environ, ledger, events)
    return AutoEngine(here, SlurmEngine(options, environ, events), NAME, options.at_a_time)


def _local(options: QueueOptions, environ: Mapping[str, str], ledger: Ledger, events: Events) -> Engine:
    from slicer.queue.engine.local.engine import LocalEngine

    return LocalEngine(options, environ, ledger, events)
