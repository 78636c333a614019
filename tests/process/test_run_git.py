"""Which code ran: what outcomes say of a work tree of git, and what a hostile one, or a slow git, can do."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slicer.kernel import proc
from slicer.kernel.open_files import links
from slicer.model import Git
from slicer.outcome.outcome_file import outcome_json
from tests.patience import until
from tests.process.harness import Box, Gate, state_of
from tests.process.test_control import slicer

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="there is no git")

_ALONE = {
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
}  # fmt: skip


def git(tree: Path, *words: str, stdin: str = "") -> str:
    """What git itself prints."""
    env = {**os.environ, **_ALONE}
    done = subprocess.run(["git", *words], cwd=tree, env=env, input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def made(tree: Path) -> Path:
    """A work tree with one commit."""
    tree.mkdir()
    git(tree, "init", "-q", "-b", "trunk")
    (tree / "train.py").write_text("lr = 1\n")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "first")
    return tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return made(tmp_path / "tree")


def has_answered(supervisor: int) -> bool:
    """Whether git was asked, and nobody asks any more."""
    was_asked = any("slicer-git" in link for link in links(supervisor)) and state_of(supervisor) == "S"
    return was_asked and len(proc.children(supervisor)) == 1  # the keeper


def code_of(box: Box, directory: Path, **env: str) -> Git | None:
    """What the outcome of a job says that runs there until git has answered."""
    gate = Gate(box.root / f"gate{len(os.listdir(box.root))}")
    process = box.start("--", "sh", "-c", f"read x <{gate.path}", cwd=directory, env=env)
    until(lambda: has_answered(process.pid), "git has answered")
    gate.open()
    assert process.wait() == 0, process.communicate()
    return box.outcomes()[0].git


def test_the_commit_the_branch_and_the_changes(box: Box, tree: Path) -> None:  # U22
    commit = git(tree, "rev-parse", "HEAD")
    assert code_of(box, tree) == Git(commit, "trunk", 0, "")
    (tree / "results").write_text("not in git\n")
    assert code_of(box, tree) == Git(commit, "trunk", 0, "")
    (tree / "train.py").write_text("lr = 2\n")
    (tree / "below").mkdir()
    diff = subprocess.run(["git", "diff-index", "-p", "--full-index", "HEAD"], cwd=tree, capture_output=True)
    changed = Git(commit, "trunk", 1, hashlib.sha256(diff.stdout).hexdigest())
    assert code_of(box, tree / "below") == changed
    git(tree, "add", "train.py")  # whether it is staged says nothing about the code
    assert code_of(box, tree) == changed
    git(tree, "checkout", "-q", "-f", "--detach")
    assert code_of(box, tree) == Git(commit, "", 0, "")
    assert outcome_json(box.outcomes()[0])["git"] == {
        "commit": commit, "branch": "", "dirty": False, "diff": "",
    }  # fmt: skip


def test_other_kinds_of_work_trees(box: Box, tree: Path, tmp_path: Path) -> None:  # U22
    commit = git(tree, "rev-parse", "HEAD")
    git(tree, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    assert code_of(box, tmp_path / "side") == Git(commit, "side", 0, "")
    git(tree, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tree), "sub")
    git(tree, "commit", "-q", "-m", "sub")
    (tree / "sub" / "train.py").write_text("lr = 3\n")  # is the submodule's own affair
    assert code_of(box, tree) == Git(git(tree, "rev-parse", "HEAD"), "trunk", 0, "")
    below = code_of(box, tree / "sub")
    assert below is not None
    assert (below.commit, below.dirty) == (commit, 1)
    # The environment of a hook, say, is not about this directory.
    elsewhere = {"GIT_DIR": str(tmp_path / "side" / ".git"), "GIT_WORK_TREE": "/"}
    assert code_of(box, tree, **elsewhere) == Git(git(tree, "rev-parse", "HEAD"), "trunk", 0, "")


def test_where_there_is_no_code_nothing_is_said(box: Box, tree: Path, tmp_path: Path) -> None:  # U22
    bare, empty = tmp_path / "bare", tmp_path / "empty"
    git(tree, "clone", "-q", "--bare", str(tree), str(bare))
    empty.mkdir()
    git(empty, "init", "-q")
    broken = made(tmp_path / "broken")
    (broken / ".git" / "HEAD").write_text("?")
    for place in (tmp_path, bare, empty, broken):
        assert code_of(box, place) is None, place
    few = tmp_path / "few"
    few.mkdir()
    for name in ("sh", "nice", "timeout", "sha256sum"):
        (few / name).symlink_to(shutil.which(name) or "")
    (tree / "git").write_text(f"#!/bin/sh\necho {'a' * 40}\n")
    (tree / "git").chmod(0o755)
    assert code_of(box, tree, PATH=f"{few}:.") is None  # there is no git but the work tree's own


HOSTILE = """\
[core]
    fsmonitor = {0}
    hooksPath = {1}
    pager = {0}
    sshCommand = {0}
    editor = {0}
[diff]
    external = {0}
[diff "d"]
    textconv = {0}
    command = {0}
[filter "f"]
    clean = {0}
    smudge = {0}
    required = true
[filter "p.x y"]
    process = {0}
    required = true
[remote "origin"]
    url = ext::{0}
    uploadpack = {0}
    promisor = true
[extensions]
    partialClone = origin
[protocol]
    allow = always
[alias]
    diff-index = !{0}
"""


def traps(tmp_path: Path, *more: str) -> tuple[Path, Path, Path]:
    """A program that leaves a mark, a directory in which it stands for hooks, and that of the marks."""
    trap, hooks, marks = tmp_path / "trap", tmp_path / "hooks", tmp_path / "marks"
    hooks.mkdir()
    marks.mkdir()
    trap.write_text(f"#!/bin/sh\n: >{marks}/$$\nexit 1\n")
    trap.chmod(0o755)
    for name in ("post-index-change", "reference-transaction", *more):
        shutil.copy(trap, hooks / name)
    return trap, hooks, marks


def test_nothing_that_a_repository_says_is_executed(box: Box, tree: Path, tmp_path: Path) -> None:  # U22
    trap, hooks, marks = traps(tmp_path, "pre-auto-gc")
    (tree / ".gitattributes").write_text("*.py diff=d filter=f\n*.ipynb filter=p.x\\040y\n")
    (tree / "a.ipynb").write_text("{}\n")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "second")
    commit = git(tree, "rev-parse", "HEAD")
    (tree / ".git/info/attributes").write_text("* diff=d filter=f\n")
    with (tree / ".git/config").open("a") as config:
        config.write(HOSTILE.format(trap, hooks))
    for name in ("train.py", "a.ipynb"):  # its content has to be compared
        os.utime(tree / name, (1, 1))
    index = (tree / ".git/index").stat()
    assert code_of(box, tree) == Git(commit, "trunk", 0, "")
    (tree / "train.py").write_text("lr = 2\n")
    found = code_of(box, tree)
    assert found is not None
    assert found.dirty == 1
    # No -c can switch this one off, so nobody looks at the files.
    with (tree / ".git/config").open("a") as config:
        config.write(f'[filter "a=b"]\n    clean = {trap}\n')
    assert code_of(box, tree) == Git(commit, "trunk", None, "")
    # A missing blob is not fetched from the remote that promises it.
    blob = git(tree, "-c", "core.fsmonitor=", "rev-parse", "HEAD:train.py")
    (tree / ".git/objects" / blob[:2] / blob[2:]).unlink()
    config_text = (tree / ".git/config").read_text()
    (tree / ".git/config").write_text(config_text.partition('[filter "a=b"]')[0])
    assert code_of(box, tree) == Git(commit, "trunk", None, "")
    assert os.listdir(marks) == []
    after = (tree / ".git/index").stat()
    assert (after.st_mtime_ns, after.st_ino) == (index.st_mtime_ns, index.st_ino)  # not written, not replaced


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be the victim and the other user")
def test_another_users_repository_is_not_read(box: Box, tree: Path, tmp_path: Path) -> None:  # U22
    """Neither is one above, as /tmp/.git would be, nor with sudo."""
    (tree / "mine").mkdir()
    for victim in (tree / ".git", tree):
        os.chown(victim, 54321, -1)
        assert code_of(box, tree, SUDO_UID="54321") is None
        assert code_of(box, tree / "mine", SUDO_UID="54321") is None
        os.chown(victim, 0, -1)
    assert code_of(box, tree) is not None


def test_a_git_that_hangs_delays_nothing(box: Box, tree: Path, tmp_path: Path) -> None:  # U22
    """Neither the job's end nor signals; what it has said until then counts."""
    folder = tmp_path / "slow"
    folder.mkdir()
    real = shutil.which("git")
    hangs = f': >{folder}/hangs; exec sleep 1000'
    (folder / "git").write_text(f'#!/bin/sh\ncase "$*" in *diff-*) {hangs} ;; esac\nexec {real} "$@"\n')
    (folder / "git").chmod(0o755)
    env = {"PATH": f"{folder}:{box.env['PATH']}"}
    gate = Gate(box.root / "gate")
    process = box.start("--", "sh", "-c", f"read x <{gate.path}", cwd=tree, env=env)
    until((folder / "hangs").exists, "git hangs")
    gate.open()
    assert process.wait() == 0
    assert box.outcomes()[0].git == Git(git(tree, "rev-parse", "HEAD"), "trunk", None, "")
    box.assert_clean()


@pytest.mark.slow
def test_a_git_that_hangs_is_ended_while_its_job_goes_on(box: Box, tree: Path) -> None:  # U22
    (tree / ".git/index").unlink()
    os.mkfifo(tree / ".git/index")
    commit = (tree / ".git/refs/heads/trunk").read_text().strip()
    assert code_of(box, tree) == Git(commit, "trunk", None, "")


def test_the_history_shows_it(box: Box, tree: Path) -> None:  # U22
    (tree / "train.py").write_text("lr = 2\n")
    found = code_of(box, tree)
    assert found is not None
    (outcome,) = box.outcomes()
    words = f"trunk at {found.commit[:12]}, changed (diff {found.diff[:12]})"
    assert words in slicer(box, "show", outcome.job)
    (data,) = json.loads(slicer(box, "history", "--json"))["outcomes"]
    assert data["git"] == {"commit": found.commit, "branch": "trunk", "dirty": True, "diff": found.diff}
