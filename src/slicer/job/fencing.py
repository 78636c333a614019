"""The device fence of a job that this process starts: root's own. A brokered job's fence is the broker's.

Imported only where there is something to fence off, or a profile says ``fence = "on"``.
"""

from __future__ import annotations

from slicer.errors import BackendError, GpuError, RefusedError
from slicer.gpu import device_nodes, fence, has_nvidia
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.backend import Backend
    from slicer.gpu.observer import GpuObserver
    from slicer.job.job import Job
    from slicer.job.plan import Plan
    from slicer.model import Property


def with_fence(
    job: Job, plan: Plan, backend: Backend, observer: GpuObserver, *, at_start: bool = False
) -> Job:  # fmt: skip
    """The job with the fence around its GPUs, or with what makes it once they are known.

    Raises RefusedError where it has to have one and cannot; with ``at_start`` only what makes it raises.
    """
    if at_start:
        return replace(job, fence=lambda gpus: (fence_of(plan, backend, observer) or (lambda _: ()))(gpus))
    made = replace(job, fence=fence_of(plan, backend, observer))
    # With --exec we ourselves are what is fenced, and have to look at GPUs until the job has its lease.
    return made if plan.missing.gpus or plan.invocation.exec else fenced(made, ())


def fence_of(
    plan: Plan, backend: Backend, observer: GpuObserver
) -> Callable[[tuple[str, ...]], tuple[Property, ...]] | None:
    """Makes the fence from the GPUs' UUIDs; None: there is none. Raises RefusedError if it must have one."""
    profile = plan.profile
    must = profile.fence == "on"
    if must:
        why = why_not(plan, backend) or why_not_kept(plan, backend)
        if why:
            message = f"no job without the device fence, which cannot be here: {why}"
            raise RefusedError(message, where=profile.sources["fence"])
    if backend.name == "inner" or why_not(plan, backend) or not (must or is_wanted(plan)):
        return None
    return lambda gpus: properties(plan, gpus, observer)


def described(plan: Plan, backend: Backend) -> str:
    """The devices that a job of this plan can open, or why it has no fence, for people. Raises nothing."""
    profile = plan.profile
    if plan.broker:
        return "as the administrator says: the policy, and the profile of that name in /etc/slicer"
    why = why_not(plan, backend)
    if why or profile.fence == "off":
        return f"none: {why or profile.sources['fence']}"
    if backend.name == "inner":
        return "that of the job around it"
    if not is_wanted(plan):
        return "none: the profile has device rules of its own, or others hold its GPUs for it"
    if why_not_kept(plan, backend):
        return f"none: {why_not_kept(plan, backend)}"
    opens = "its own GPUs and no others" if plan.visible_gpus(()) or plan.missing.gpus else "no GPU"
    return f"it can open {', '.join((opens, *profile.devices))}"


def is_wanted(plan: Plan) -> bool:
    """Whether a job of this plan is to have a fence, if it can be."""
    profile = plan.profile
    if fence.is_left_out(profile.fence, profile.properties) or plan.environ.get("SLICER_SIM"):
        return False
    if plan.skip_gpu_lock or plan.outer.foreign_gpu:
        return False  # it may have GPUs that we do not know of
    return profile.fence == "on" or has_nvidia()


def why_not(plan: Plan, backend: Backend) -> str:
    """Why a job of this plan cannot have a fence; "": it can, or the job around it has one for it."""
    if plan.invocation.hold:
        return "slicer hold takes no limits"
    if backend.name == "plain":
        return "it takes systemd"
    return "it takes the system manager, as root's jobs have" if backend.manager == "user" else ""


def why_not_kept(plan: Plan, backend: Backend) -> str:
    """Why systemd's rules would not be kept here; "": they are. Raises nothing."""
    from slicer.kernel import bpf, cgroup

    if backend.name == "inner":
        around = plan.outer.leases[-1].cgroup
        is_kept = bool(around) and bpf.filters_devices(cgroup.path_of(around))
        return "" if is_kept else "the job around it has none"
    return "" if bpf.can_filter_devices() else "the kernel lets systemd filter no devices (a container?)"


def properties(plan: Plan, gpus: tuple[str, ...], observer: GpuObserver) -> tuple[Property, ...]:
    """The properties that fence the job off, once it has these GPUs. Raises BackendError."""
    profile = plan.profile
    allowed = set(plan.visible_gpus(gpus))
    if not allowed and profile.slice == "gpu":
        allowed = set(plan.outer.gpus)  # it finds the variables of the job around it
    if not allowed:
        return fence.properties((), extra=profile.devices)
    minors = _minors(allowed, observer)
    if minors is None:
        if profile.fence == "on":
            raise RefusedError("the driver does not say which device node is whose", where="the device fence")
        return ()
    device_nodes.load_uvm()
    return fence.properties(minors, device_nodes.caps_of(minors), profile.devices)


def _minors(uuids: set[str], observer: GpuObserver) -> tuple[int, ...] | None:
    """The minor numbers of their nodes; None: one has no node of its own (WSL). Raises BackendError."""
    if not uuids <= {gpu.uuid for gpu in observer.gpus}:
        try:
            observer.open()  # the job around it has them
        except GpuError as error:
            message = f"the job's GPUs cannot be fenced off from others: {error.message}"
            raise BackendError(message, hint=error.hint) from error
    return fence.minors_of(uuids, observer.gpus)


def fenced(job: Job, gpus: tuple[str, ...]) -> Job:
    """The job with its fence in its scope's properties, now that its GPUs are known. Raises as there."""
    if job.fence is None:
        return job
    spec = replace(job.spec, properties=(*job.spec.properties, *job.fence(gpus)))
    return replace(job, spec=spec, fence=None)


class LateFence:
    """Sets the fence of a scope that stands before the lease. Made after the fork of the keeper."""

    def __init__(self, backend: Backend) -> None:
        """Connect, while there is time. Raises BackendError."""
        from slicer.backend.unit_control import UnitControl

        self._control = UnitControl(backend.manager)
        self._control.connect()

    def set(self, job: Job, gpus: tuple[str, ...]) -> Job:
        """Have systemd set it, before the command starts. Returns the job with it. Raises SlicerError."""
        made = fenced(job, gpus)
        new = made.spec.properties[len(job.spec.properties) :]
        if new:
            self._control.set_properties(job.spec.unit, new)
        return made

    def close(self) -> None:
        """Give up the connection. Safe to repeat."""
        self._control.close()
