"""The QEMU machine: Debian's own kernel in a virtual machine, where limits act. Runs without root."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.machines import checkout, image
from tests.machines.host import ENVIRON, QEMU_TOOLS, REPO, MachineError, Unavailable, need_tools, tail, tool
from tests.machines.image import Image
from tests.machines.machine import Command, Result
from tests.machines.recipe import Suite
from tests.machines.tether import end_tethered
from tests.machines.wire import Wire

MEMORY_MIB = 2048
CPUS = 2
BOOT_DEADLINE_S = {"kvm": 40.0, "tcg": 300.0}
END_DEADLINE_S = 10.0
KILL_GRACE_S = 60.0

# The drive's two directories appear where they are in the namespace machine.
_MOUNT_DRIVE = (
    "mount -o ro LABEL=slicer-src /mnt; mount --bind /mnt/source /src; mount --bind /mnt/wheel /wheel"
)
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
_ACCELERATOR = {
    "kvm": ("-accel", "kvm", "-cpu", "host"),
    # One thread for all CPUs: emulated side by side, one may run what the kernel, which patches its own code
    # (a first cpuset, for one), has already taken back: a panic now and then.
    "tcg": ("-accel", "tcg,thread=single", "-cpu", "max"),
}
_MASKED = ("serial-getty@ttyS0.service", "getty@tty1.service", "e2scrub_reap.service", "sysstat.service")


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
        self._boot_somehow(source)
        self._execute_checked(["sh", "-euc", f"{_MOUNT_DRIVE}; {_LOGIND}; {_GENERATORS}"])
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
        self._boot(source, "tcg")

    def _boot(self, source: Image, accelerator: str) -> None:
        # The tether removes this directory, even if this process is killed.
        scratch = Path(tempfile.mkdtemp(prefix="slicer-qemu-"))
        self._log = scratch / "console.log"
        try:
            checkout.make_drive(scratch / "drive.img", bare=self._bare)
            qemu = self._start_qemu(source, scratch, accelerator)
        except BaseException:
            shutil.rmtree(scratch)
            raise
        self._qemu = qemu
        self._stack.callback(self._end, qemu)
        try:
            self._wire = Wire(scratch / "agent.sock", alive=lambda: qemu.poll() is None)
            deadline_s = BOOT_DEADLINE_S[accelerator]
            if not self._wire.wait_ready(deadline_s):
                raise MachineError(f"the {self.suite.name} QEMU machine did not boot within {deadline_s:g} s")
        except MachineError as error:
            self._end(qemu)
            raise MachineError(f"{error} ({accelerator})\n{self.diagnosis()}") from error

    def _start_qemu(self, source: Image, scratch: Path, accelerator: str) -> subprocess.Popen[bytes]:
        tether = [sys.executable, "-m", "tests.machines.tether", "--remove", str(scratch)]
        tether += ["--tty"] if self._console else []
        with (scratch / "qemu.log").open("wb") as log:
            return subprocess.Popen(
                [*tether, "--", *self._qemu_words(source, scratch, accelerator)],
                cwd=REPO,
                env=ENVIRON,
                stdin=subprocess.PIPE,
                stdout=None if self._console else log,
                stderr=None if self._console else subprocess.STDOUT,
                # Away from the terminal's Ctrl-C, unless the terminal is what it is for.
                start_new_session=not self._console,
            )

    def _qemu_words(self, source: Image, scratch: Path, accelerator: str) -> list[str]:
        kernel = "root=/dev/vda rw console=ttyS0 panic=-1 " + " ".join(
            f"systemd.mask={unit}" for unit in _MASKED
        )
        kernel += " quiet loglevel=3 systemd.show_status=0" if self._console else " systemd.show_status=1"
        terminal = "stdio,id=console,mux=on,signal=off" if self._console else "null,id=console"
        drives = (
            f"file={source.disk},format=raw,if=virtio,snapshot=on",
            f"file={scratch}/drive.img,format=raw,if=virtio",
        )
        qemu = tool("qemu-system-x86_64") or "qemu-system-x86_64"
        words = [
            qemu,
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-net",
            "none",
        ]
        words += ["-machine", "q35", *_ACCELERATOR[accelerator]]
        words += ["-smp", str(CPUS), "-m", str(MEMORY_MIB)]
        words += ["-kernel", str(source.kernel), "-initrd", str(source.initrd), "-append", kernel]
        words += [word for drive in drives for word in ("-drive", drive)]
        words += ["-chardev", f"{terminal},logfile={self._log}", "-serial", "chardev:console"]
        words += ["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]
        words += ["-chardev", f"socket,id=agent,path={scratch}/agent.sock,server=on,wait=off"]
        words += ["-device", "virtserialport,chardev=agent,name=slicer.agent"]
        return words

    def _execute_checked(self, argv: list[str]) -> None:
        self.execute(Command(argv, cwd="/"), timeout_s=300).checked()

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

    def _end(self, qemu: subprocess.Popen[bytes]) -> None:
        self._last_words = self.diagnosis()
        end_tethered(qemu, END_DEADLINE_S)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""
