"""Users' jobs in systemd: starts, freezes, changes and stops their scopes without waiting.

systemd may reload, be re-executed, or lose the bus in the meantime: unanswered calls are repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from slicer.backend import manager_calls as calls
from slicer.backend.manager_calls import START_DEADLINE_S, UnitExists
from slicer.backend.scopes import leaving
from slicer.broker.rules import units
from slicer.broker.server.loop import Loop
from slicer.broker.server.manager import Manager
from slicer.broker.server.slice_limits import SliceLimits
from slicer.errors import BackendError
from slicer.kernel import cgroup, proc
from slicer.model import Property, ScopeSpec, job_of_unit
from slicer.state.directory import Directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.backend.manager_calls import Conversation

Done = Callable[[BackendError | None], None]

FREEZE_DEADLINE_S = 25.0  # systemd waits until each process has stopped
SET_DEADLINE_S = 4.0
STOP_DEADLINE_S = 400.0  # longer than the longest stop timeout
_LOOK_AGAIN_S = 0.05
_LOOKS_S = 5.0  # between checks for a process that should enter an existing scope


class Scopes:
    """All scopes of the broker. ``notes`` is where it remembers copied limits.

    Each method returns at once, and calls ``done`` later, never before it has returned. ``done`` gets any
    error.
    """

    def __init__(self, loop: Loop, notes: Directory, wakes: str = units.JOB_ENDED) -> None:
        """``wakes``: the template of what systemd starts when a scope ends; "" for none."""
        self._manager = Manager(loop)
        self._loop = loop
        self._limits = SliceLimits(self._manager, notes)
        self._wakes = wakes
        self._has_pidfds = True  # assumed until shown otherwise: systemd 255
        self.above = _cgroup_of_systemd()

    def cgroup_for(self, spec: ScopeSpec) -> str:
        """The scope's future cgroup, in the form of /proc/PID/cgroup."""
        return units.cgroup_of(spec.within or spec.slice, spec.unit, self.above)

    def start(
        self, spec: ScopeSpec, uid: int, pidfd: int, done: Callable[[str | BackendError], None]
    ) -> None:
        """Start a scope with the process of ``pidfd`` in it. The caller keeps ``pidfd``.

        ``done`` gets the cgroup once systemd has started it, the process is in it, and the user's slice
        limits also apply to its slice. Or it gets an error (RefusedError: it would recur at any time); then
        the scope is being stopped.
        """
        try:
            own = os.dup(pidfd)
        except OSError as error:
            refused = BackendError(f"{spec.unit} cannot be started: {error.strerror}")
            self._loop.after(0.0, lambda: done(refused))
            return
        _Start(self, spec, uid, own, done).ask()

    def stop(self, unit: str, done: Done) -> None:
        """Stop a scope: SIGTERM, then SIGKILL after its stop timeout. A frozen scope is thawed first.

        ``done`` is called when it has ended. A scope that does not exist counts as stopped.
        """
        self._manager.converse(calls.stop(unit), done, STOP_DEADLINE_S)

    def freeze(self, unit: str, done: Done) -> None:
        """Freeze a scope. ``done`` is called when no process in it runs any more, or after some seconds."""
        self._manager.converse(calls.freeze(unit), done, FREEZE_DEADLINE_S)

    def thaw(self, unit: str, directory: str, done: Done) -> None:
        """Thaw a scope. ``directory`` is its cgroup's."""
        steps = calls.thaw(unit, lambda: cgroup.thaw(directory))
        self._manager.converse(steps, done, FREEZE_DEADLINE_S)

    def set_properties(self, unit: str, properties: tuple[Property, ...], done: Done) -> None:
        """Change properties of a scope until it ends, all or none. Lists are replaced."""
        self._manager.converse(calls.set_properties(unit, properties), done, SET_DEADLINE_S)

    def close(self) -> None:
        self._manager.close()


class _Start:
    """One starting scope. Two things must finish: the scope with its process, and the limits of its slice."""

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
        self._awaited = 2
        self._has_ended = False

    def ask(self) -> None:
        scopes = self._scopes
        scopes._limits.copy(self._uid, self._spec.slice, self._came)
        scopes._manager.converse(self._steps(), self._answered, START_DEADLINE_S)

    def _steps(self) -> Conversation[None]:
        """Start the scope, and verify that the process is in it. Raises BackendError."""
        # A lease ends with its scope. Then the broker should check it.
        wakes = self._scopes._wakes.replace("@", f"@{job_of_unit(self._spec.unit)}")
        added = [(name, "as", [wakes]) for name in ("OnSuccess", "OnFailure") if wakes]
        try:
            try:
                yield from calls.start_scope(self._spec, self._pidfd, self._pid, added)
            except UnitExists:
                # It was requested before: then the connection broke, or an earlier broker was killed. The
                # cgroup shows the result.
                until_s = proc.now_s() + _LOOKS_S
                while self._cgroup() != self._expected and proc.now_s() <= until_s:
                    if proc.has_ended(self._pidfd):
                        break
                    yield _LOOK_AGAIN_S
            found, has_ended = self._cgroup(), proc.has_ended(self._pidfd)
        except OSError as error:
            unit = self._spec.unit
            raise BackendError(f"the cgroup of its process cannot be read: {error}", where=unit) from error
        # The whole path counts: a user may give its own cgroup the name of the scope.
        calls.check_place(self._spec.unit, found, is_its=found == self._expected, has_ended=has_ended)
        if self._spec.adopts:
            unit = self._spec.unit
            yield from calls.take_in(unit, leaving(self._spec.adopts, self._uid, unit), "system")

    def _pid(self) -> int:
        """The process, for a systemd that accepts no pidfd. Raises BackendError if it has ended."""
        self._scopes._has_pidfds = False
        pid, has_ended = _pid_of(self._pidfd), proc.has_ended(self._pidfd)
        calls.check_place(self._spec.unit, "", is_its=True, has_ended=has_ended or not pid)
        return pid

    def _cgroup(self) -> str:
        return cgroup.of(_pid_of(self._pidfd))

    def _answered(self, error: BackendError | None) -> None:
        os.close(self._pidfd)
        if self._has_ended:  # its slice could not be limited
            self._stop()
        else:
            self._came(error)

    def _came(self, error: BackendError | None) -> None:
        """One of the two has finished."""
        self._awaited -= 1
        if self._has_ended or (error is None and self._awaited):
            return
        self._has_ended = True
        if error is not None:
            self._stop()
        self._done(self._expected if error is None else error)

    def _stop(self) -> None:
        """Stop even an empty scope: systemd may never notice that it is empty."""
        if not self._has_strangers() and not self._spec.adopts:  # what was adopted must not be killed
            self._scopes.stop(self._spec.whole, lambda _: None)

    def _has_strangers(self) -> bool:
        """Whether another user's process is in the scope. It was not requested, and must not be killed.

        systemd before 255 accepts only pids. If the keeper dies at that moment, its pid may be reused.
        """
        if self._scopes._has_pidfds:
            return False
        directory = cgroup.path_of(self._expected)
        return any(proc.uid_of(pid) not in (self._uid, None) for pid in cgroup.processes(directory))


def _pid_of(pidfd: int) -> int:
    """The process of a pidfd; 0 if it has been reaped."""
    return max(0, proc.pid_of(pidfd) or 0)


def _cgroup_of_systemd() -> str:
    """The cgroup below which systemd has its units; "" is the root."""
    return cgroup.of(1).removesuffix("/init.scope")
