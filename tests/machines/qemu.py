"""The QEMU machine: Debian's own kernel in a virtual machine, where limits act. Runs without root."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from tests.machines import checkout, image, saved
from tests.machines.host import ENVIRON, QEMU_TOOLS, REPO, MachineError, Unavailable, need_tools, tail
from tests.machines.image import Image
from tests.machines.machine import Command, CommandFailed, Result
from tests.machines.recipe import Suite
from tests.machines.tether import end_tethered
from tests.machines.wire import Wire

MEMORY_MIB = 2048
CPUS = 2
BOOT_DEADLINE_S = {"kvm": 40.0, "tcg": 1200.0, "tcg, real time": 600.0}
GO_ON_DEADLINE_S = 300.0
END_DEADLINE_S = 10.0
KILL_GRACE_S = 60.0

# The drive's two directories appear where they are in the namespace machine.
_MOUNT_DRIVE = "mount -o ro /dev/vdb /mnt; mount --bind /mnt/source /src; mount --bind /mnt/wheel /wheel"
# As in boot.sh: a user's manager goes with its last session.
_LOGIND = (
    "mkdir -p /run/systemd/logind.conf.d; "
    "printf '[Login]\\nUserStopDelaySec=0\\n' >/run/systemd/logind.conf.d/test-machine.conf; "
    "systemctl kill --signal=HUP systemd-logind"
)
# Each reload runs all generators, for seconds where they are emulated. What they made for the boot is there.
_GENERATORS = (
    "mkdir -p /run/systemd/system-generators; cd /usr/lib/systemd/system-generators; "
    "for each in *; do ln -s /dev/null /run/systemd/system-generators/$each; done"
)
# The clock of a machine that goes on leaps, and timers of the calendar would all be due.
_TIMERS = "systemctl stop '*.timer'"
_PREPARE = f"{_LOGIND}; {_GENERATORS}; {_TIMERS}"
_ACCELERATOR = {
    "kvm": ("-accel", "kvm", "-cpu", "host"),
    # One thread for all CPUs: emulated side by side, one may run what the kernel, which patches its own code
    # (a first cpuset, for one), has already taken back: a panic now and then. Its clock goes by what it has
    # executed, so that on a busy host nothing in it times out. The CPU lacks what is cheap in hardware alone:
    # copies byte by byte (erms), a fifth level of page tables, a switch at each access to a user's memory.
    "tcg": ("-accel", "tcg,thread=single", "-icount", "shift=3", "-cpu", "max,-erms,-la57,-smap,-smep"),
    "tcg, real time": ("-accel", "tcg,thread=single", "-cpu", "max"),
}
# What protects the kernel from who is not in this machine, and takes an emulated one long.
_UNPROTECTED = "mitigations=off init_on_alloc=0 hardened_usercopy=off apparmor=0 audit=0"
_MASKED = ("serial-getty@ttyS0.service", "getty@tty1.service", "e2scrub_reap.service", "sysstat.service")


@dataclass(frozen=True)
class _Start:
    """How QEMU is started: with what accelerator, root disk (`-drive`) and, to go on from it, memory.

    A machine that is to be saved has a monitor, and a blank drive: what has been read of one that it boots
    with must not be taken for the checkout later.
    """

    accelerator: str
    root: str
    memory: Path | None = None
    to_save: bool = False


class QemuMachine:
    """A booted virtual machine with this checkout at /src (read-only) and, unless `bare`, slicer installed.

    Entering it raises Unavailable where this host cannot have one, MachineError when it does not boot.
    Leaving it, or this process's death by whatever cause, ends it and leaves nothing behind. With `console`,
    the terminal of this process is its serial console.
    """

    kind = "qemu"

    def __init__(self, suite: Suite, *, bare: bool = False, console: bool = False) -> None:
        self.suite = suite
        self._bare = bare
        self._console = console
        self._stack = ExitStack()
        self._qemu: subprocess.Popen[bytes] | None = None
        self._last_words = ""
        self._left = False

    def __enter__(self) -> QemuMachine:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._left = True
        self._stack.close()

    def _start(self) -> None:
        need_tools(QEMU_TOOLS)
        if platform.machine() != "x86_64":
            raise Unavailable(f"the QEMU machine is for x86_64, this is {platform.machine()}")
        source = self._stack.enter_context(image.use(self.suite, disk=True))
        self._stack.callback(self._end)
        self._boot_somehow(source)
        self._execute_checked(["sh", "-euc", f"date --set=@{time.time():.3f} >/dev/null; {_MOUNT_DRIVE}"])
        if not self._bare:
            self._execute_checked(checkout.INSTALL)

    def _boot_somehow(self, source: Image) -> None:
        """Boot with KVM if it works here, which is found out by trying, once per kernel; else with TCG."""
        verdict = image.cache_root() / f"kvm-{platform.release()}"
        wanted = os.environ.get("SLICER_QEMU_ACCEL")
        if wanted is None and (not os.access("/dev/kvm", os.R_OK | os.W_OK) or _read(verdict) == "broken"):
            wanted = "tcg"
        if wanted != "tcg":
            try:
                self._boot(source, "kvm")
            except MachineError:
                if wanted == "kvm" or self._left:
                    raise
                verdict.write_text("broken")
            else:
                return
        if self.suite.name == "bookworm":  # by a clock of instructions Linux 6.1 never starts its second CPU
            self._boot(source, "tcg, real time")
            return
        try:
            self._go_on(source)
        except (MachineError, OSError) as error:
            if self._left:
                raise
            image.say(f"booting a QEMU machine, as none goes on from a saved state: {error}")
            self._boot(source, "tcg")

    def _boot(self, source: Image, accelerator: str) -> None:
        self._run(source, _Start(accelerator, f"file={source.disk},format=raw,snapshot=on"))
        self._await_boot(BOOT_DEADLINE_S[accelerator])

    def _await_boot(self, deadline_s: float) -> None:
        if not self._wire.wait_ready(deadline_s):
            what = f"the {self.suite.name} QEMU machine did not boot within {deadline_s:g} s"
            raise MachineError(f"{what}\n{self.diagnosis()}")
        self._execute_checked(["sh", "-euc", _PREPARE])

    def _go_on(self, source: Image) -> None:
        """A boot takes minutes, emulated: go on from a saved one. The first machine of an image saves it."""
        with saved.use(source, lambda draft: self._save(source, draft)) as state:
            disk = f"file={state / saved.DISK},format=qcow2,snapshot=on"
            try:
                self._run(source, _Start("tcg", disk, memory=state / saved.MEMORY))
                self._execute_checked(["true"], timeout_s=GO_ON_DEADLINE_S)
            except CommandFailed:
                raise  # it goes on, if too slowly on this host
            except MachineError:
                if not self._left:
                    saved.remove(state)
                raise

    def _save(self, source: Image, draft: Path) -> None:
        """Boot, and save what has booted to a directory."""
        image.say(f"booting a {self.suite.name} QEMU machine, which others go on from (once, minutes)")
        disk = draft / saved.DISK
        saved.make_disk(disk, source.disk)
        self._run(source, _Start("tcg", f"file={disk},format=qcow2", to_save=True))
        self._await_boot(BOOT_DEADLINE_S["tcg"])
        with closing(saved.Monitor(self._log.with_name("monitor.sock"), self._is_alive)) as monitor:
            monitor.save_memory(draft / saved.MEMORY)
        self._end()

    def _run(self, source: Image, start: _Start) -> None:
        """Start QEMU, and no second one, and connect to the agent's port."""
        self._end()
        # The tether removes this directory, even if this process is killed.
        scratch = Path(tempfile.mkdtemp(prefix="slicer-qemu-"))
        self._log = scratch / "console.log"
        try:
            if start.to_save:
                checkout.blank_drive(scratch / "drive.img")
            else:
                checkout.make_drive(scratch / "drive.img", bare=self._bare)
            self._qemu = self._start_qemu(source, scratch, start)
        except BaseException:
            shutil.rmtree(scratch)
            raise
        try:
            self._wire = Wire(scratch / "agent.sock", self._is_alive)
        except MachineError as error:
            raise MachineError(f"{error} ({start.accelerator})\n{self.diagnosis()}") from error

    def _is_alive(self) -> bool:
        return self._qemu is not None and self._qemu.poll() is None

    def _start_qemu(self, source: Image, scratch: Path, start: _Start) -> subprocess.Popen[bytes]:
        tether = [sys.executable, "-m", "tests.machines.tether", "--remove", str(scratch)]
        tether += ["--tty"] if self._console else []
        with (scratch / "qemu.log").open("wb") as log:
            return subprocess.Popen(
                [*tether, "--", *self._qemu_words(source, scratch, start)],
                cwd=REPO,
                env=ENVIRON,
                stdin=subprocess.PIPE,
                stdout=None if self._console else log,
                stderr=None if self._console else subprocess.STDOUT,
                # Away from the terminal's Ctrl-C, unless the terminal is what it is for.
                start_new_session=not self._console,
            )

    def _qemu_words(self, source: Image, scratch: Path, start: _Start) -> list[str]:
        # On a busy host, udev has not found the agent's port within the default of 90 s.
        kernel = "root=/dev/vda rw console=ttyS0 panic=-1 systemd.default_device_timeout_sec=infinity "
        kernel += " ".join((_UNPROTECTED, *(f"systemd.mask={unit}" for unit in _MASKED)))
        kernel += " quiet loglevel=3 systemd.show_status=0" if self._console else " systemd.show_status=1"
        terminal = "stdio,id=console,mux=on,signal=off" if self._console else "null,id=console"
        drives = (start.root, f"file={scratch}/drive.img,format=raw")
        words = [saved.qemu(), "-nodefaults", "-no-user-config", "-no-reboot"]
        words += ["-display", "none", "-net", "none"]
        words += ["-machine", "q35", *_ACCELERATOR[start.accelerator]]
        words += ["-smp", str(CPUS), "-m", str(MEMORY_MIB)]
        words += ["-kernel", str(source.kernel), "-initrd", str(source.initrd), "-append", kernel]
        words += [word for drive in drives for word in ("-drive", f"{drive},if=virtio")]
        words += ["-chardev", f"{terminal},logfile={self._log}", "-serial", "chardev:console"]
        words += ["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]
        words += ["-chardev", f"socket,id=agent,path={scratch}/agent.sock,server=on,wait=off"]
        words += ["-device", "virtserialport,chardev=agent,name=slicer.agent"]
        words += ["-qmp", f"unix:{scratch}/monitor.sock,server=on,wait=off"] if start.to_save else []
        words += ["-incoming", f"exec:cat '{start.memory}'"] if start.memory else []
        return words

    def _execute_checked(self, argv: list[str], timeout_s: float = 900.0) -> None:
        self.execute(Command(argv, cwd="/"), timeout_s=timeout_s).checked()

    def execute(
        self, command: Command, *, timeout_s: float, on_output: Callable[[bytes], None] | None = None
    ) -> Result:
        """See Machine.execute."""
        stdout, stderr = bytearray(), bytearray()
        sinks = {"stdout": on_output or stdout.extend, "stderr": stderr.extend}
        call = self._wire.call(command.words(self.kind, self.suite), command.input)
        try:
            code = call.wait(timeout_s, sinks)
            timed_out = code is None
            if code is None:
                self._wire.call(command.kill_words(), b"")
                code = call.wait(KILL_GRACE_S, sinks)
        except MachineError as error:
            raise MachineError(f"{error}\n{self.diagnosis()}") from error
        if code is None:
            raise MachineError(f"the QEMU machine does not answer\n{self.diagnosis()}")
        out, err = (bytes(data).decode(errors="replace") for data in (stdout, stderr))
        return Result(command.argv, code, out, err, timed_out)

    def shell(self) -> int:
        """See Machine.shell. The terminal is the machine's serial console."""
        columns, rows = shutil.get_terminal_size()
        unit = [
            "systemd-run",
            "--quiet",
            "--wait",
            "--collect",
            "--service-type=exec",
            "-p",
            "StandardInput=tty-force",
        ]
        unit += ["-p", "StandardOutput=tty", "-p", "TTYPath=/dev/ttyS0", "-p", "WorkingDirectory=/src"]
        unit += [
            "-p",
            "PAMName=login",
            f"--setenv=TERM={os.environ.get('TERM', 'vt220')}",
            "--setenv=HOME=/root",
            "--",
        ]
        login = ["sh", "-c", f"stty cols {columns} rows {rows}; exec bash --login"]
        return self.execute(Command([*unit, *login]), timeout_s=threading.TIMEOUT_MAX).returncode

    def diagnosis(self) -> str:
        """See Machine.diagnosis."""
        texts = [_read(path) for path in (self._log.with_name("qemu.log"), self._log)]
        return tail("\n".join(text for text in texts if text)) or self._last_words

    def _end(self) -> None:
        if self._qemu is not None:
            self._last_words = self.diagnosis()
            end_tethered(self._qemu, END_DEADLINE_S)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""
