"""The end of a job: its outcome is written to each destination, and its lease is released.

Called by the supervisor, or by the keeper when the supervisor is dead.
"""

from __future__ import annotations

import os
import time

from slicer import faults
from slicer.backend import Backend, changes_of
from slicer.errors import EX_SLICER, EX_TEMPFAIL, SlicerError, StateError
from slicer.job import words
from slicer.job.job import NOBODY, Follower, Job, Started, tell
from slicer.job.report import Interventions, KeeperReport, exit_of, killed_reason
from slicer.job.scope import stop_timeout_s
from slicer.kernel import cgroup, proc
from slicer.kernel.signals import signal
from slicer.model import CPU, GAVE_WAY, Lease, Outcome, Usage
from slicer.outcome import history
from slicer.record import as_dict, replace
from slicer.state import statefile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.job.gpu_watch import GpuWatch
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.ledger import Ledger
    from slicer.model import EndedBy, Git, Reason, Sharing
    from slicer.outcome.series import Series


def outcome_of(
    job: Job, started: Started, report: KeeperReport, usage: Usage, held: HeldLease,
    enforced: tuple[tuple[str, ...], tuple[str, ...]], *, git: Git | None = None, was_watched: bool = True,
) -> Outcome:  # fmt: skip
    """The outcome of a job that ran. ``enforced``: the effective directives, and the ineffective ones.

    To be called while the scope exists, because it shows what others did to the job. ``was_watched``: a
    process outside the scope has noticed each pause; ``git``: which code ran.
    """
    lease, spec = held.lease, job.spec
    if report.reason == "signal" and report.status == signal.SIGKILL and _has_lost_manager(started, report):
        report = replace(report, reason="stopped", ended_by="shutdown")
    if spec.adopts:  # nobody here is the parent of what ran
        reason: Reason = "unknown" if report.reason in ("exited", "signal") else report.reason
        report = replace(report, reason=reason, status=EX_SLICER << 8, leftovers=0)
    if report.ended_by == "systemd" and job.broker and lease.min_run_s is not None:
        report = _with_way(report, job)
    ended, shared = exit_of(report), None
    if job.sharing is not None:
        from slicer.job.sharing import summary

        shared = summary(job.sharing, job, held)
    done = _interventions(job, started, held, report, was_watched=was_watched)
    if report.reason == "stopped" and done.ended_by == GAVE_WAY:
        ended = replace(ended, code=EX_TEMPFAIL)
    return Outcome(
        job=job.id, name=job.name, command=job.command, profile=job.profile.name, backend=lease.backend,
        manager=spec.manager, unit=lease.unit, slice=spec.slice, gpus=lease.gpus, vram_mib=lease.vram_mib,
        vram_peak_mib=lease.vram_peak_mib, cpu_slots=lease.slots.get(CPU, 0), slots=lease.slots,
        forced=lease.forced, uid=lease.uid,
        reason=report.reason, exit_code=ended.code, signal=ended.signal, started_at=started.started_at,
        waited_s=started.waited_s, wall_s=report.wall_s, usage=usage, leftovers=report.leftovers,
        enforced=(*enforced[0], *done.enforced), not_enforced=(*enforced[1], *done.not_enforced),
        paused_s=done.paused_s, ended_by=done.ended_by, changed=done.changed,
        changed_outside=done.changed_outside, sharing=shared, directory=job.runs_in(), log=job.log,
        gpu_indices=lease.gpu_indices, git=git,
    )  # fmt: skip


def _with_way(report: KeeperReport, job: Job) -> KeeperReport:
    """The report of a job that the broker has ended, because nobody else did, to have it give way."""
    from slicer.job.giving_way import noted_by

    return replace(report, ended_by=GAVE_WAY) if noted_by(job.broker, job.id) else report


def _has_lost_manager(started: Started, report: KeeperReport) -> bool:
    """Whether the user's systemd has ended since the start, or ends: what it leaves is killed unasked."""
    above, mark, below = started.cgroup.partition("/user@")
    if not mark:
        return False
    from slicer.backend.shutdown import is_shutting_down

    began = (proc.now_s() - report.wall_s) * os.sysconf("SC_CLK_TCK")
    managers = cgroup.processes(cgroup.path_of(f"{above}{mark}{below.partition('/')[0]}/init.scope"))
    starts = [start for start in map(proc.start_time, managers) if start is not None]
    return not any(start <= began for start in starts) or is_shutting_down("user")


def _sharing_fields(sharing: Sharing | None) -> dict[str, str | float]:
    if sharing is None:
        return {}
    return {
        "share": sharing.wants, "share_turns": sharing.turns, "share_held_s": round(sharing.held_s, 3),
        "share_waits": sharing.waits, "share_waited_s": round(sharing.waited_s, 3),
        "share_refused": sharing.refused, "share_got_past_cap": sharing.got_past_cap,
    }  # fmt: skip


def forget(job: Job, held: HeldLease) -> None:
    """The outcome is written, or there is none: remove the files that only the job needed."""
    if job.has_share_file:
        from slicer.job import sharing

        sharing.remove_file(job, held)


def _interventions(
    job: Job, started: Started, held: HeldLease, report: KeeperReport, *, was_watched: bool
) -> Interventions:
    if held.fd < 0:  # it ran inside another job, which owns the scope
        return Interventions(None, report.ended_by)
    changes = changes_of(held.lease.unit, job.spec.manager)
    if held.was_controlled or os.path.isdir(changes):
        from slicer.job.interventions import interventions

        return interventions(job, started, held, report, was_watched=was_watched)
    frozen_s = cgroup.frozen_s(cgroup.path_of(started.cgroup)) if started.cgroup else 0.0
    return Interventions(0.0 if frozen_s is None and was_watched else frozen_s, report.ended_by)


def gpu_watch(
    job: Job, held: HeldLease, ledger: Ledger, warn: Callable[[str], None], follower: Follower = NOBODY
) -> GpuWatch | None:
    """The watch of the job's GPUs. None: it holds no GPUs of its own."""
    if not held.lease.gpus or held.fd < 0:
        return None
    from slicer.job.gpu_watch import GpuWatch

    return GpuWatch(job, held, ledger, warn, follower)


def finish(
    job: Job, outcome: Outcome, held: HeldLease, warn: Callable[[str], None], watch: GpuWatch | None,
    series: Series | None = None,
) -> Outcome:
    """Tell the journal, check that the GPUs' memory is free (``watch``), release the lease, then write.

    ``series``: what the job used over time, for the history, if it was sampled.
    The order ensures that a slow disk does not keep the next job waiting. The broker does its part meanwhile;
    it waits for the scope's end, and therefore for all of this. A failure on the way is reported (``warn``,
    and an event in the journal) and stops nothing.

    Returns the outcome, which says so if the job failed by itself on a GPU that the driver has given up.
    """
    used, lease = outcome.usage, held.lease
    git = as_dict(outcome.git) if outcome.git is not None else {}
    is_alone = outcome.reason in ("exited", "signal", "timeout") and not outcome.ended_by
    if watch is not None and outcome.exit_code and is_alone and (fault := watch.fault()):
        watch.say(fault)
        outcome = replace(outcome, ended_by="gpu")
    if outcome.changed_outside:
        said = ", ".join(outcome.changed_outside)
        message = f"{said} was set from outside while it ran"
        tell(job, "changed", lease=lease, message=message, changed=said, by="outside")
    if outcome.leftovers:
        message = f"leftover processes were ended: {outcome.leftovers}"
        tell(job, "stopped", lease=lease, message=message, leftovers=outcome.leftovers)
    tell(
        job, "finished", lease=lease, message=words.finished(outcome, lease.gpu_indices),
        reason=outcome.reason, exit_code=outcome.exit_code, wall_s=round(outcome.wall_s, 3),
        waited_s=round(outcome.waited_s, 3), cpu_s=used.cpu_s, memory_peak_bytes=used.memory_peak_bytes,
        vram_peak_mib=max(outcome.vram_peak_mib, default=None), **_sharing_fields(outcome.sharing),
        **{f"git_{name}": value for name, value in git.items() if value != ""},
    )  # fmt: skip
    faults.point("ending-finished")
    heard: list[Callable[[], None]] = []
    if job.broker:
        _try(job, held, warn, lambda: heard.append(_tell_broker(job, outcome)))
    if watch is not None and not held.is_outlived:
        _try(job, held, warn, lambda: _check_gpus(job, outcome, watch))
    if (attempt := job.attempt) is not None:  # whoever finds no lease looks for the end there
        _try(job, held, warn, lambda: attempt.end(outcome))
    _try(job, held, warn, lambda: release(job, held))
    faults.point("ending-released")
    if outcome.gpus:
        _try(job, held, warn, lambda: _note_run(outcome, held))
    if job.reruns is not None:
        job.reruns.is_over |= held.is_outlived
        if job.reruns.decide(outcome, job.profile.retry):
            _try(job, held, warn, held.alert)
            return outcome
        outcome = job.reruns.summed(outcome)
    _try(job, held, warn, lambda: _append(job, outcome, held, warn, series))
    if series is not None and job.broker:
        _try(job, held, warn, lambda: _tell_sampled(job, series))
    faults.point("ending-written")
    _try(job, held, warn, lambda: _to_file(job, outcome))
    _try(job, held, warn, held.alert)
    for hear in heard:
        _try(job, held, warn, hear)
    return outcome


def _note_run(outcome: Outcome, held: HeldLease) -> None:
    """Remember the run for later ones, which are placed by it."""
    from slicer.outcome.result import result_of
    from slicer.placement.suspects import how_ended

    length_s = outcome.wall_s - (outcome.paused_s or 0.0)
    result = result_of(outcome.exit_code, outcome.reason, outcome.ended_by)
    held.note_run(how_ended(outcome.exit_code, outcome.reason, result, length_s), length_s)


def _try(job: Job, held: HeldLease, warn: Callable[[str], None], act: Callable[[], str | None]) -> None:
    """Do one step, and report what it returns or raises. The exit code stays the command's."""
    try:
        warning = act()
    except SlicerError as error:
        warning = str(error)
    except Exception as error:
        warning = f"internal error: {type(error).__name__}: {error}"
    if warning:
        warn(warning)
        tell(job, "error", lease=held.lease, message=warning)


def _tell_broker(job: Job, outcome: Outcome) -> Callable[[], None]:
    """For the accounts, while the scope's figures can still be read. Returns a wait for the broker."""
    from slicer.broker.client.calls import tell_finished

    return tell_finished(job.broker, outcome)


def _append(
    job: Job, outcome: Outcome, held: HeldLease, warn: Callable[[str], None], series: Series | None
) -> str | None:
    """Write the outcome into the history, and those of other jobs that the ledger keeps for it."""
    base = held.directory.base
    try:
        warning = history.append(outcome, job.history_path, series=series, keep_s=job.history_keep_s)
    except StateError as error:
        from slicer.outcome import kept

        kept.keep(base, outcome)
        error.hint = f"{error.hint}; " * bool(error.hint) + "until then its outcome is kept in memory"
        raise
    if base.is_there() and any(name.endswith(history.KEPT) for name in base.names()):
        from slicer.outcome import kept

        kept.settle(base, job.history_path, warn)
    return warning


def _tell_sampled(job: Job, series: Series) -> None:
    from slicer.broker.client.calls import tell_sampled

    tell_sampled(job.broker, job.id, series)


def _check_gpus(job: Job, outcome: Outcome, watch: GpuWatch) -> None:
    from slicer.job import gpu_leftovers

    # When a job is stopped, all its processes are ended, so naming them adds nothing.
    ended = outcome.leftovers if outcome.reason in ("exited", "signal") else 0
    gpu_leftovers.check(watch, ended, job.policy.idle_threshold_mib)


def peaks_written(held: HeldLease) -> tuple[int, ...]:
    """The peaks in the lease's file, for a keeper that did not measure them itself."""
    if held.fd < 0 or not held.lease.gpus:
        return held.lease.vram_peak_mib
    try:
        found = statefile.decode(Lease, os.pread(held.fd, os.fstat(held.fd).st_size, 0)).vram_peak_mib
    except statefile.TornFile:  # killed while it wrote
        return held.lease.vram_peak_mib
    return found if len(found) == len(held.lease.gpus) else held.lease.vram_peak_mib


def release(job: Job, held: HeldLease) -> None:
    """Release the lease. Tell the journal, unless the lease was empty (as with "acquired")."""
    is_own = held.fd >= 0
    held.release()
    if is_own and not held.is_outlived and (held.lease.gpus or held.lease.slots):
        tell(job, "released", lease=held.lease, message=words.released(held.lease, proc.now_s()))


def _to_file(job: Job, outcome: Outcome) -> str | None:
    if job.outcome_path:
        from slicer.outcome.outcome_file import write

        write(outcome, job.outcome_path)
    return None


def kills_in_slice(cgroup_name: str) -> int | None:
    """The number of out-of-memory kills in the scope's slice; None: unknown."""
    return cgroup.oom_kills(os.path.dirname(cgroup.path_of(cgroup_name)))


def report_without(
    job: Job, backend: Backend, held: HeldLease, started: Started, last: tuple[KeeperReport, Usage] | None,
    kills_before: int | None, warn: Callable[[str], None],
) -> tuple[KeeperReport, Usage]:  # fmt: skip
    """End the rest of a job whose keeper was killed, and report what is known about it.

    ``last``: its last report; ``kills_before``: :func:`kills_in_slice` at the start, None: not asked.
    """
    if last is not None:
        usage = last[1]
    else:
        usage = cgroup.usage(cgroup.path_of(started.cgroup)) if started.cgroup else Usage()
    if usage.oom_kills is None and kills_before is not None:
        kills = (kills_in_slice(started.cgroup) or 0) - kills_before
        usage = replace(usage, oom_kills=kills) if kills > 0 else usage
    left = len(backend.living(job.id, started.cgroup))
    # systemd may have missed that the scope became empty, and then nothing else would end it.
    is_unseen = not left and backend.name == "systemd" and not job.broker
    if is_unseen or (left and not job.profile.linger):
        if started.cgroup and job.spec.has_keeper:
            cgroup.signal_all(started.cgroup, signal.SIGTERM)  # systemd would tell the keeper alone
        if left and job.docker is not None:
            job.docker.end(job.id, started.cgroup, job.env(held.lease.gpus))
        try:
            backend.end(job.id, job.spec.whole, stop_timeout_s(job.profile))
        except SlicerError as error:
            warn(str(error))
    # A process that cleared its environment is not listed as living, but holds the lease.
    held.is_outlived = bool(backend.living(job.id, started.cgroup)) or held.is_shared()
    wall_s = time.monotonic() - started.began
    if last is not None:
        return KeeperReport(1, last[0].reason, signal.SIGKILL, 0, wall_s, left, last[0].ended_by), usage
    reason = killed_reason(usage.oom_kills, wall_s, job.profile.timeout_s)
    ended_by: EndedBy = "outside" if reason == "signal" else ""
    return KeeperReport(1, reason, signal.SIGKILL, 0, wall_s, left, ended_by), usage
