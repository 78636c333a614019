"""What a job wants of sharing, settled before it has its lease. Pure."""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import OverCap, Profile, Share

FOLDER = "share"  # in the state directory


@record
class ShareOrder:
    """What is wanted, and how the job's processes are told. Plain data: queues hand it on."""

    wants: Share  # never "off"
    mode: str  # as in Profile.share_mode
    is_mode_said: bool  # False: the environment may say another one, and ``mode`` is that
    skip_syncs: int
    over_cap: OverCap
    priority: int
    limit_mib: int  # the cap on each GPU; 0: none
    outer_gpus: tuple[str, ...]  # of the jobs around it, beside those of its own lease
    folder: str  # the path of the folder with the jobs' files
    library: str  # the path of what is preloaded; "": nothing is
    problem: str  # why nothing is preloaded: only a lock was wanted, or the driver keeps the cap alone

    @property
    def is_active(self) -> bool:
        """Whether the library is preloaded, and the job gets a file."""
        return bool(self.library)

    def path(self, job: str) -> str:
        """The path of the job's file."""
        return f"{self.folder}/{job}"


def wanted(profile: Profile) -> Share:
    """What the profile wants of sharing. Whole GPUs are shared with nobody, so nothing is wanted for them."""
    return profile.share if profile.gpus and profile.vram_mib is not None else "off"
