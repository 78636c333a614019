"""``--snapshot``: a job runs from the code as it was when somebody asked for it, and nothing else changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, Gate, kill, kill_9, mounting
from tests.process.queue_box import QueueBox
from tests.process.test_run_detach import detached, slicer
from tests.process.test_run_git import HOSTILE, git, has_answered, made, traps

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="there is no git")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A work tree with a file of each kind: tracked, changed, not added, ignored."""
    tree = made(tmp_path / "project")
    (tree / ".gitignore").write_text("data/\n*.ckpt\n__pycache__/\n")
    (tree / "lib").mkdir()
    (tree / "lib" / "net.py").write_text("width = 1\n")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "second")
    (tree / "train.py").write_text("lr = 2\n")
    (tree / "new.py").write_text("new = 1\n")
    (tree / "data").mkdir()
    (tree / "data" / "set").write_text("data 1\n")
    return tree


def copies(box: Box) -> list[str]:
    """Every file below the directory of all copies, but for its lock."""
    folder = box.var_lib / "slicer" / "snapshots"
    return sorted(name for name in os.listdir(folder) if name != "lock") if folder.exists() else []


def edit(tree: Path) -> None:
    for name in ("train.py", "new.py", "lib/net.py"):
        (tree / name).write_text("edited\n")
    (tree / "data" / "set").write_text("data 2\n")


SHOW = "cat train.py new.py lib/net.py data/set"
BEFORE = "lr = 2\nnew = 1\nwidth = 1\ndata 2\n"


def test_what_is_edited_after_the_ask_does_not_reach_the_job(box: Box, tree: Path, gate: Gate) -> None:  # U9
    job = box.start("--snapshot", "--", "sh", "-c", f"read x <{gate.path}; {SHOW}", cwd=tree)
    until(lambda: len(box.leases()) == 1, "it runs")
    edit(tree)
    gate.open()
    out, err = job.communicate(timeout=LONGEST_S)
    assert (out.decode(), job.returncode) == (BEFORE, 0), err
    assert copies(box) == []  # it has written nothing
    box.assert_clean()


def test_a_detached_job_runs_where_it_was_asked_for(box: Box, tree: Path, gate: Gate) -> None:  # U9
    """In the copy's directory of that place, with relative programs, PYTHONPATH and PWD."""
    show = tree / "lib" / "show.sh"
    show.write_text('#!/bin/sh\necho "$PWD $(pwd -P) $PYTHONPATH $SLICER_SNAPSHOT_OF"\ncat net.py\n')
    show.chmod(0o755)
    after = ("--after", hold_back(box, gate), "--outcome", "o.json")
    source = box.env["PYTHONPATH"]
    done = subprocess.run(
        [*SLICER, "run", "--backend", "plain", "-d", "--snapshot", *after, "--", "./show.sh"],
        cwd=tree / "lib", env={**box.env, "PYTHONPATH": f"{tree}:{source}:{tree}/lib"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    job = done.stdout.strip()
    edit(tree)
    show.unlink()
    gate.open()
    slicer(box, "wait", job)
    (directory,) = (outcome.directory for outcome in box.outcomes() if outcome.job == job)
    copy = os.path.dirname(directory)
    assert copy.startswith(f"{box.var_lib}/slicer/snapshots/run-")
    paths = f"{copy}:{source}:{copy}/lib"
    assert slicer(box, "logs", job).stdout == f"{copy}/lib {copy}/lib {paths} {tree}\nwidth = 1\n"
    assert (tree / "lib" / "o.json").exists()
    until(lambda: not copies(box), "the copy is removed")


def hold_back(box: Box, gate: Gate) -> str:
    """The id of a job that runs until the gate opens."""
    return detached(box, "--", "sh", "-c", f"read x <{gate.path}")


def test_the_outcome_says_which_code_that_is(box: Box, tree: Path, gate: Gate) -> None:  # U22
    diff = subprocess.run(
        ["git", "diff-index", "-p", "--full-index", "HEAD"], cwd=tree, capture_output=True
    ).stdout
    commit = git(tree, "rev-parse", "HEAD")
    job = box.start(
        "--snapshot", "--", "sh", "-c", f"git rev-parse HEAD; git diff --stat; read x <{gate.path}", cwd=tree
    )
    until(lambda: len(box.leases()) == 1, "it runs")
    edit(tree)
    git(tree, "commit", "-q", "-a", "-m", "third")
    until(lambda: has_answered(job.pid), "git has answered")
    gate.open()
    out, _ = job.communicate(timeout=LONGEST_S)
    assert out.decode().startswith(f"{commit}\n train.py | 2 +-\n")
    found = box.outcomes()[0].git
    assert found is not None
    assert (found.commit, found.branch, found.dirty, found.diff) == (
        commit,
        "trunk",
        1,
        hashlib.sha256(diff).hexdigest(),
    )
    assert copies(box) == []  # what git writes there is none of the job's


def test_nothing_of_the_repository_changes(box: Box, tree: Path) -> None:  # U9
    os.utime(tree / "lib" / "net.py", (1, 1))  # git would like to note that it is the same
    (tree / "staged.py").write_text("s\n")
    git(tree, "add", "staged.py")

    def everything() -> dict[str, tuple[int, bytes]]:
        files = [path for path in (tree / ".git").rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_ino, path.read_bytes()) for path in files}

    before = everything()
    done = box.run(
        "--snapshot",
        "--",
        "sh",
        "-c",
        "cat staged.py; git add . && git -c user.name=a -c user.email=a@b commit -qm x",
        cwd=tree,
    )
    assert (done.stdout, done.returncode) == ("s\n", 0), done.stderr
    assert everything() == before


def test_a_job_that_writes_keeps_its_copy_and_says_where(box: Box, tree: Path) -> None:  # U9
    done = box.run("--snapshot", "--", "sh", "-c", "echo 1 >data/result; echo 1 >result", cwd=tree)
    kept = Path(box.outcomes()[0].directory)
    assert done.stderr.endswith(
        f"the snapshot stays, because the job has changed it, or still runs: {kept}\n"
    )
    assert (kept / "result").read_text() == "1\n"
    assert (tree / "data" / "result").read_text() == "1\n"  # what is ignored is the original
    changes = (
        "touch train.py", "rm -r lib && ln -s / lib", "mkdir -p out/of && mkfifo out/of/p",
        "touch -d 1980-01-01 old", "rm new.py",
    )  # fmt: skip
    for script in changes:
        box.run("--snapshot", "--", "sh", "-c", script, cwd=tree)
    assert len(copies(box)) == 6
    for script in (
        "mkdir empty", "git status; git diff",
        f"cd lib && {shutil.which('python3')} -c 'import net' && ls __pycache__/*.pyc",
    ):  # fmt: skip
        done = box.run("--snapshot", "--", "sh", "-c", script, cwd=tree, env={"PYTHONPATH": "."})
        assert done.returncode == 0, done
    assert len(copies(box)) == 6


def test_links_lead_to_what_is_not_copied(box: Box, tree: Path) -> None:  # U9
    (tree.parent / "shared").write_text("shared\n")
    (tree / "out").symlink_to("../shared")
    (tree / "in").symlink_to("lib/net.py")
    (tree / "a.ckpt").write_text("weights\n")
    made(tree / "other")
    git(tree, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tree / "other"), "sub")
    shutil.move(tree / "lib", tree / "lib2")
    (tree / "lib").symlink_to(tree.parent)  # what git knew there is no file of the tree any more
    (tree.parent / "net.py").write_text("elsewhere\n")
    script = "cat out lib2/net.py a.ckpt other/train.py sub/train.py; readlink in other sub data lib a.ckpt"
    done = box.run("--snapshot", "--", "sh", "-c", script, cwd=tree)
    links = [
        "lib/net.py",
        *(f"{tree}/{name}" for name in ("other", "sub", "data")),
        str(tree.parent),
        f"{tree}/a.ckpt",
    ]
    assert done.stdout.splitlines() == ["shared", "width = 1", "weights", "lr = 1", "lr = 1", *links]
    assert copies(box) == []
    assert (tree.parent / "shared").exists()
    assert (tree / "data" / "set").read_text() == "data 1\n"  # no removal has followed a link


def test_what_is_no_file_is_linked_and_nobody_waits_for_it(box: Box, tree: Path) -> None:  # U9, S22
    """A FIFO has no end, nor has a device; a socket cannot be read."""
    for name in ("train.py", "lib/net.py", ".gitignore"):
        (tree / name).unlink()
    os.mkfifo(tree / "train.py")
    (tree / "loop").symlink_to("loop")
    (tree / "-x\n").touch()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tree / "lib" / "net.py"))
    if os.geteuid() == 0:
        os.mknod(tree / ".gitignore", stat.S_IFCHR, os.makedev(1, 3))
    script = "test -p train.py && test -S lib/net.py && ! test -f .gitignore && cat './-x\n' && readlink loop"
    done = box.run("--snapshot", "--", "sh", "-c", script, cwd=tree)
    assert (done.stdout, done.returncode) == ("loop\n", 0), done.stderr
    assert copies(box) == []


def test_a_file_that_goes_while_others_are_copied_is_not_missed(box: Box, tree: Path) -> None:  # U9
    """As an editor's do."""
    path = wrapped(box, f'case "$*" in *--others) {shutil.which("git")} "$@"; rm {tree}/new.py; exit ;; esac')
    done = box.run("--snapshot", "--", "ls", "new.py", "train.py", cwd=tree, env={"PATH": path})
    assert (done.stdout, done.returncode) == ("train.py\n", 2), done.stderr


def test_git_in_the_copy_is_not_sent_elsewhere(box: Box, tree: Path) -> None:  # U9
    """By the variables that a hook has; nor does its own upkeep count as a change."""
    git(tree, "update-index", "--split-index")
    elsewhere = {f"GIT_{name}": str(box.root) for name in ("DIR", "WORK_TREE", "INDEX_FILE", "COMMON_DIR")}
    script = "git rev-parse --show-toplevel && touch -d 1980-01-01 .git/sharedindex.* && git status -s -uno"
    done = box.run("--snapshot", "--", "sh", "-c", script, cwd=tree, env=elsewhere)
    assert done.stdout.endswith("/project\n M train.py\n"), done
    assert copies(box) == []
    (tree / ".git" / "index").unlink()
    assert box.run("--snapshot", "--", "cat", "lib/net.py", cwd=tree).stdout == "width = 1\n"


def test_nobody_waits_for_a_snapshot_that_is_stopped(box: Box, tree: Path) -> None:  # U9
    """Ctrl-Z acts once the copy is made: meanwhile every other one would wait."""
    path = wrapped(box, f'case "$*" in *--cached*) : >{box.root}/asks; kill -TSTP 0 ;; esac')
    job = box.start("--snapshot", "--", "true", cwd=tree, env={"PATH": path}, preexec_fn=os.setpgrp)
    until((box.root / "asks").exists, "git lists the files")
    assert box.run("--snapshot", "--", "true", cwd=tree).returncode == 0
    os.killpg(job.pid, signal.SIGCONT)
    assert job.wait(LONGEST_S) == 0


def test_sixteen_at_the_same_moment(box: Box, tree: Path) -> None:  # U9
    jobs = [box.start("--snapshot", "--", "sh", "-c", SHOW, cwd=tree) for _ in range(16)]
    for job in jobs:
        out, err = job.communicate(timeout=LONGEST_S)
        assert (out.decode(), job.returncode) == (BEFORE.replace("data 2", "data 1"), 0), err
    assert copies(box) == []


def wrapped(box: Box, script: str) -> str:
    """A PATH with a git that runs a script first."""
    folder = box.root / "wrapped"
    folder.mkdir()
    (folder / "git").write_text(f'#!/bin/sh\n{script}\nexec {shutil.which("git")} "$@"\n')
    (folder / "git").chmod(0o755)
    return f"{folder}:{box.env['PATH']}"


def aged(box: Box) -> None:
    """As if all copies had been made long ago."""
    for lock in (box.var_lib / "slicer" / "snapshots").glob("*/lock"):
        os.utime(lock, (1, 1))


def test_a_killed_supervisor_takes_no_code_from_its_job(box: Box, tree: Path, gate: Gate) -> None:  # U9
    """Neither does a killed keeper; and once nothing of the job is left, a later one removes the copy."""
    job = box.start(
        "--snapshot",
        "--",
        "sh",
        "-c",
        f'echo "start x $$" >>"$LOG"; read x <{gate.path}; {SHOW} >data/out',
        cwd=tree,
    )
    until(lambda: box.started("x"), "it runs")
    keeper = box.leases()[0].keeper
    kill_9(job.pid, keeper)
    aged(box)
    edit(tree)
    assert box.run("--snapshot", "--", "true", cwd=tree).returncode == 0
    assert len(copies(box)) == 1
    gate.open()
    until(
        lambda: (tree / "data" / "out").exists() and (tree / "data" / "out").read_text() == BEFORE,
        "its code is there",
    )
    until(lambda: not box.processes(), "it has ended")
    assert box.run("--snapshot", "--", "true", cwd=tree).returncode == 0
    assert copies(box) == []


@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_snapshot_that_is_interrupted_leaves_nothing(box: Box, tree: Path, signo: int) -> None:  # U9
    path = wrapped(box, f'case "$*" in *--cached*) : >{box.root}/asks; exec sleep 1000 ;; esac')
    job = box.start("--snapshot", "--", "true", cwd=tree, env={"PATH": path})
    until((box.root / "asks").exists, "git lists the files")
    kill(job.pid, signo)
    assert job.wait() == -signo
    assert len(copies(box)) == (1 if signo == signal.SIGKILL else 0)
    for pid in box.processes():
        kill_9(pid)
    assert box.run("--snapshot", "--", "true", cwd=tree).returncode == 0
    assert copies(box) == []


def test_nothing_that_a_repository_says_is_executed(box: Box, tree: Path, tmp_path: Path) -> None:  # U9
    trap, hooks, marks = traps(tmp_path, "post-checkout")
    shutil.copytree(hooks, tree / ".git/hooks", dirs_exist_ok=True)
    (tree / ".gitattributes").write_text("*.py diff=d filter=f\n")
    (tree / "git").write_text(trap.read_text())
    (tree / "git").chmod(0o755)
    with (tree / ".git/config").open("a") as config:
        config.write(HOSTILE.format(trap, hooks) + "[include]\n path = more\n[init]\n templateDir = /\n")
    done = box.run(
        "--snapshot", "--", "sh", "-c", "cat train.py", cwd=tree, env={"PATH": f".:{box.env['PATH']}"}
    )
    assert (done.stdout, done.returncode) == ("lr = 2\n", 0), done.stderr
    assert os.listdir(marks) == []


# -- refusals -----------------------------------------------------------------------------------------------


def refused(box: Box, tree: Path, *options: str, **env: str) -> str:
    done = box.run("--snapshot", *options, "--", "touch", str(box.root / "ran"), cwd=tree, env=env)
    assert done.returncode != 0
    assert not (box.root / "ran").exists()
    assert copies(box) == []
    return done.stderr


def test_without_a_commit_of_ones_own_there_is_no_snapshot(
    box: Box, tree: Path, tmp_path: Path
) -> None:  # U9
    takes = "(it takes a work tree of git with a commit; without --snapshot the job runs in place)"
    found = refused(box, tmp_path)
    assert f"{tmp_path}: no snapshot: git: not a git repository" in found
    assert takes in found
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    assert takes in refused(box, tmp_path / "empty")
    assert "git: No such file or directory" in refused(box, tree, PATH="/nonexistent:/usr/bin/nothing")
    assert "--snapshot cannot be combined" in refused(box, tree, "--exec")
    broken = made(tmp_path / "a\nb")
    git(tree, "config", "core.worktree", str(tmp_path / "empty"))
    for place in (tree, broken):
        assert "is not your work tree" in refused(box, place)
    git(tree, "config", "--unset", "core.worktree")
    for line in (("run", "--snapshot"), ("queue", "add", str(box.root / "jobs"), "--snapshot")):
        script = f'mkdir gone && cd gone && rmdir ../gone && exec "$@" {" ".join(line)} -- true'
        command = ["sh", "-c", script, "sh", *SLICER]
        done = subprocess.run(command, cwd=tree, env=box.env, capture_output=True, text=True, check=False)
        assert "the working directory was removed" in done.stderr, line
    if os.geteuid() == 0:
        for place in (tree / ".git", tree):
            os.chown(place, 54321, -1)
            assert "work tree" in refused(box, tree, SUDO_UID="54321")
            os.chown(place, 0, -1)


def test_much_that_is_not_in_git_is_not_copied(box: Box, tree: Path) -> None:  # U9
    with (tree / "weights.bin").open("wb") as file:
        file.truncate(300 << 20)
    found = refused(box, tree)
    assert "untracked files have 300.0M, more than 256.0M" in found
    assert (
        "name them in .gitignore: what is ignored is linked, not copied; the largest is weights.bin" in found
    )
    (tree / ".gitignore").write_text("data/\nweights.bin\n")
    assert box.run("--snapshot", "--", "test", "-s", "weights.bin", cwd=tree).returncode == 0


def test_a_full_disk_is_said_before_the_job_starts(box: Box, tree: Path) -> None:  # U9
    (tree / "large").write_bytes(os.urandom(2 << 20))
    box.prefix = mounting('mount -t tmpfs -o size=1m,mode=700 none "$0"', box.var_lib)
    done = box.run("--snapshot", "--", "echo", "ran", cwd=tree)
    assert (done.stdout, done.returncode) == ("", 125)
    assert "the snapshot cannot be made: No space left on device (make room there)" in done.stderr


# -- queues -------------------------------------------------------------------------------------------------

SAY = f"cd project && {{ {SHOW}; }} >>$LOG"


@pytest.fixture
def queue_box(box: Box, tree: Path) -> QueueBox:
    """Its queue is started beside the work tree."""
    made = QueueBox(box)
    (box.root / "project").symlink_to(tree)
    return made


def add(queues: QueueBox, *words: str, cwd: Path, code: int = 0) -> str:
    command = [*SLICER, "queue", "add", str(queues.file), *words]
    done = subprocess.run(command, env=queues.box.env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, done
    return done.stdout + done.stderr


def test_added_lines_run_from_the_code_of_when_they_were_added(queue_box: QueueBox, tree: Path) -> None:  # U9
    """All of one call from one copy, which goes with the last of them."""
    add(
        queue_box,
        "--snapshot",
        "--cwd",
        "lib",
        "--param",
        "s=1..20",
        "--",
        "cat net.py ../new.py >>$LOG; : {s}",
        cwd=tree,
    )
    edit(tree)
    add(queue_box, "--snapshot", "--", "cat new.py >>$LOG; exit 3", cwd=tree)
    assert "[snapshot=PATH] true" in add(queue_box, "--snapshot", "--dry-run", "--", "true", cwd=tree)
    assert "no job is named" in add(queue_box, "--snapshot", "--after", "x", "--", "true", cwd=tree, code=2)
    assert len(copies(queue_box.box)) == 2
    assert queue_box.run().wait() == 3
    assert sorted(queue_box.box.lines()) == ["edited"] + 20 * ["new = 1"] + 20 * ["width = 1"]
    (kept,) = copies(queue_box.box)  # of the failed line, which may run again
    assert f"snapshots/{kept}/project" in queue_box.file.read_text()
    shutil.rmtree(queue_box.box.var_lib / "slicer" / "snapshots" / kept)
    queue_box.append(f"[snapshot={tree}] touch {queue_box.root}/ran")
    queue_box.run()
    ran = f"touch {queue_box.root}/ran"
    assert queue_box.statuses()[ran] == ("infeasible", 1)
    assert "no such snapshot any more (ask for the job again)" in queue_box.journal()[ran].reason
    assert not (queue_box.root / "ran").exists()


def test_a_line_with_snapshot_runs_from_the_code_of_when_its_queue_saw_it(
    queue_box: QueueBox, tree: Path
) -> None:  # U9
    """Also if that queue is killed; other lines run in place."""
    lines = "hold a", f"[cwd={tree} snapshot] cat new.py >>$LOG", f"[snapshot cwd={tree}] cat train.py >>$LOG"
    queue_box.write(*lines, "[snapshot] true", "[snapshot cwd=project/data] hold b")
    queue = queue_box.start("--jobs", "1")
    queue_box.started("a")
    assert "not a git repository" in queue.event("infeasible")["reason"]
    assert len(copies(queue_box.box)) == 2
    queue.kill()
    edit(tree)
    queue_box.append(f"[cwd={tree}] cat lib/net.py >>$LOG")
    queue = queue_box.start()
    queue_box.started("b")
    queue_box.let("a", "b")
    assert queue.wait() == 1
    assert sorted(line for line in queue_box.box.lines() if " a " not in line and " b " not in line) == [
        "edited",
        "lr = 2",
        "new = 1",
    ]
    assert copies(queue_box.box) == []


def test_a_queue_says_which_copies_stay(queue_box: QueueBox, tree: Path) -> None:  # U9
    add(queue_box, "--snapshot", "--", "echo 1 >result", cwd=tree)
    queue = queue_box.run()
    (kept,) = copies(queue_box.box)
    copy = f"{queue_box.box.var_lib}/slicer/snapshots/{kept}/project"
    assert f"a snapshot stays, because jobs have changed it: {copy}" in queue.out


def test_a_line_that_names_another_directory_keeps_no_copies(queue_box: QueueBox, tree: Path) -> None:  # U9
    add(queue_box, "--snapshot", "--", "true", cwd=tree)
    queue_box.append("[snapshot=/] true")
    assert queue_box.run().wait() == 1
    assert copies(queue_box.box) == []
