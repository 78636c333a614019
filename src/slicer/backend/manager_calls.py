"""The calls to systemd, and the meaning of its answers, for each binding of D-Bus. Pure.

A conversation is a generator. It yields a Call and is sent the answer, or yields a pause in seconds. It
returns its result, or raises BackendError. So it serves a client that waits as well as an event loop.
"""

from __future__ import annotations

from slicer.config.properties import controller
from slicer.errors import BackendError, RefusedError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable
    from typing import Any, TypeAlias, TypeVar

    from slicer.model import Manager, Property, ScopeSpec

    _T = TypeVar("_T")

    # Signatures and values in Python's types: "a(st)" has a list of pairs, "v" a signature and a value.
    Arguments: TypeAlias = Iterable[tuple[str, Any]]
    # A unit's properties: name, signature, value.
    Properties: TypeAlias = Iterable[tuple[str, str, Any]]
    # The values of the reply. Of a call that awaits its job: the job's result ("done", "failed", …).
    Answer: TypeAlias = tuple[Any, ...] | "BusError"
    Conversation: TypeAlias = Generator["Call | float", Any, _T]

DAEMON = "org.freedesktop.DBus"
DAEMON_PATH = "/org/freedesktop/DBus"
SYSTEMD = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
MANAGER = f"{SYSTEMD}.Manager"
PROPERTIES = f"{DAEMON}.Properties"
REMOVED = f"{MANAGER}.JobRemoved"  # the signal at the end of a job of systemd's
MATCH_REMOVED = f"type='signal',sender='{SYSTEMD}',path='{PATH}',interface='{MANAGER}',member='JobRemoved'"

START_DEADLINE_S = 30.0  # PID 1 can be slow under memory pressure
LATE = "slicer.Late"  # our own name of an error: there was no answer in time
NO_UNIT = f"{SYSTEMD}.NoSuchUnit"
_GONE = (NO_UNIT, f"{DAEMON}.Error.UnknownObject")
_UNIT_EXISTS = f"{SYSTEMD}.UnitExists"
_NO_PROPERTY = tuple(
    f"{DAEMON}.Error.{name}" for name in ("InvalidArgs", "UnknownInterface", "UnknownProperty")
)
# Errors in the request itself, which would recur at any time.
_FINAL = tuple(
    f"{DAEMON}.Error.{name}"
    for name in ("InvalidArgs", "InvalidSignature", "NotSupported", "PropertyReadOnly", "UnknownProperty")
)
_THAWS = 20  # of a unit that is to stop, while another process freezes it again
_ROUNDS = 50  # of moving processes that start others meanwhile
_BUSY = f"{SYSTEMD}.UnitBusy"
_BUSY_TRIES = 100
_PAUSE_S = 0.05  # between two of these attempts


class BusError(Exception):
    """An error in place of a call's result."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message or name)
        self.name = name
        self.message = message or name


class BusBroken(BackendError):
    """There is no connection, or no longer. The request may or may not have been carried out."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        hint = "is dbus running? see slicer doctor"
        super().__init__(f"the connection to systemd broke: {self.reason}", hint=hint)


class UnitGone(BackendError):
    """The unit does not exist any more."""


class UnitExists(BackendError):
    """A unit of that name exists already."""


@record
class Call:
    """A call of INTERFACE.MEMBER of one of systemd's objects."""

    name: str
    arguments: Arguments = ()
    path: str = PATH
    awaits_job: bool = False  # the reply is a systemd job, and the answer is its result
    only: Collection[str] = ()  # the reply is a dictionary of properties, of which these are wanted


# -- scopes and services -----------------------------------------------------------------------------------

# The documentation in `systemctl status` and `systemctl help` of a unit.
_DOCUMENTATION = ("Documentation", "as", ["man:slicer(1)"])


def start_scope(
    spec: ScopeSpec, pidfd: int, pid: Callable[[], int], added: Properties = ()
) -> Conversation[None]:
    """Start a scope with a process in it. ``pid``: the process's, for systemd before 255.

    Raises RefusedError for a request that would always be refused, UnitExists, BackendError.
    """
    of_slice, of_scope = _parted(spec)
    if spec.within:
        told = [(each.dbus_name, each.signature, each.value) for each in of_slice]
        answer = yield _start(spec.within, [_description(spec.description), _DOCUMENTATION, *told])
        if not isinstance(answer, BusError) or answer.name != _UNIT_EXISTS:  # from an attempt that broke off
            _check_started(answer, spec.within, spec.manager, _asked(of_slice))
        yield from set_properties(spec.within, of_slice, spec.manager)  # before any drop-in of gpu-.slice.d
    properties = [
        _description(spec.description),
        _DOCUMENTATION,
        ("Slice", "s", spec.within or spec.slice),
        *([("PropagatesStopTo", "as", [spec.within])] if spec.within else []),  # whatever ended the scope
        ("CollectMode", "s", "inactive-or-failed"),
        *([("Delegate", "b", True)] if spec.adopts else []),  # take_in needs it
        *((each.dbus_name, each.signature, each.value) for each in of_scope),
        *added,
    ]
    answer = yield _start(spec.unit, [*properties, ("PIDFDs", "ah", [pidfd])])
    if isinstance(answer, BusError) and "PIDFDs" in answer.message:
        answer = yield _start(spec.unit, [*properties, ("PIDs", "au", [pid()])])
    _check_started(answer, spec.unit, spec.manager, _asked(of_scope))


def take_in(unit: str, left: Callable[[], list[int]], manager: Manager) -> Conversation[None]:
    """Move running processes into a delegated scope, until ``left`` lists no more. Raises BackendError."""
    answer: Answer = ()
    for _ in range(_ROUNDS):
        if not (pids := left()):
            return
        answer = yield Call(f"{MANAGER}.AttachProcessesToUnit", (("s", unit), ("s", ""), ("au", pids)))
    left()  # whom it moved
    checked(answer, unit, "move all the processes into", manager)
    raise BackendError("processes are started faster than they can be moved", where=unit)


def _parted(spec: ScopeSpec) -> tuple[tuple[Property, ...], tuple[Property, ...]]:
    """The properties of the job's own slice, and those of its scope: what a slice has not, or all."""
    if not spec.within:
        return (), spec.properties
    scopes = {each.name for each in spec.properties if each.name == "OOMPolicy" or not controller(each.name)}
    return (
        tuple(each for each in spec.properties if each.name not in scopes),
        tuple(each for each in spec.properties if each.name in scopes),
    )


def _asked(properties: tuple[Property, ...]) -> str:
    return f"asked for {', '.join(f'{each.name}={each.text}' for each in properties)}"


def start_service(
    unit: str, description: str, argv: tuple[str, ...], properties: Properties, manager: Manager
) -> Conversation[None]:
    """Start a transient service. ``argv`` as for execve(2), the first an absolute path."""
    # systemd would replace $words with its variables.
    words = [argument.replace("$", "$$") for argument in argv]
    command = ("ExecStart", "a(sasb)", [(argv[0], words, False)])
    answer = yield _start(unit, [_description(description), _DOCUMENTATION, *properties, command])
    _check_started(answer, unit, manager, _see_status(unit, manager))


def check_place(unit: str, found: str, *, is_its: bool, has_ended: bool) -> None:
    """Raise BackendError unless ``found``, the cgroup of a scope's process, is the scope's.

    systemd before 257.13 can report a scope as started and drop it at once (systemd #36781). Then the command
    would run without its limits.
    """
    if has_ended:
        raise BackendError("its process was killed on its way into the scope", where=unit)
    if not is_its:
        raise BackendError(
            f"systemd started {unit}, but the process is in {found or 'no cgroup'}",
            hint="try again; see systemd #36781",
        )


def _description(text: str) -> tuple[str, str, Any]:
    return ("Description", "s", text.encode("utf-8", "replace"))


def _start(unit: str, properties: Properties) -> Call:
    told = [(name, (signature, value)) for name, signature, value in properties]
    arguments: Arguments = (("s", unit), ("s", "fail"), ("a(sv)", told), ("a(sa(sv))", []))
    return Call(f"{MANAGER}.StartTransientUnit", arguments, awaits_job=True)


def _check_started(answer: Answer, unit: str, manager: Manager, hint: str) -> None:
    if isinstance(answer, BusError):
        kind = RefusedError if answer.name in _FINAL else BackendError
        kind = UnitExists if answer.name == _UNIT_EXISTS else kind
        raise failure(answer, f"systemd refused {unit}", hint, kind)
    if answer[0] != "done":
        message = f"systemd could not start {unit}: the start job ended as {answer[0]!r}"
        raise BackendError(message, hint=f"see journalctl{user_flag(manager)} -u {unit}")


# -- units that run ----------------------------------------------------------------------------------------


def freeze(unit: str, manager: Manager = "system") -> Conversation[None]:
    """Freeze a unit: no process in it runs until it is thawed. Raises UnitGone, BackendError."""
    checked((yield from _one_by_one("FreezeUnit", unit, manager)), unit, "freeze", manager)


def thaw(unit: str, thaw_directly: Callable[[], bool], manager: Manager = "system") -> Conversation[None]:
    """Thaw a unit. ``thaw_directly`` thaws its cgroup, and returns whether that is permitted.

    Raises UnitGone, BackendError.
    """
    answer = yield from _one_by_one("ThawUnit", unit, manager)
    try:
        checked(answer, unit, "thaw", manager)
    except UnitGone:
        raise
    except BackendError:
        # systemd does not thaw a unit that is being stopped, although it waits for the unit's end.
        state = yield from property_of(unit, "ActiveState", manager)
        if state == "active" or not thaw_directly():
            raise


def _one_by_one(method: str, unit: str, manager: Manager) -> Conversation[Answer]:
    """Freeze or thaw a unit, once systemd is done with what another process asked before."""
    for _ in range(_BUSY_TRIES):
        answer: Answer = yield _of_unit(method, unit)
        if not isinstance(answer, BusError) or answer.name != _BUSY:
            break
        if (yield from property_of(unit, "ActiveState", manager)) != "active":
            break  # busy with its end
        yield _PAUSE_S
    return answer


def stop(unit: str, manager: Manager = "system", *, awaits_end: bool = True) -> Conversation[None]:
    """Stop a unit: SIGTERM, then SIGKILL after its stop timeout. Raises BackendError.

    A frozen unit is thawed, so that its processes can act on SIGTERM. systemd 252 does so itself; later
    versions refuse to stop it.
    """
    arguments = (("s", unit), ("s", "replace"))
    for _ in range(_THAWS + 1):
        answer = yield Call(f"{MANAGER}.StopUnit", arguments, awaits_job=awaits_end)
        try:
            result = checked(answer, unit, "stop", manager)[0]
        except UnitGone:
            return
        if result != "frozen":
            return
        if isinstance((yield _of_unit("ThawUnit", unit)), BusError):  # another process freezes or thaws it
            yield _PAUSE_S
    raise BackendError(f"systemd did not stop {unit}: it is repeatedly frozen")


def set_properties(
    unit: str, properties: tuple[Property, ...], manager: Manager = "system"
) -> Conversation[None]:
    """Change properties of a unit until it ends, all or none. Lists are replaced.

    Raises RefusedError for properties that systemd does not support or accept, UnitGone, BackendError.
    """
    names = ", ".join(f"{each.name}={each.text}" for each in properties)
    told = [(each.dbus_name, each.signature, each.value) for each in properties]
    answer = yield set_call(unit, told)
    if isinstance(answer, BusError) and answer.name in _FINAL:
        hint = "an older systemd supports fewer"
        raise failure(answer, f"systemd does not accept {names}", hint, RefusedError)
    checked(answer, unit, f"set {names} of", manager)


def set_call(unit: str, properties: Properties) -> Call:
    """Change properties until the next boot (of a transient unit: until its end), all or none."""
    told: list[tuple[str, tuple[str, Any]]] = []
    for name, signature, value in properties:
        if signature.startswith("a(") and value:
            told.append((name, (signature, ())))  # otherwise systemd would append to the list
        told.append((name, (signature, value)))
    return Call(f"{MANAGER}.SetUnitProperties", (("s", unit), ("b", True), ("a(sv)", told)))


def property_of(unit: str, name: str, manager: Manager = "system") -> Conversation[Any]:
    """One property of a scope. None: this systemd does not have it, or there is no such unit."""
    try:
        path = checked((yield _of_unit("GetUnit", unit)), unit, "show", manager)[0]
        for kind in ("Slice" if unit.endswith(".slice") else "Scope", "Unit"):
            answer = yield get_call(f"{SYSTEMD}.{kind}", name, path)
            if not isinstance(answer, BusError) or answer.name not in _NO_PROPERTY:
                return checked(answer, unit, "show", manager)[0]
    except UnitGone:
        pass
    return None


def get_call(interface: str, name: str, path: str = PATH) -> Call:
    return Call(f"{PROPERTIES}.Get", (("s", interface), ("s", name)), path)


def properties_call(unit: str, interface: str, names: Collection[str]) -> Call:
    """Some properties of a unit, which systemd loads for that. Unknown ones are left out."""
    return Call(f"{PROPERTIES}.GetAll", (("s", f"{SYSTEMD}.{interface}"),), path_of(unit), only=names)


def path_of(unit: str) -> str:
    """The object of a unit on the bus (sd_bus_path_encode(3))."""
    encoded = "".join(
        chr(byte) if chr(byte).isalnum() and (at or not chr(byte).isdigit()) else f"_{byte:02x}"
        for at, byte in enumerate(unit.encode())
    )
    return f"{PATH}/unit/{encoded}"


def _of_unit(method: str, unit: str) -> Call:
    return Call(f"{MANAGER}.{method}", (("s", unit),))


# -- answers -----------------------------------------------------------------------------------------------


def checked(answer: Answer, unit: str, verb: str, manager: Manager) -> tuple[Any, ...]:
    """The values of a reply. Raises UnitGone, BackendError."""
    if not isinstance(answer, BusError):
        return answer
    if answer.name in _GONE:
        raise UnitGone(f"{unit} has ended")
    raise failure(answer, f"systemd did not {verb} {unit}", _see_status(unit, manager))


def failure(error: BusError, what: str, hint: str, kind: type[BackendError] = BackendError) -> BackendError:
    """An error of systemd's as slicer's exception."""
    if error.name == LATE:
        return BackendError(error.message, hint="is PID 1 stuck? see systemctl list-jobs")
    return kind(f"{what}: {error.message}", hint=hint)


def late(deadline_s: float, trouble: str = "") -> BusError:
    """The answer to a call without a timely answer."""
    message = f"systemd did not answer within {deadline_s:g} s"
    return BusError(LATE, f"{message}: {trouble}" if trouble else message)


def user_flag(manager: Manager) -> str:
    return " --user" if manager == "user" else ""


def _see_status(unit: str, manager: Manager) -> str:
    return f"see systemctl{user_flag(manager)} status {unit}"
