"""``slicer queue`` in a machine that is shut down, which is this test's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.queue.model import JobState
from slicer.queue.state import attempt, folding
from slicer.queue.state.journal import Journal
from tests.machines.host import Unavailable
from tests.machines.machine import Command
from tests.machines.namespace import NamespaceMachine
from tests.machines.recipe import SUITES
from tests.machines.settings import ci
from tests.patience import until
from tests.process.harness import Box
from tests.process.queue_box import QueueBox

# Root's queue and alice's as services, and one of root's that is dead when the machine goes down.
_QUEUES = r"""
set -e
loginctl enable-linger alice
install -d -o alice /var/tmp/alice
for name in alive dead alice; do
    mkdir -p /var/tmp/$name
    echo '[profile=light] echo up; exec sleep 1000' > /var/tmp/$name/jobs.txt
done
cd /var/tmp/alive; slicer queue --detach jobs.txt
cd /var/tmp/dead; slicer queue jobs.txt </dev/null >/dev/null 2>&1 & queue=$!
cd /var/tmp/alice; su alice -c 'XDG_RUNTIME_DIR=/run/user/1000 slicer queue --detach jobs.txt'
for name in alive dead alice; do
    until grep -qs up /var/tmp/$name/slicer_logs/job0001.log; do sleep 0.1; done
done
kill -9 $queue
"""
_NAMES = ("alive", "dead", "alice")


@pytest.fixture
def machine() -> Iterator[NamespaceMachine]:
    try:
        with NamespaceMachine(SUITES["trixie"]) as made:
            yield made
    except Unavailable as error:
        (pytest.fail if ci() else pytest.skip)(str(error))


def test_what_an_orderly_shutdown_ends_runs_again(machine: NamespaceMachine) -> None:  # Q17, E7, U16
    machine.execute(Command(["sh", "-c", _QUEUES], cwd="/"), timeout_s=120).checked()
    root = f"/proc/{machine.init}/root/var/tmp"
    folders = "var/lib/slicer/queues", "home/alice/.local/state/slicer/queues"
    kept = [os.open(f"{root}/../../{folder}", os.O_RDONLY | os.O_DIRECTORY) for folder in folders]
    logs = {name: os.open(f"{root}/{name}/slicer_logs", os.O_RDONLY | os.O_DIRECTORY) for name in _NAMES}
    try:
        machine.popen(Command(["systemctl", "poweroff"], cwd="/")).wait()
        until(lambda: not os.path.exists(f"/proc/{machine.init}"), "it is off")
        assert [state_in(logs[name]).status for name in ("alive", "alice")] == ["pending", "pending"]
        for fd in kept:  # both are to go on after the boot
            assert sum(name.endswith(".detached") for name in os.listdir(fd)) == 1  # U16
        folder = os.open("attempts", os.O_RDONLY | os.O_DIRECTORY, dir_fd=logs["dead"])
        try:
            found = attempt.read(folder, state_in(logs["dead"]).job)
        finally:
            os.close(folder)
        assert found is not None
        assert found.outcome is not None
        assert (found.outcome.reason, found.outcome.ended_by) == ("stopped", "shutdown")
    finally:
        for fd in (*logs.values(), *kept):
            os.close(fd)


# Whoever asks to end is a systemd that shuts down.
_SHUTDOWN = """\
from slicer.backend import shutdown
from slicer.kernel import proc
proc.is_systemd = lambda pid: True
shutdown.is_shutting_down = lambda manager: True
"""


def test_so_does_a_job_without_a_scope(make_box: Callable[[int], Box], tmp_path: Path) -> None:  # Q17
    queues = QueueBox(make_box(2))
    (tmp_path / "sitecustomize.py").write_text(_SHUTDOWN)
    queues.write("[profile=light] hold a 3")
    queue = queues.start(env={"PYTHONPATH": f"{tmp_path}:{queues.box.env['PYTHONPATH']}"})
    queues.started("a")
    for pid in (queue.pid, *queues.slicers("a"), int(queues.box.started("a"))):
        os.kill(pid, signal.SIGTERM)
    assert queue.wait() == 143
    assert queues.statuses()["hold a 3"][0] == "pending"
    queue = queues.start()
    until(lambda: queues.starts()["a"] == 2, "it runs again")
    queues.let("a")
    assert queue.wait() == 3
    queues.assert_clean()


def state_in(logs: int) -> JobState:
    """The one job of the queue with this log directory, which outlives its machine while it is open."""
    (state,) = folding.fold(Journal.peek(f"/proc/self/fd/{logs}") or ()).values()
    return state
