"""``slicer hold``: a lease around a command or a shell, without a scope. Imports no click."""

from __future__ import annotations

import os

from slicer.cli import run, say
from slicer.config import profiles
from slicer.errors import UsageError
from slicer.job.plan import Invocation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.model import Lease

_SHELL = "/bin/sh"


class ShellMessages(say.Messages):
    """Messages for the user of a shell, who cannot see otherwise what it holds."""

    def acquired(self, lease: Lease, waited_s: float) -> None:
        super().acquired(lease, waited_s)
        from slicer.job.words import describe_resources

        what = describe_resources(len(lease.gpus), lease.slots)
        self.notice(f"this shell holds {what}; exit gives it back")


def perform(options: dict[str, Any], command: tuple[str, ...]) -> int:
    """Do what a parsed command line asks for; returns slicer's exit code."""
    return run.reported("hold", options, lambda: _hold(options, command))


def _hold(options: dict[str, Any], command: tuple[str, ...]) -> int:
    if options["protocol"]:
        from slicer.cli import hold_protocol

        return hold_protocol.perform(options, command)
    shell = os.environ.get("SHELL") or _SHELL
    invocation = Invocation(**run.fields(options, command or (shell,)), hold=True)
    profile = profiles.load(os.environ, profiles.host()).profile(invocation.profile, invocation.overrides)
    if not profile.gpus and not profile.slots:
        raise UsageError("nothing to hold", hint="add --gpus, --vram, --cpu-slots or --slot")
    kind = say.Messages if command else ShellMessages
    return run.run_job(invocation, kind(options["verbosity"]))
