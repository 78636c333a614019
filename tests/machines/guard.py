"""The root side of a namespace machine: prepares its file system and cgroup, boots it, cleans up after it.

Runs as `unshare --mount … python -m tests.machines.guard PLAN`, PLAN being the JSON of a `Plan`. It writes
one JSON line: {"init": pid of the machine's systemd, as the host sees it} or {"unavailable": why}. The
machine lives until standard input ends. All mounts are private to this process and its children, so they go
with the last of them; the cgroups are removed here, or, had this process been killed, by the next one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.machines import recipe, tether

BOOT = Path(__file__).with_name("boot.sh")
CGROUP_PREFIX = "test-machine-"
SPACES = ("--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup", "--propagation=private")


@dataclass(frozen=True)
class Plan:
    """What to boot: an image's tree, the checkout and the wheel to show in it, a directory to mount on.

    The wheel's directory may go as soon as the machine was reported.
    """

    tree: str
    key: str
    checkout: str
    wheel: str
    scratch: str


class Refused(Exception):
    """The host's kernel or container does not let a machine be made here."""


def main(argv: list[str]) -> int:
    plan = Plan(**json.loads(argv[0]))
    tether.handle_signals()
    try:
        root, group = prepare(plan)
    except Refused as refusal:
        print(json.dumps({"unavailable": str(refusal)}), flush=True)
        return 1
    try:
        # Standard output is for our one line; what systemd says goes with our own complaints.
        child = tether.start(boot_command(plan, root, group), stdout=2)
        print(json.dumps({"init": first_child(child.pid)}), flush=True)
        return abs(tether.wait(child))
    finally:
        remove_cgroup(group)


def prepare(plan: Plan) -> tuple[Path, Path]:
    """The machine's writable root and its cgroup, both made here; raises Refused."""
    tree = Path(plan.tree)
    if (tree / recipe.MARKER).read_text().strip() != plan.key or os.path.samefile(tree, "/"):
        raise Refused(f"{tree} is not the tree of image {plan.key}")
    scratch = Path(plan.scratch)
    mount("-t", "tmpfs", "-o", "mode=755,size=75%", "machine", scratch)
    cgroups = scratch / "cgroup"
    cgroups.mkdir()
    mount("-t", "cgroup2", "cgroup2", cgroups)
    sweep(cgroups)
    group = cgroups / f"{CGROUP_PREFIX}{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise Refused(f"cannot make a cgroup: {error}") from error
    shutil.copytree(plan.wheel, scratch / "wheel")
    return writable_root(tree, scratch), group


def writable_root(tree: Path, scratch: Path) -> Path:
    """The tree with changes kept in memory; a copy in memory where there is no overlayfs."""
    root, upper, work = (scratch / name for name in ("root", "upper", "work"))
    for path in (root, upper, work):
        path.mkdir()
    try:
        mount("-t", "overlay", "-o", f"lowerdir={tree},upperdir={upper},workdir={work}", "machine", root)
    except Refused:
        mount("-t", "tmpfs", "-o", "mode=755,size=75%", "machine", root)
        subprocess.run(["cp", "-a", f"{tree}/.", root], check=True)
    return root


def mount(*argv: str | Path) -> None:
    done = subprocess.run(["mount", *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise Refused(f"mount {' '.join(map(str, argv))}: {done.stderr.strip()}")


def boot_command(plan: Plan, root: Path, group: Path) -> list[str]:
    # The cgroup namespace's root is the cgroup that its maker is in.
    join = ["sh", "-c", 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"', "sh", str(group)]
    spaces = ["unshare", "--fork", "--kill-child=KILL", *SPACES, "--"]
    return [*join, *spaces, "sh", str(BOOT), str(root), plan.key, plan.checkout, f"{plan.scratch}/wheel"]


def first_child(pid: int, timeout_s: float = 10.0) -> int:
    """The pid of the first child of a process, waiting for it to be forked."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and parent(entry) == pid:
                return int(entry.name)
        time.sleep(0.01)
    raise RuntimeError(f"process {pid} started nothing within {timeout_s:g} s")


def parent(process: Path) -> int | None:
    try:
        stat = (process / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name, in parentheses, may hold anything.
    return int(stat.rpartition(")")[2].split()[1])


def sweep(cgroups: Path) -> None:
    """Remove the cgroups of machines whose guard was killed."""
    for group in cgroups.glob(f"{CGROUP_PREFIX}*"):
        pid = group.name.removeprefix(CGROUP_PREFIX)
        if not Path("/proc", pid).exists():
            remove_cgroup(group, timeout_s=0)


def remove_cgroup(group: Path, timeout_s: float = 5.0) -> None:
    """Remove a cgroup and those below it; processes being killed leave it a moment after their parent."""
    deadline = time.monotonic() + timeout_s
    while True:
        for directory, _, _ in os.walk(group, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                break
        if not group.exists() or time.monotonic() > deadline:
            return
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
