"""Users' jobs in systemd: their scopes are started, frozen, changed and stopped. Nobody is waited for.

systemd may reload, be executed again, or lose the bus meanwhile: what is not answered is asked again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from slicer.backend import scope_properties
from slicer.backend.sd_bus import BusError
from slicer.broker.rules import units
from slicer.broker.server.loop import Loop
from slicer.broker.server.manager import Answer, Manager, failure
from slicer.broker.server.slice_limits import SliceLimits
from slicer.errors import BackendError, RefusedError
from slicer.kernel import cgroup, proc
from slicer.model import Property, ScopeSpec
from slicer.state.directory import Directory

Done = Callable[[BackendError | None], None]

START_DEADLINE_S = 30.0  # PID 1 can be slow under memory pressure
FREEZE_DEADLINE_S = 25.0  # systemd waits until each process has stopped
SET_DEADLINE_S = 4.0
STOP_DEADLINE_S = 400.0  # longer than the longest stop timeout
_LOOK_AGAIN_S = 0.05
_LOOKS_S = 5.0  # for a process that should come into a scope that is there already
_THAWS = 20  # of a unit that is to stop, while somebody else freezes it again
_THAW_PAUSE_S = 0.05

_UNIT_EXISTS = "org.freedesktop.systemd1.UnitExists"
_GONE = ("org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.DBus.Error.UnknownObject")
# Errors in the request itself, which would be the same at any other time.
_FINAL = tuple(
    f"org.freedesktop.DBus.Error.{name}"
    for name in ("InvalidArgs", "InvalidSignature", "NotSupported", "PropertyReadOnly", "UnknownProperty")
)


class ScopeGone(BackendError):
    """There is no such scope any more."""


class Scopes:
    """All scopes of the broker. ``notes`` is where it remembers what limits it copied.

    Each method returns at once, and calls ``done`` later, never before it has returned. What goes wrong is
    what ``done`` gets.
    """

    def __init__(self, loop: Loop, notes: Directory, wakes: str = units.JOB_ENDED) -> None:
        """``wakes``: the unit that systemd starts when a scope ends; "" for none."""
        self._manager = Manager(loop)
        self._loop = loop
        self._limits = SliceLimits(self._manager, notes)
        self._wakes = wakes
        self._has_pidfds = True  # systemd 255
        self.above = _cgroup_of_systemd()

    def cgroup_for(self, spec: ScopeSpec) -> str:
        """The cgroup that the scope will have, as /proc/PID/cgroup names it."""
        return units.cgroup_of(spec.slice, spec.unit, self.above)

    def start(
        self, spec: ScopeSpec, uid: int, pidfd: int, done: Callable[[str | BackendError], None]
    ) -> None:
        """Start a scope with the process of ``pidfd`` in it, which stays the caller's to close.

        ``done`` gets the cgroup once systemd has started it, the process is in it, and the limits of the
        user's slice are its slice's, too. Or an error (RefusedError: it would be the same at any other time);
        then the scope is being stopped.
        """
        try:
            own = os.dup(pidfd)
        except OSError as error:
            refused = BackendError(f"{spec.unit} cannot be started: {error.strerror}")
            self._loop.after(0.0, lambda: done(refused))
            return
        _Start(self, spec, uid, own, done).ask()

    def stop(self, unit: str, done: Done) -> None:
        """Stop a scope: SIGTERM, then SIGKILL after its stop timeout. It is thawed for that.

        ``done`` is called when it has ended. One that is gone is stopped.
        """
        _Stop(self._manager, self._loop, unit, done).ask()

    def freeze(self, unit: str, done: Done) -> None:
        """Freeze a scope. ``done`` is called when no process in it runs any more, or after some seconds."""
        self._act("FreezeUnit", "freeze", unit, done)

    def thaw(self, unit: str, directory: str, done: Done) -> None:
        """Thaw a scope. ``directory`` is its cgroup's."""

        def answered(error: BackendError | None) -> None:
            # systemd thaws no unit that is being stopped, though it waits for that to end.
            is_thawed = error is None or isinstance(error, ScopeGone) or cgroup.thaw(directory)
            done(None if is_thawed and not isinstance(error, ScopeGone) else error)

        self._act("ThawUnit", "thaw", unit, answered)

    def set_properties(self, unit: str, properties: tuple[Property, ...], done: Done) -> None:
        """Change properties of a scope until it ends, all or none. Lists are replaced."""
        names = ", ".join(f"{each.name}={each.text}" for each in properties)
        told = [(each.dbus_name, each.signature, each.value) for each in properties]

        def answered(answer: Answer) -> None:
            if isinstance(answer, BusError) and answer.name in _FINAL:
                done(RefusedError(f"systemd does not take {names}: {answer.message}"))
            else:
                done(_failed(answer, unit, f"set {names} of"))

        self._manager.set_properties(unit, told, answered, SET_DEADLINE_S)

    def close(self) -> None:
        self._manager.close()

    def _act(self, method: str, verb: str, unit: str, done: Done) -> None:
        self._manager.ask(
            method, (("s", unit),), lambda answer: done(_failed(answer, unit, verb)), FREEZE_DEADLINE_S
        )


class _Start:
    """One scope on its way. Both must come: the scope with its process, and the limits of its slice."""

    def __init__(
        self, scopes: Scopes, spec: ScopeSpec, uid: int, pidfd: int,
        done: Callable[[str | BackendError], None],
    ) -> None:  # fmt: skip
        self._scopes = scopes
        self._spec = spec
        self._uid = uid
        self._pidfd = pidfd
        self._done = done
        self._expected = scopes.cgroup_for(spec)
        self._is_in = False
        self._is_limited = False
        self._looks_until_s = 0.0

    def ask(self) -> None:
        scopes = self._scopes
        scopes._limits.copy(self._uid, self._spec.slice, self._limited)
        self._ask_scope()

    def _ask_scope(self) -> None:
        properties = self._properties()
        if properties is None:
            self._scopes._loop.after(0.0, lambda: self._end(_KILLED))
            return
        arguments: tuple[tuple[str, Any], ...] = (
            ("s", self._spec.unit), ("s", "fail"),
            ("a(sv)", [(name, (signature, value)) for name, signature, value in properties]),
            ("a(sa(sv))", []),
        )  # fmt: skip
        self._scopes._manager.ask(
            "StartTransientUnit", arguments, self._started, START_DEADLINE_S, awaits_job=True
        )

    def _properties(self) -> list[tuple[str, str, Any]] | None:
        """As StartTransientUnit has them: name, signature, value. None: the process is gone."""
        spec, wakes = self._spec, self._scopes._wakes
        if self._scopes._has_pidfds:
            process: tuple[str, str, Any] = ("PIDFDs", "ah", [self._pidfd])
        else:
            pid = _pid_of(self._pidfd)
            if not pid or proc.has_ended(self._pidfd):
                return None
            process = ("PIDs", "au", [pid])
        return [
            *scope_properties(spec),
            # A lease is over when its scope is. So somebody should look then.
            *((name, "as", [wakes]) for name in ("OnSuccess", "OnFailure") if wakes),
            process,
        ]

    def _started(self, answer: Answer) -> None:
        if self._pidfd < 0:  # it has failed meanwhile
            self._scopes.stop(self._spec.unit, lambda _: None)
        elif isinstance(answer, BusError):
            if "PIDFDs" in answer.message and self._scopes._has_pidfds:
                self._scopes._has_pidfds = False
                self._ask_scope()
            elif answer.name == _UNIT_EXISTS:
                # It was asked for before: then the connection broke, or an earlier broker was killed. The
                # cgroup tells how that went.
                self._looks_until_s = proc.now_s() + _LOOKS_S
                self._try(self._look)
            else:
                self._end(self._refusal(answer))
        elif answer[0] != "done":
            unit = self._spec.unit
            self._end(
                BackendError(
                    f"systemd could not start {unit}: the start job ended as {answer[0]!r}",
                    hint=f"see journalctl -u {unit}",
                )
            )
        else:
            self._try(self._check)

    def _try(self, act: Callable[[], None]) -> None:
        """Do what reads of the process, whose start fails if that cannot be read."""
        try:
            act()
        except OSError as error:
            self._end(BackendError(f"nobody knows where its process is: {error}", where=self._spec.unit))

    def _refusal(self, error: BusError) -> BackendError:
        asked = ", ".join(f"{each.name}={each.text}" for each in self._spec.properties)
        kind = RefusedError if error.name in _FINAL else BackendError
        return kind(f"systemd refused {self._spec.unit}: {error.message}", hint=f"asked for {asked}")

    def _look(self) -> None:
        """Look whether the process has come into the scope, for as long as it may take."""
        if self._pidfd < 0:
            return
        has_ended = proc.has_ended(self._pidfd) or proc.now_s() > self._looks_until_s
        if has_ended or cgroup.of(_pid_of(self._pidfd)) == self._expected:
            self._check()
        else:
            self._scopes._loop.after(_LOOK_AGAIN_S, lambda: self._try(self._look))

    def _check(self) -> None:
        """Whether the process is where it should be.

        systemd before 257.13 can report a scope as started and drop it at once (systemd #36781). Then the
        command would run without its limits. The whole path counts: a user may give a cgroup of its own the
        name of the scope.
        """
        found = cgroup.of(_pid_of(self._pidfd))
        if proc.has_ended(self._pidfd):
            self._end(_KILLED)
        elif found != self._expected:
            self._end(
                BackendError(
                    f"systemd started {self._spec.unit}, but the process is in {found or 'no cgroup'}",
                    hint="try again; see systemd #36781",
                )
            )
        else:
            self._is_in = True
            if self._is_limited:
                self._end(None)

    def _limited(self, error: BackendError | None) -> None:
        self._is_limited = True
        if error is not None or self._is_in:
            self._end(error)

    def _end(self, error: BackendError | None) -> None:
        if self._pidfd < 0:
            return  # of the two that are awaited, the other one failed before
        os.close(self._pidfd)
        self._pidfd = -1
        if error is not None and not self._has_strangers():
            # Also a scope that is empty: systemd may never see that it is.
            self._scopes.stop(self._spec.unit, lambda _: None)
        self._done(self._expected if error is None else error)

    def _has_strangers(self) -> bool:
        """Whether another user's process is in the scope. It was not asked for, and must not be killed.

        systemd before 255 takes pids. If the keeper dies at that moment, somebody else may get its pid.
        """
        if self._scopes._has_pidfds:
            return False
        directory = cgroup.path_of(self._expected)
        return any(proc.uid_of(pid) not in (self._uid, None) for pid in cgroup.processes(directory))


_KILLED = BackendError("its process was killed on its way into the scope")


class _Stop:
    """A scope that is to end. Somebody may freeze it at the same time, and again."""

    def __init__(self, manager: Manager, loop: Loop, unit: str, done: Done) -> None:
        self._manager = manager
        self._loop = loop
        self._unit = unit
        self._done = done
        self._thaws = 0

    def ask(self) -> None:
        arguments = (("s", self._unit), ("s", "replace"))
        self._manager.ask("StopUnit", arguments, self._answered, STOP_DEADLINE_S, awaits_job=True)

    def _answered(self, answer: Answer) -> None:
        if isinstance(answer, BusError):
            error = _failed(answer, self._unit, "stop")
            self._done(None if isinstance(error, ScopeGone) else error)
        elif answer[0] != "frozen":
            self._done(None)
        elif self._thaws < _THAWS:
            # systemd 257 does not stop a frozen unit, and 252 thaws it by itself.
            self._thaws += 1
            self._manager.ask("ThawUnit", (("s", self._unit),), self._thawed, STOP_DEADLINE_S)
        else:
            self._done(BackendError(f"systemd did not stop {self._unit}: it is frozen again and again"))

    def _thawed(self, answer: Answer) -> None:
        pause_s = _THAW_PAUSE_S if isinstance(answer, BusError) else 0.0
        self._loop.after(pause_s, self.ask)


def _failed(answer: Answer, unit: str, verb: str) -> BackendError | None:
    if not isinstance(answer, BusError):
        return None
    if answer.name in _GONE:
        return ScopeGone(f"{unit} has ended")
    return failure(answer, f"systemd did not {verb} {unit}", hint=f"see systemctl status {unit}")


def _pid_of(pidfd: int) -> int:
    """The process of a pidfd; 0 when it has ended and was waited for."""
    return max(0, proc.pid_of(pidfd) or 0)


def _cgroup_of_systemd() -> str:
    """The cgroup below which systemd has its units; "" is the root."""
    return cgroup.of(1).removesuffix("/init.scope")
