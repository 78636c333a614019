"""Whether and how a job can share its GPUs, decided before it asks for its lease.

A cap that cannot be applied is an error: a job must not run without a limit that was requested. A lock that
cannot be applied is left out, with a message.
"""

from __future__ import annotations

import os

from slicer.errors import ConfigError, SlicerError, UsageError
from slicer.share import environment, program
from slicer.share.environment import FOLDER, ShareOrder, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicer.model import Profile


def order_of(
    profile: Profile, environ: Mapping[str, str], program_path: str, directory: str,
    outer_gpus: tuple[str, ...], why_not_driver: Callable[[], str],
) -> ShareOrder:  # fmt: skip
    """The order for a profile that wants to share (:func:`slicer.share.environment.wanted`).

    ``environ`` includes the profile's own variables. ``directory`` is the path of the state directory.
    ``why_not_driver``: why the driver alone cannot enforce a cap; "" if it can. If the cap cannot be applied,
    raises UsageError or ConfigError, depending on where it was requested.
    """
    wants = wanted(profile)
    library = program.library_path()
    folder = f"{os.path.abspath(directory)}/{FOLDER}"
    problem = (
        program.why_not_library(library)
        or environment.why_unnameable(library)
        or program.why_not_program(program_path, library)
    )
    if problem and wants != "lock" and why_not_driver():
        raise refusal(profile, f"no cap can be applied: {problem}", "ask for no cap: --share lock or off")
    is_said = profile.sources.get("share_mode", "default") != "default"
    return ShareOrder(
        wants=wants, mode=profile.share_mode if is_said else environment.mode_of(environ),
        is_mode_said=is_said, skip_syncs=profile.share_skip_syncs, over_cap=profile.over_cap,
        priority=profile.priority, limit_mib=0 if wants == "lock" else profile.vram_mib or 0,
        outer_gpus=outer_gpus, folder=folder, library="" if problem else library, problem=problem,
    )  # fmt: skip


def order_inside(profile: Profile) -> ShareOrder:
    """The order for a job inside another one that does not share: it has no GPUs of its own, and no file.

    Raises UsageError or ConfigError if a cap was requested.
    """
    problem = "it runs inside a job that shares nothing, and has no GPUs of its own"
    if wanted(profile) != "lock":
        raise refusal(profile, f"no cap can be applied: {problem}", "give --share to the outer job")
    return ShareOrder(
        wants="lock", mode=profile.share_mode, is_mode_said=True, skip_syncs=0, over_cap=profile.over_cap,
        priority=profile.priority, limit_mib=0, outer_gpus=(), folder="", library="", problem=problem,
    )  # fmt: skip


def refusal(profile: Profile, message: str, hint: str = "") -> SlicerError:
    """The error for an impossible ``share``: of the command line, or of the file that sets it."""
    source = profile.sources.get("share", "")
    if source.startswith("--"):
        return UsageError(message, where=source, hint=hint)
    return ConfigError(f"share: {message}", where=source, hint=hint)
