"""The looks at a job that shares its GPUs: what the library cannot see, and whether the job got past it.

Whoever looks at the job's GPUs anyway asks before and after that. What to make of it is decided in
:mod:`slicer.share.audit`.
"""

from __future__ import annotations

from slicer.errors import StateError
from slicer.record import record
from slicer.share import audit
from slicer.share.audit import Seen, Standing
from slicer.share.job_file import JobFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.state.statedir import StateDir


@record
class Finding:
    """What a look found, told once a job. ``gpu``: the UUID; "" for a job that escaped the library."""

    gpu: str
    used_mib: int = 0
    cap_mib: int = 0
    ends: bool = False  # the job is to be ended for it

    @property
    def is_escape(self) -> bool:
        """Whether the job uses its GPUs without the library."""
        return not self.gpu


class ShareAudit:
    """One job's. A file that is gone or damaged ends the looks: the outcome says so."""

    def __init__(self, directory: StateDir, job: str) -> None:
        self._file: JobFile | None = None
        self.has_cap = False
        self._standing = Standing()
        self._before: tuple[int, ...] = ()
        self._overhead: dict[str, int] = {}  # by GPU, in bytes
        self._processes: dict[str, int] = {}
        try:
            self._file = JobFile(directory, job)
            self.has_cap = any(self._file.read().limit)
        except StateError:
            self.close()

    def close(self) -> None:
        """Safe to repeat."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def before(self) -> None:
        """To be called just before the GPUs are looked at."""
        if self._file is not None:
            try:
                self._before = self._file.charges()[0]
            except StateError:
                self.close()

    def after(self, used_mib: Mapping[str, int], processes: Mapping[str, int]) -> list[Finding]:
        """Note what the library cannot see. Returns what is to be told.

        ``used_mib``: what the job uses now, by GPU; ``processes``: how many processes of it the driver lists.
        """
        if self._file is None or not self._before:
            return []
        try:
            return self._after(self._file, used_mib, processes)
        except StateError:
            self.close()
            return []

    def _after(
        self, file: JobFile, used_mib: Mapping[str, int], processes: Mapping[str, int]
    ) -> list[Finding]:
        charged, _ = file.charges()
        said = file.read()
        beyond = ""
        for place, uuid in enumerate(said.gpus[: len(charged)]):
            if uuid not in used_mib:  # of a job around this one
                continue
            cap_mib, count = said.limit[place] >> 20, processes.get(uuid, 0)
            if cap_mib:
                seen = Seen(used_mib[uuid], self._before[place], charged[place], count)
                self._note_overhead(file, place, uuid, seen)
            if audit.is_beyond(used_mib[uuid], cap_mib, count):
                beyond = beyond or uuid
        verdict = audit.judge(
            self._standing, is_beyond_cap=bool(beyond), rows=said.rows, uses_gpu=any(processes.values())
        )
        self._standing = verdict.standing
        found = [Finding("")] if verdict.escaped else []
        if verdict.got_past:
            file.set_got_past()
            cap_mib = said.limit[said.gpus.index(beyond)] >> 20
            found.append(Finding(beyond, used_mib[beyond], cap_mib, ends=said.over_cap == "end"))
        return found

    def _note_overhead(self, file: JobFile, place: int, uuid: str, seen: Seen) -> None:
        before = self._overhead.get(uuid, 0)
        is_fewer = seen.processes < self._processes.get(uuid, 0)
        now = audit.overhead(seen, 0 if is_fewer else before)
        if now != before:
            file.set_overhead(place, now)
        self._overhead[uuid] = now
        self._processes[uuid] = seen.processes
