"""A host as its user left it, to run a command on: `python -m tests.machines.lived_in COMMAND…`, as root.

It has NVIDIA's nodes and libraries, a systemd, a configuration and a policy, wraps, histories, a broker's
socket, and variables in the shell. Each is broken or changes much, so a test that looks at one fails. All is
made in a mount namespace, so nothing is left of it.
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

_CONFIG = """\
[slots]
cpu = 7
[profiles.heavy]
gpus = 2
timeout = "1s"
[profiles.light]
fence = "on"
"""
_BROKEN = "what this host has is none of the tests' business\n"
_VARIABLES = {
    "SLICER_CONFIG": "/run/lived-in/none.toml", "SLICER_SIM": "2x8G", "SLICER_STATE_DIR": "/run/lived-in",
    "SLICER_BROKER": "/run/slicer-broker/socket", "SLICER_LEASE": "fedcba987654", "SLICER_ROUTE": "elsewhere",
    "SLICER_SKIP_GPU_LOCK": "1", "SLICER_SHARE_TIME_MS": "7", "SLICER_DEBUG": "1", "CPU_RUN_SLOTS": "3",
    "CPU_RUN_THREADS": "3", "GPU_LOCK_HELD": "1", "CUDA_VISIBLE_DEVICES": "1", "COLUMNS": "50",
    "NO_COLOR": "1",    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/lived-in/bus",
}  # fmt: skip
_LIBRARY = "int nvmlInit_v2(void) { return 0; }  /* and then it can do nothing */\n"


def main(command: list[str]) -> int:
    if os.environ.get("SLICER_TEST_LIVED_IN") != "1":
        own = [sys.executable, "-m", "tests.machines.lived_in", *command]
        os.environ["SLICER_TEST_LIVED_IN"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "--", *own])
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    cover(Path("/dev"))
    cover(Path("/run"), without=("slicer", "slicer-broker"))
    Path("/run/systemd").mkdir(exist_ok=True)
    cover(Path("/run/systemd"), without=("system",))
    cover(Path("/etc"), without=("slicer", "ld.so.cache"))
    cover(Path("/var/lib"), without=("slicer",))
    cover(home, without=(".config", ".local"))
    install_driver()
    settle_in(home)
    os.execvpe(command[0], command, {**os.environ, **_VARIABLES})


def cover(place: Path, without: tuple[str, ...] = ()) -> None:
    """Put a directory in memory over `place`. It has the same entries; new ones are nowhere else."""
    below = Path(tempfile.mkdtemp(prefix="lived-in-"))
    mount("--rbind", place, below)
    mount("-t", "tmpfs", "-o", f"mode={place.stat().st_mode & 0o7777:o}", "lived-in", place)
    for entry in below.iterdir():
        here = place / entry.name
        if entry.name in without:
            continue
        if entry.is_symlink():
            here.symlink_to(entry.readlink())
        elif not entry.is_char_device() or not make_node(here, entry.stat()):
            here.mkdir(exist_ok=True) if entry.is_dir() else here.touch()
            mount("--rbind", entry, here)
    subprocess.run(["umount", "--lazy", below], check=True)
    below.rmdir()


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", "--no-mtab", *words], check=True)


def make_node(path: Path, like: os.stat_result) -> bool:
    """Whether the node could be made: a container may not. (A mounted ptmx would find no /dev/pts.)"""
    try:
        os.mknod(path, like.st_mode, like.st_rdev)
    except PermissionError:
        return False
    path.chmod(stat.S_IMODE(like.st_mode))
    return True


def install_driver() -> None:
    for name in ("nvidiactl", "nvidia0", "nvidia1"):
        Path("/dev", name).touch()  # that it is there is enough
    libraries = Path("/run/lived-in/lib")
    libraries.mkdir(parents=True)
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        words = ["cc", "-shared", "-o", libraries / name, f"-Wl,-soname,{name}", "-x", "c", "-"]
        subprocess.run(words, input=_LIBRARY, text=True, check=True)
    subprocess.run(["/sbin/ldconfig", libraries], check=True)


def settle_in(home: Path) -> None:
    """All that slicer keeps or reads on a host, and nothing of it good."""
    Path("/run/systemd/system").mkdir()
    Path("/run/slicer").mkdir(mode=0o700)
    for settings in (Path("/etc/slicer"), home / ".config/slicer"):
        settings.mkdir(parents=True)
        (settings / "config.toml").write_text(_CONFIG)
    Path("/etc/slicer/policy.toml").write_text(_BROKEN)
    for kept in (Path("/var/lib/slicer"), home / ".local/state/slicer"):
        (kept / "wraps").mkdir(parents=True)
        (kept / "history.db").write_text(_BROKEN)
        (kept / "wraps" / f"{0:024x}.wrap").write_text(_BROKEN)
    Path("/run/slicer-broker").mkdir()
    with socket.socket(socket.AF_UNIX) as broker:  # it stays, and nobody answers
        broker.bind("/run/slicer-broker/socket")
    os.chmod("/run/slicer-broker/socket", 0o666)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
