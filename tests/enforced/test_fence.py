"""The device fence of root's jobs really holds: each opens its own GPUs and no others (X1)."""

from __future__ import annotations

import pytest

from tests.fake_nvml import FakeNvml
from tests.systemd.helpers import dockers, systemctl
from tests.systemd.helpers.containers import IMAGE, RUN, make_image, remove_all
from tests.systemd.helpers.jobs import Done, Slicer, configured
from tests.systemd.helpers.nodes import EVERYTHING, make_node, remove_node

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.systemd.helpers.nodes"]
pytestmark = [pytest.mark.enforced, pytest.mark.usefixtures("nodes")]

BOTH = {"DeviceAllow", "DevicePolicy"}


def fences(slicer: Slicer, done: Done) -> set[str]:
    """What the outcome claims of the fence."""
    return BOTH & set(slicer.outcome_of(done).enforced)


@pytest.mark.core
def test_a_job_opens_its_own_gpus_and_no_others(slicer: Slicer, eight: FakeNvml, look: str) -> None:  # X1
    config = '[profiles.loose]\nfence = "off"\n[profiles.screen]\ndevices = ["/dev/nvidia-modeset"]\n'
    config += '[profiles.own]\ndevice_policy = "closed"\ndevice_allow = ["/dev/nvidia3 rw"]\n'
    env = {**eight.env, **configured(slicer.directory, config)}
    for options, expected in (
        ((), ""),
        (("--gpus", "1", "--gpu", "1"), " 6 ctl"),
        (("--gpu", "0,7", "--vram", "1G", "--exec"), " 0 7 ctl"),
        (("--gpus", "8"), " 0 1 2 3 4 5 6 7 ctl"),
        (("-p", "loose"), EVERYTHING.removeprefix("open:")),
        (("-p", "screen"), " -modeset"),
        (("-p", "own"), " 3"),
    ):
        done = slicer.run("-q", *options, "--", "sh", "-c", look, env=env)
        assert done.code == 0, done
        assert done.stdout.splitlines()[0] == f"open:{expected}", (options, done)
        if "own" not in options:
            assert "closed:" not in done.stdout, (options, done)
        if "--exec" not in options:
            assert fences(slicer, done) == (set() if "loose" in options else BOTH), options


@pytest.mark.core
def test_the_fence_stays_whatever_happens_to_the_scope(
    slicer: Slicer, eight: FakeNvml, look: str
) -> None:  # X1: a driver that comes, a reload, a change of properties
    for name in ("nvidia3", "nvidia4"):
        remove_node(name)
    first, second = slicer.gate(), slicer.gate()
    script = f"{look}; : < {first}; {look}; : < {second}; {look}"
    job = slicer.start("-q", "--gpu", "3", "--", "sh", "-c", script, env=eight.env)  # /dev/nvidia4
    job.said("open: ctl\n")
    for name in ("nvidia3", "nvidia4"):
        make_node(name)
    first.open()
    job.said("open: 4 ctl\n")
    systemctl.output("systemctl", "daemon-reload")
    systemctl.output("systemctl", "set-property", job.lease().unit, "MemoryHigh=1G", "CPUWeight=33")
    slicer.command("set", job.lease().job, "TasksMax=100")
    second.open()
    done = job.end()
    assert done.stdout == "open: ctl\nopen: 4 ctl\nopen: 4 ctl\n", done
    assert fences(slicer, done) == BOTH
    outcome = slicer.outcome_of(done)
    assert not any(text.startswith("Device") for text in (*outcome.changed, *outcome.changed_outside))


@pytest.mark.core
def test_a_job_that_had_to_wait_is_fenced_before_its_command_starts(
    slicer: Slicer, eight: FakeNvml, look: str
) -> None:  # X1, X4: its scope stands before anybody knows its GPUs
    for options in ((), ("--exec",)):
        gate = slicer.gate()
        holder = slicer.hold(gate, "-q", "--gpu", "2,5", env=eight.env)
        waiter = slicer.start(*options, "--gpus", "1", "--gpu", "2,5", "--", "sh", "-c", look, env=eight.env)
        waiter.said("waiting for")
        gate.open()
        assert holder.end().code == 0
        done = waiter.end()
        assert done.stdout in ("open: 5 ctl\n", "open: 2 ctl\n"), done
        if not options:
            assert fences(slicer, done) == BOTH
            assert slicer.outcome_of(done).changed_outside == ()
    slicer.dirty = True  # nobody stays to take the lease of --exec off the ledger


def test_a_queues_jobs_have_it_too(slicer: Slicer, eight: FakeNvml, look: str) -> None:  # X1, Q
    (slicer.directory / "jobs.txt").write_text(f"[gpus=1] {look}\n[gpus=0] {look}\n")
    slicer.command("queue", "jobs.txt", via=("env", "-C", str(slicer.directory)), **eight.env)
    found = [path.read_text() for path in sorted((slicer.directory / "slicer_logs").glob("*.log"))]
    assert sorted(text.splitlines()[0] for text in found) == ["open:", "open: 7 ctl"], found


def test_a_job_inside_of_a_fenced_job_sees_what_the_fence_opens(
    slicer: Slicer, eight: FakeNvml, look: str
) -> None:  # X1, K7: without a broker nobody outside of the fence can be asked
    env = {**eight.env, "FAKE_NVML_NODES": "1"}
    inner = f"slicer run --gpus 1 -- sh -c '{look}'"
    done = slicer.run("-q", "--", "sh", "-c", inner, env=env)
    assert done.code == 125, done
    assert "fenced off from this process" in done.stderr
    done = slicer.run("-q", "--gpu", "0", "--", "sh", "-c", inner, env=env)
    assert done.stdout == "open: 7 ctl\n", done
    more = slicer.run("-q", "--gpu", "0", "--", "slicer", "run", "--gpus", "2", "--", "true", env=env)
    assert more.code == 75, more  # the one that it sees is the outer job's
    assert "and sees only the GPUs that this allows" in more.stderr


def test_cudas_numbers_count_what_the_fence_opens(
    slicer: Slicer, eight: FakeNvml, kernel_list: None
) -> None:  # X1, U18: else a job by index would find no GPU, or another's
    show = 'echo "$CUDA_VISIBLE_DEVICES $SLICER_GPU_INDICES"'
    env = {**eight.env, **configured(slicer.directory, '[profiles.loose]\nfence = "off"\n')}
    by_index = ("-q", "--gpu-ids", "index")
    for options, expected in (
        (("--gpu", "2,5"), "0,1 0,1"),
        (("--gpu", "5", "--exec"), "0 0"),
        (("--gpu", "2,5", "-p", "loose"), "2,5 2,5"),
    ):
        done = slicer.run(*by_index, *options, "--", "sh", "-c", show, env=env)
        assert done.stdout == f"{expected}\n", (options, done)
    (slicer.directory / "jobs.txt").write_text(f"[gpus=2] {show}\n")
    slicer.command("queue", "--gpu", "2,5", "jobs.txt", via=("env", "-C", str(slicer.directory)), **env)
    (log,) = (slicer.directory / "slicer_logs").glob("*.log")
    assert log.read_text().split()[-1] == "0,1"


def test_where_there_can_be_none_it_is_said_and_not_claimed(
    public_slicer: Slicer, look: str
) -> None:  # X1: a limit that does not act is not claimed
    slicer = public_slicer
    options = ("-q", "--backend", "plain")
    done = slicer.run("--backend", "plain", "--", "true")
    assert "no device fence: " in done.stderr
    config = configured(slicer.directory, '[profiles.strict]\nfence = "on"\n')
    done = slicer.run(*options, "-p", "strict", "--", "sh", "-c", "echo ran", env=config)
    assert (done.code, done.stdout) == (125, ""), done
    assert "the device fence is required" in done.stderr
    assert slicer.run("-q", "-p", "strict", "--", "sh", "-c", look, env=config).stdout == "open:\n"


def test_a_container_opens_the_jobs_gpus_and_no_others(slicer: Slicer, eight: FakeNvml) -> None:  # X1, U5
    def opened(node: str) -> str:
        container = (*RUN, f"--device={node}", IMAGE, "cat", node)
        return slicer.run("-q", "--gpu", "1", "--", *container, env=eight.env).stderr

    make_image()
    assert "No such device or address" in opened("/dev/nvidia6")  # it has no driver
    assert "not permitted" in opened("/dev/nvidia0")
    remove_all()


def test_a_container_of_dockers_opens_the_jobs_gpus_and_no_others(
    slicer: Slicer, eight: FakeNvml
) -> None:  # X1, U5
    def opened(node: str) -> str:
        container = (*dockers.RUN, "--privileged", dockers.IMAGE, "cat", node)
        return slicer.run("-q", "--gpu", "1", "--", *container, env=eight.env).stderr

    with dockers.dockerd():
        assert "No such device or address" in opened("/dev/nvidia6")  # it has no driver
        assert "not permitted" in opened("/dev/nvidia0")
