"""What to say of sharing a GPU (``--share``). Pure.

Findings are for those who share: a profile has ``share``, or a job of the history had it.
"""

from __future__ import annotations

from collections.abc import Iterator

from slicer.doctor.facts.configuration import ProfileFacts
from slicer.doctor.facts.gpus import DriverFacts
from slicer.doctor.facts.sharing import SharingFacts
from slicer.doctor.kinds import finding
from slicer.doctor.model import Finding, Who

_QUIT = "echo quit | nvidia-cuda-mps-control"
_ENABLE = "echo +dmem > /sys/fs/cgroup{}/cgroup.subtree_control"


def sharing(
    facts: SharingFacts, profiles: tuple[ProfileFacts, ...], driver: DriverFacts | None, who: Who
) -> Iterator[Finding]:
    """The findings about it. ``driver``: None where it did not answer in time."""
    sharers = [profile for profile in profiles if profile.share]
    if not sharers and not facts.was_used:
        return
    if facts.library_error:
        what = f"{facts.library}: {facts.library_error}"
        yield finding("share-library-unusable", what, "# install slicer again; from source that takes gcc")
    if facts.mps and (facts.was_used or any(profile.share in ("lock", "both") for profile in sharers)):
        yield finding("mps-beside-share", f"its pipes: {facts.mps}", who.root(_QUIT))
    if _driver_can(driver) and not who.uid and facts.has_dmem and facts.is_dmem_on is False:
        what = "the driver can limit GPU memory by cgroup; gpu.slice does not pass on the controller dmem"
        yield finding("dmem-not-enabled", what, _ENABLE.format(""), _ENABLE.format("/gpu.slice"))


def described(facts: SharingFacts, driver: DriverFacts | None, who: Who) -> tuple[tuple[str, str], ...]:
    """The facts, for those who want to see all."""
    library = f"cannot be loaded: {facts.library_error}" if facts.library_error else facts.library
    return (
        ("library of --share", library),
        ("MPS", f"pipes in {facts.mps}" if facts.mps else "does not run"),
        ("GPU memory limit by cgroup", _limit(facts, driver, who)),
    )


def _limit(facts: SharingFacts, driver: DriverFacts | None, who: Who) -> str:
    if driver is None or driver.reason:
        return "not known"
    if driver.why_no_limits:
        return f"no: {driver.why_no_limits}"
    if who.uid:
        return "not for you: only root may set it"
    if facts.has_dmem and facts.is_dmem_on is False:
        return "no: gpu.slice does not pass on the controller dmem"
    return "by the driver"


def _driver_can(driver: DriverFacts | None) -> bool:
    return driver is not None and not driver.reason and not driver.why_no_limits
