"""``slicer run --share`` over fake NVML and CUDA libraries: what reaches the job, and what comes of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slicer.share import program
from tests.built import Built
from tests.fake_cuda import FakeCuda
from tests.fake_cuda import clients as cuda_clients
from tests.fake_nvml import USE, FakeNvml
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, Gate, kill_9, state_of, text

pytest_plugins = ["tests.fake_nvml", "tests.fake_cuda"]

GPU_A = "GPU-00000000-0000-0000-0000-000000000000"


@pytest.fixture(scope="session")
def client(built: Built, fake_cuda_library: Path) -> str:
    """A program that does with CUDA what its input says."""
    return str(built("clients", lambda to: cuda_clients.build(to, fake_cuda_library)) / "client")


@pytest.fixture
def shared(box: Box, gpus: FakeNvml, fake_cuda_library: Path, tmp_path: Path) -> Box:
    """A box with the GPUs' driver and its management library."""
    if program.why_not_library(program.library_path()):
        pytest.skip("the library is not built: SLICER_BUILD_SHARE=no")
    cuda = FakeCuda(fake_cuda_library, tmp_path, gpus.state)
    paths = f"{gpus.library}:{fake_cuda_library}"
    box.env.update({**cuda.env, **gpus.env, "LD_LIBRARY_PATH": paths})
    return box


def session(*commands: str) -> str:
    """What a client is to do."""
    return "".join(f"{command}\n" for command in ("init", "context 0", *commands))


def run(box: Box, client: str, *options: str, does: str) -> subprocess.CompletedProcess[str]:
    """Run a client under slicer to its end."""
    script = f"printf '%s' '{does}' | {client} dlsym"
    return box.run(*options, "--", "sh", "-c", script)


def outcome(box: Box, name: str = "") -> Any:
    """The last job's sharing."""
    return next(each for each in box.outcomes() if not name or each.name == name).sharing


def job_files(box: Box) -> list[str]:
    return sorted(path.name for path in (box.state / "share").glob("????????????"))


# X7: the cap is the card to the program, and what came of it is in the outcome
def test_a_job_cannot_allocate_more_than_its_cap(shared: Box, client: str, tmp_path: Path) -> None:
    file = tmp_path / "outcome.json"
    does = session("alloc linear 3000", "alloc linear 4000", "alloc linear 2000", "info", "total")
    done = run(shared, client, "--vram", "8G", "--share", "both", "--outcome", str(file), does=does)
    results = [line.split()[0] for line in done.stdout.splitlines()]
    assert results == ["0", "0", "0", "0", "2", "0", "0"], done
    assert done.stdout.splitlines()[-2].split()[-1] == "8192"
    sharing = outcome(shared)
    assert (sharing.wants, sharing.mode, sharing.processes) == ("both", "yield", 1)
    assert (sharing.allocations, sharing.refused, sharing.peak_mib) == (2, 1, (7000,))
    assert json.loads(file.read_text())["sharing"]["refused"] == 1
    assert job_files(shared) == []


def test_what_an_allocation_was_refused_for_is_in_the_last_line(shared: Box, client: str) -> None:  # X7
    does = session("alloc linear 9000")
    script = f"printf '%s' '{does}' | {client} dlsym; exit 3"
    done = shared.run("--vram", "8G", "--share", "cap", "--name", "big", "--", "sh", "-c", script)
    assert done.returncode == 3
    assert "big: exit 3" in done.stderr
    assert "1 allocation refused by the cap" in done.stderr


def test_without_share_nothing_is_made_or_told(shared: Box) -> None:
    done = shared.run("--vram", "8G", "--", "sh", "-c", "env")
    assert "SHARE" not in done.stdout.replace("FAKE_CUDA_SHARED", "")
    assert "LD_PRELOAD" not in done.stdout
    assert outcome(shared) is None
    assert not (shared.state / "share").exists()


# X7: what cannot be capped does not run; what cannot be locked runs, and it is said
@pytest.mark.parametrize(("share", "code"), [("cap", 2), ("both", 2), ("lock", 0)])
def test_a_program_that_cannot_be_preloaded(shared: Box, tmp_path: Path, share: str, code: int) -> None:
    static = tmp_path / "static"
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-static", "-o", static, source], check=True)
    done = shared.run("--vram", "8G", "--share", share, "--", str(static))
    assert done.returncode == code, done.stderr
    assert f"{static} is statically linked" in done.stderr
    assert ("no turns are taken" in done.stderr) is (share == "lock")
    troubles = [each.sharing.troubles for each in shared.outcomes() if each.sharing is not None]
    assert troubles == ([("not-preloaded",)] if share == "lock" else [])


def test_a_cap_that_a_file_asks_for_is_an_error_of_the_file(shared: Box, tmp_path: Path) -> None:  # X7
    config = tmp_path / "config.toml"
    config.write_text('[profiles.x]\ninherits = "gpu"\nvram = "8G"\nshare = "cap"\n')
    script = tmp_path / "script"
    script.write_text("#!/nowhere/else\n")
    shutil.copy(sys.executable, tmp_path / "other")
    with (tmp_path / "other").open("r+b") as other:
        other.seek(18)
        other.write(b"\x03\0")  # as of an i386
    done = shared.run("-p", "x", "--", str(tmp_path / "other"), env={"SLICER_CONFIG": str(config)})
    assert done.returncode == 125
    assert f"{config}:4: share: no cap can be applied: {tmp_path}/other is a program for i386" in done.stderr


# D2, D3: the job learns what it was asked for
def test_the_mode_reaches_the_job(shared: Box) -> None:
    options = ("--vram", "8G", "--share", "lock", "--share-mode", "launches=3")
    done = shared.run(*options, "--", "sh", "-c", "env; stat -c %a $SLICER_SHARE_FILE")
    said = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert (said["SLICER_SHARE"], said["SLICER_SHARE_LAUNCHES"]) == ("lock", "3")
    assert said["LD_PRELOAD"] == program.library_path()
    assert done.stdout.splitlines()[-1] == "600"
    assert outcome(shared).mode == "launches=3"


def held(box: Box, client: str, gate: Gate, *options: str, does: str) -> tuple[subprocess.Popen[bytes], Any]:
    """A job that has done this with CUDA, and waits at the gate; and its lease."""
    script = f"{{ printf '%s' '{does}'; echo ready >>$LOG; read x <{gate.path}; }} | {client} dlsym"
    process = box.start("--name", "held", *options, "--", "sh", "-c", script)
    until(lambda: "ready" in box.lines() or process.poll() is not None, "the client runs")
    assert process.poll() is None, process.communicate()
    lease = until(lambda: next((each for each in box.leases() if each.keeper), None), "its keeper is known")
    until(lambda: _charged(box) > 0, "it has allocated")
    return process, lease


def _charged(box: Box) -> int:
    """What all sharing jobs are charged with, in MiB, by slicer status."""
    return sum(sum(job["sharing"]["charged_mib"]) for job in status(box)["jobs"] if job["sharing"])


def status(box: Box) -> Any:
    done = subprocess.run(
        [*box.prefix, *SLICER, "status", "--json"], env=box.env, capture_output=True, check=True, text=True
    )
    return json.loads(done.stdout)


SHARE = ("--vram", "8G", "--share", "both")


# D1: whoever writes the outcome has what was counted, and no file is left
@pytest.mark.parametrize("killed", ["supervisor", "keeper"])
def test_the_counters_survive_a_kill(shared: Box, client: str, gate: Gate, killed: str) -> None:
    process, lease = held(shared, client, gate, *SHARE, does=session("alloc linear 100"))
    assert job_files(shared) == [lease.job]
    kill_9(process.pid if killed == "supervisor" else lease.keeper)
    if killed == "supervisor":
        gate.open()
    until(lambda: shared.outcomes(), "the outcome is written")
    assert (outcome(shared).processes, outcome(shared).peak_mib) == (1, (100,))
    until(lambda: not job_files(shared), "the job's file is gone")
    process.communicate()


def test_what_a_job_leaves_that_was_killed_whole_is_swept(shared: Box, client: str, gate: Gate) -> None:
    process, lease = held(shared, client, gate, *SHARE, does=session("alloc linear 100"))
    kill_9(process.pid, lease.keeper, *shared.processes())
    assert job_files(shared) == [lease.job]
    shared.snapshot()  # which takes its lease off
    assert shared.run(*SHARE, "--", "true").returncode == 0
    assert job_files(shared) == []


@pytest.mark.parametrize(
    "point", ["share-made", "supervisor-told-keeper", "ending-written", "ending-released"]
)
def test_no_file_outlives_a_job_killed_on_the_way(shared: Box, point: str) -> None:
    process = shared.start(*SHARE, "--", "true", env={"SLICER_FAULTS": f"{shared.state}:{point}"})
    until(lambda: state_of(process.pid) == "T", f"it stands at {point}")
    Path(f"{shared.state}.go").touch()  # for the keeper, which comes there too
    kill_9(process.pid)
    until(lambda: not shared.processes(), "nothing of it is left")
    shared.snapshot()
    assert shared.run(*SHARE, "--name", "next", "--", "true").returncode == 0
    assert job_files(shared) == []
    found = [each.sharing for each in shared.outcomes()]
    assert len(found) == (1 if point == "share-made" else 2)
    assert all(each is not None and each.troubles == () for each in found)


# D2: the turns of two jobs, the one of higher priority first
def test_two_jobs_take_turns(shared: Box, client: str, gate: Gate) -> None:
    """While one has started more work than it can do at once, another one comes that goes before it."""
    low = ("--name", "low", "--vram", "8G", "--share", "lock")
    high = ("--name", "high", "--vram", "8G", "--share", "both", "--priority", "10")
    fifo = shared.root / "answers"
    script = (
        f"mkfifo {fifo}; (printf 'init\\ncontext 0\\n'; while [ ! -e {gate.path}.end ];"
        f" do printf 'spin 500 - 20\\n'; read x; done; exec >/dev/null; cat) <{fifo} | {client} dlsym >{fifo}"
    )
    first = shared.start(*low, "--", "sh", "-c", script)
    until(lambda: _sharing(shared, "low", "turns") or first.poll() is not None, "it has its turn")
    second = run(shared, client, *high, does=session("alloc linear 10", "spin 100", "sync"))
    assert second.returncode == 0, second
    Path(f"{gate.path}.end").touch()
    _, err = first.communicate()
    assert first.returncode == 0, err
    found = outcome(shared, "high")
    assert (found.turns, found.gated, found.waits, found.troubles) == (1, 1, 1, ())
    assert outcome(shared, "low").turns >= 2
    assert outcome(shared, "low").troubles == ()


def _sharing(box: Box, name: str, field: str) -> Any:
    """A figure of a sharing job, by slicer status."""
    found = [job["sharing"] for job in status(box)["jobs"] if job["name"] == name]
    return found[0][field] if found and found[0] else None


# D1: what a job inside does is the job's, and slicer inside of it sees the card
def test_a_job_inside_belongs_to_it(shared: Box, client: str) -> None:
    does = session("alloc linear 100")
    inner = f"inner --vram 4G --share lock -- sh -c \"printf '%s' '{does}' | {client} dlsym\""
    see = f"{' '.join(SLICER[:1])} -c '{SLICER[2]}' status --json"
    done = shared.run(*SHARE, "--name", "outer", "--", "sh", "-c", f"{inner}; {see} >$LOG")
    assert done.returncode == 0, done.stderr
    seen = json.loads(shared.log.read_text())
    assert {each["memory_mib"] for each in seen["gpus"]["all"]} == {81559}
    assert outcome(shared, "outer").allocations == 1
    assert outcome(shared, "outer").processes == 1


def test_a_cap_of_its_own_needs_gpus_of_its_own(shared: Box) -> None:  # X7
    done = shared.run("--vram", "8G", "--", "inner", "--vram", "4G", "--share", "cap", "--", "true")
    assert done.returncode == 2
    assert "runs inside a job that shares nothing" in done.stderr


def test_the_variables_of_a_job_that_has_ended_are_not_the_next_ones(shared: Box) -> None:
    """As a server has them that was started in a job and lives on."""
    gone = {"SLICER_SHARE_FILE": f"{shared.state}/share/{'0' * 12}", "SLICER_SHARE": "cap"}
    done = shared.run("--vram", "1G", "--", "env", env={**gone, "LD_PRELOAD": program.library_path()})
    assert done.returncode == 0
    assert not [line for line in done.stdout.splitlines() if line.startswith(("LD_PRELOAD", "SLICER_SHARE"))]


# X7: NVML sees what the library does not
def test_what_contexts_use_is_kept_out_of_the_cap(shared: Box, client: str, gate: Gate) -> None:
    process, _ = held(shared, client, gate, *SHARE, does=session("alloc linear 100"))
    file = next((shared.state / "share").glob("????????????"))

    def overhead_mib() -> int:
        return int.from_bytes(file.read_bytes()[944:952], "little") >> 20

    until(lambda: overhead_mib() == 300, "the context is known", 10.0)  # as large as the fake's
    gate.open()
    process.communicate()
    assert outcome(shared).overhead_mib == (300,)
    assert shared.outcomes()[0].vram_peak_mib == (400,)


@pytest.mark.parametrize("over_cap", ["warn", "end"])
def test_a_job_that_gets_past_its_cap(shared: Box, gate: Gate, tmp_path: Path, over_cap: str) -> None:  # X7
    config = tmp_path / "config.toml"
    wanted = f'vram = "1G"\nshare = "cap"\nover_cap = "{over_cap}"'
    config.write_text(f'[profiles.x]\ninherits = "gpu"\n{wanted}\n')
    script = f"{USE}use 0 9000; read x <{gate.path}"
    env = {"SLICER_CONFIG": str(config)}
    process = shared.start("-p", "x", "--name", "past", "--", "sh", "-c", script, env=env)
    assert process.stderr is not None
    said = until_said(process, "it got past the library")
    assert "past uses 8.8G of GPU 0, beyond its cap of 1.0G" in said
    if over_cap == "warn":
        gate.open()
    process.communicate()
    done = shared.outcomes()[0]
    assert done.sharing is not None
    assert done.sharing.got_past_cap == 1
    ended = ("stopped", "slicer cap") if over_cap == "end" else ("exited", "")
    assert (done.reason, done.ended_by) == ended


def until_said(process: subprocess.Popen[bytes], words: str) -> str:
    """What slicer says, up to a line with these words."""
    assert process.stderr is not None
    said = ""
    while words not in said:
        line = text(process.stderr.readline())
        assert line, said
        said += line
    return said


def test_a_job_that_uses_its_gpu_without_the_library_is_told_of(shared: Box, gate: Gate) -> None:  # D5
    script = f"{USE}use 0 500; read x <{gate.path}"
    process = shared.start(*SHARE, "--name", "blind", "--", "sh", "-c", script)
    said = until_said(process, "without the library")
    assert said.count("blind uses its GPU without the library") == 1
    gate.open()
    process.communicate()
    assert outcome(shared).processes == 0


def test_simulated_gpus_are_not_shared(shared: Box) -> None:
    done = shared.run(*SHARE, "--", "true", env={"SLICER_SIM": "2x80G"})
    assert done.returncode == 2
    assert "--share: simulated GPUs" in done.stderr


# X6: what a run without --share imports is what it was; with it, little more
def test_what_sharing_imports(shared: Box) -> None:
    from tests.process.hot_path import BANNED, imported

    bare = imported(shared, "--backend", "plain", "--vram", "8G", "--", "true")
    assert not {name for name in bare if name.startswith("slicer.share") and name != "slicer.share.details"}
    assert not {name for name in bare if name in ("slicer.job.sharing",)}
    more = imported(shared, "--backend", "plain", *SHARE, "--", "true") - bare
    assert not more & (BANNED - {"ctypes", "struct"})


@pytest.mark.parametrize("do", ["truncate -s 100", "rm", "cp /etc/passwd"])
def test_a_file_that_the_job_spoils_costs_only_what_was_counted(shared: Box, do: str) -> None:  # S7
    done = shared.run(*SHARE, "--", "sh", "-c", f'{do} "$SLICER_SHARE_FILE"')
    assert done.returncode == 0, done.stderr
    assert outcome(shared).troubles == ("no-file",)
    assert job_files(shared) == []


# -- a queue ------------------------------------------------------------------------------------------------


class Queue:
    """A queue over the fake GPUs."""

    def __init__(self, box: Box, *lines: str) -> None:
        self.box = box
        (box.root / "jobs.txt").write_text("".join(f"{line}\n" for line in lines))
        options = ("--backend", "plain", "--poll", "0.1", "--log-dir", "logs", "--json")
        self.process = subprocess.Popen(
            [*box.prefix, *SLICER, "queue", "jobs.txt", *options], env=box.env, cwd=box.root,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        box.adopt(self.process)

    def await_event(self, name: str) -> None:
        """Take what it tells, up to that event."""
        assert self.process.stdout is not None
        while json.loads(self.process.stdout.readline())["event"] != name:
            pass

    def end(self) -> list[dict[str, Any]]:
        """What it told and was not taken yet, once it has ended."""
        out, err = self.process.communicate(timeout=LONGEST_S)
        assert not err, text(err)
        return [json.loads(line) for line in text(out).splitlines()]


def test_jobs_of_a_queue_share(shared: Box, client: str) -> None:  # X7, D2
    does = session("alloc linear 500", "alloc linear 700")
    (shared.root / "does").write_text(does)
    told = Queue(shared, f"[vram=1G share=both name=a] {client} dlsym <does", "[vram=1G] env").end()
    assert [event["event"] for event in told if event["event"] == "warning"] == []
    assert (shared.root / "logs").glob("*.log")
    sharing = outcome(shared, "a")
    assert (sharing.wants, sharing.processes, sharing.allocations, sharing.refused) == ("both", 1, 1, 1)
    assert [each.sharing for each in shared.outcomes() if each.name != "a"] == [None]
    assert job_files(shared) == []


def test_a_line_that_cannot_share_says_why(shared: Box) -> None:
    queue = Queue(shared, "true", "[gpus=1 share=cap] true")
    _, err = queue.process.communicate(timeout=LONGEST_S)
    assert queue.process.returncode == 2
    said = json.loads(err)
    assert (said["where"], said["hint"]) == ("jobs.txt:2:1", "add vram=")
    assert "requires part of a GPU" in said["message"]


@pytest.mark.parametrize("killed", ["queue", "keeper"])
def test_the_counters_of_a_queues_job_survive_a_kill(
    shared: Box, client: str, gate: Gate, killed: str
) -> None:
    (shared.root / "does").write_text(session("alloc linear 100"))
    command = f"(cat does; read x <{gate.path}) | {client} dlsym"
    queue = Queue(shared, f"[vram=1G share=cap name=a] {command}")
    until(lambda: shared.leases() and _charged(shared) > 0, "the job has allocated")
    (lease,) = shared.leases()
    kill_9(queue.process.pid if killed == "queue" else lease.keeper)
    if killed == "queue":
        gate.open()
    until(lambda: shared.outcomes(), "the outcome is written")
    until(lambda: not job_files(shared), "the job's file is gone")
    assert (outcome(shared).processes, outcome(shared).peak_mib) == (1, (100,))


@pytest.mark.parametrize("adopted", [False, True])
def test_a_job_of_a_queue_that_gets_past_its_cap_is_ended(  # X7
    shared: Box, gate: Gate, adopted: bool
) -> None:
    config = shared.root / "config.toml"
    config.write_text('[profiles.x]\ninherits = "gpu"\nvram = "1G"\nshare = "cap"\nover_cap = "end"\n')
    shared.env["SLICER_CONFIG"] = str(config)
    (shared.root / "use").write_text(f"{USE}while [ ! -e go ]; do sleep 0.01; done; use 0 9000\n")
    queue = Queue(shared, f"[profile=x name=a] . ./use; read x <{gate.path}")
    if adopted:
        until(lambda: shared.leases(), "the job runs")
        kill_9(queue.process.pid)
        queue = Queue(shared, *(shared.root / "jobs.txt").read_text().splitlines())
        queue.await_event("adopted")
    (shared.root / "go").touch()
    told = queue.end()
    (exceeds,) = [event for event in told if event["event"] == "exceeds"]
    assert (exceeds["used_mib"], exceeds["declared_mib"]) == (9000, 1024)
    done = shared.outcomes()[0]
    assert (done.reason, done.ended_by) == ("stopped", "slicer cap")
    assert done.sharing is not None
    assert done.sharing.got_past_cap == 1


# U8: it gives way for a part of a GPU, too; when it begins again, it shares as before
def test_a_sharing_job_gives_way_and_shares_again(shared: Box, tmp_path: Path, gate: Gate) -> None:
    config = tmp_path / "config.toml"
    keys = ('inherits = "gpu"', "preemptible = true", 'min_run = "0s"', 'share = "both"')
    config.write_text("\n".join(("[profiles.night]", *keys)))
    shared.env["SLICER_CONFIG"] = str(config)
    script = 'test -e "$SLICER_SHARE_FILE" && echo begun; trap "exit 3" TERM; while :; do sleep 0.05; done'
    options = ("--name", "train", "-p", "night", "--gpu", "0", "--vram", "60G")
    job = shared.run("-d", *options, "--", "sh", "-c", script).stdout.strip()

    def slicer(*line: str) -> str:
        command = [*shared.prefix, *SLICER, *line]
        return subprocess.run(command, env=shared.env, capture_output=True, text=True, check=False).stdout

    until(lambda: slicer("logs", job) == "begun\n", "it runs")
    fits = shared.run("--gpu", "0", "--vram", "10G", "--", "true")
    assert fits.returncode == 0
    options = ("--name", "eval", "--gpu", "0", "--vram", "40G")
    waiter = shared.start(*options, "--", "sh", "-c", f"read x <{gate.path}")
    until(lambda: [each.name for each in shared.leases()] == ["eval"], "it has given way")
    gate.open()
    assert waiter.wait(LONGEST_S) == 0
    again = "begun\nslicer: gave way to another job, and begins again\nbegun\n"
    until(lambda: slicer("logs", job) == again, "it runs again")
    assert len(job_files(shared)) == 1
    slicer("stop", job)
    shared.assert_clean()
