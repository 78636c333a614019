"""The device fence of a job that root starts itself. The broker sets the fence of a brokered job.

Imported only if there are devices to fence off, or a profile sets ``fence = "on"``.
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


def with_fence(job: Job, plan: Plan, backend: Backend, observer: GpuObserver) -> Job:
    """The job with the fence around its GPUs, or with a function that makes it once they are known.

    Raises RefusedError if a required fence is impossible; of a queue's job only that function raises.
    """
    if job.queue:
        return replace(job, fence=lambda gpus: (fence_of(plan, backend, observer) or (lambda _: ()))(gpus))
    made = replace(job, fence=fence_of(plan, backend, observer))
    # With --exec this process itself is fenced, and must be able to query GPUs until it has its lease.
    return made if plan.missing.gpus or plan.invocation.exec else fenced(made, ())


def fence_of(
    plan: Plan, backend: Backend, observer: GpuObserver
) -> Callable[[tuple[str, ...]], tuple[Property, ...]] | None:
    """A function from GPUs' UUIDs to the fence; None: no fence. Raises RefusedError if one is required."""
    profile = plan.profile
    must = profile.fence == "on"
    if must:
        why = why_not(plan, backend) or why_not_kept(plan, backend)
        if why:
            message = f"the device fence is required, but impossible here: {why}"
            raise RefusedError(message, where=profile.sources["fence"])
    if backend.name == "inner" or why_not(plan, backend) or not (must or is_wanted(plan)):
        return None
    return lambda gpus: properties(plan, gpus, observer)


def described(plan: Plan, backend: Backend) -> str:
    """The devices that a job of this plan can open, or why it has no fence, as text. Raises nothing."""
    profile = plan.profile
    if plan.broker:
        return "as the administrator decides: by the policy, and the profile of that name in /etc/slicer"
    why = why_not(plan, backend)
    if why or profile.fence == "off":
        return f"none: {why or profile.sources['fence']}"
    if backend.name == "inner":
        return "that of the outer job"
    if not is_wanted(plan):
        return "none: the profile has device rules of its own, or its GPUs are held outside slicer"
    if why_not_kept(plan, backend):
        return f"none: {why_not_kept(plan, backend)}"
    opens = "its own GPUs and no others" if plan.visible_gpus(()) or plan.missing.gpus else "no GPU"
    return f"it can open {', '.join((opens, *profile.devices))}"


def is_wanted(plan: Plan) -> bool:
    """Whether a job of this plan should have a fence, if possible."""
    profile = plan.profile
    if fence.is_left_out(profile.fence, profile.properties) or plan.environ.get("SLICER_SIM"):
        return False
    if plan.skip_gpu_lock or plan.outer.foreign_gpu:
        return False  # it may have GPUs unknown to us
    return profile.fence == "on" or has_nvidia()


def why_not(plan: Plan, backend: Backend) -> str:
    """Why a job of this plan cannot have a fence; "": it can, or the outer job's fence covers it."""
    if plan.invocation.hold:
        return "slicer hold sets no limits"
    if backend.name == "plain":
        return "it requires systemd"
    return "it requires the system manager, as for root's jobs" if backend.manager == "user" else ""


def why_not_kept(plan: Plan, backend: Backend) -> str:
    """Why systemd's device rules would have no effect here; "": they have. Raises nothing."""
    from slicer.kernel import bpf, cgroup

    if backend.name == "inner":
        around = plan.outer.leases[-1].cgroup
        is_kept = bool(around) and bpf.filters_devices(cgroup.path_of(around))
        return "" if is_kept else "the outer job has none"
    return "" if bpf.can_filter_devices() else "the kernel does not let systemd filter devices (a container?)"


def properties(plan: Plan, gpus: tuple[str, ...], observer: GpuObserver) -> tuple[Property, ...]:
    """The properties that fence off a job with these GPUs. Raises BackendError."""
    profile = plan.profile
    allowed = set(plan.visible_gpus(gpus))
    if not allowed and profile.slice == "gpu":
        allowed = set(plan.outer.gpus)  # it inherits the outer job's variables
    if not allowed:
        return fence.properties((), extra=profile.devices)
    minors = _minors(allowed, observer)
    if minors is None:
        if profile.fence == "on":
            raise RefusedError("the driver does not identify the GPUs' nodes", where="the device fence")
        return ()
    device_nodes.load_uvm()
    return fence.properties(minors, device_nodes.caps_of(minors), profile.devices)


def _minors(uuids: set[str], observer: GpuObserver) -> tuple[int, ...] | None:
    """The minor numbers of the GPUs' nodes; None: a GPU has no node of its own (WSL). Raises BackendError."""
    if not uuids <= {gpu.uuid for gpu in observer.gpus}:
        try:
            observer.open()  # the outer job holds them
        except GpuError as error:
            message = f"the job's GPUs cannot be fenced off from others: {error.message}"
            raise BackendError(message, hint=error.hint) from error
    return fence.minors_of(uuids, observer.gpus)


def fenced(job: Job, gpus: tuple[str, ...], starter: Backend | None = None) -> Job:
    """The job with the fence for these GPUs in its scope's properties. Raises SlicerError.

    ``starter``: has started that scope already. It sets them, and its connection is closed.
    """
    if job.fence is None:
        return job
    new = job.fence(gpus)
    if starter is not None:
        if new:
            starter.set_properties(job.spec.whole, new)
        starter.close()
    return replace(job, spec=replace(job.spec, properties=(*job.spec.properties, *new)), fence=None)
