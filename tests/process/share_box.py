"""A box for tests of the preloaded library, without slicer around it: job files, clients of the fake driver.

The job's file is made here from ``job_file.h``, the arena is read as ``arena.h`` has it.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fake_cuda import Busy, FakeCuda
from tests.fake_cuda import clients as cuda_clients
from tests.patience import DEADLINE_S, LONGEST_S, Deadline, until

LIBRARY = "libslicer-share.so"
SOURCES = Path(__file__).parents[2] / "src" / "slicer" / "share" / "preload"
GPU0, GPU1 = "GPU-00000000-0000-0000-0000-000000000000", "GPU-11111111-1111-1111-1111-111111111111"
MIB = 1 << 20

WANTS = {"lock": 1, "cap": 2, "both": 3}
MAGIC, VERSION = 0x726168736C73626A, 1
MAX_GPUS, MAX_PROCESSES = 16, 256
COUNTERS = (
    "gated",
    "passed",
    "turns",
    "held_ns",
    "waits",
    "waited_ns",
    "longest_ns",
    "undrained",
    "allocations",
    "refused",
    "uncounted",
)
TROUBLES = {
    1: "no-arena",
    2: "no-row",
    4: "pool-full",
    8: "mps",
    16: "other-gpu",
    32: "undrained",
    64: "arena-busy",
}
HEAD = struct.Struct(f"=QII16sIiII{48 * MAX_GPUS}s{MAX_GPUS}Q")
LIVE = struct.Struct(f"={MAX_GPUS}QII16Q{MAX_GPUS}Q")
ROW = struct.Struct(f"=iI{MAX_GPUS}Q")
SIZE = HEAD.size + LIVE.size + MAX_PROCESSES * ROW.size

# arena.h
ARENA_JOBS, ARENA_JOB_AT, ARENA_JOB = 128, 3136, struct.Struct("=16sIiQIIIIQQIIIIQQQ24x")
ARENA_PROCESSES, ARENA_PROCESS_AT, ARENA_PROCESS = 512, 19520, struct.Struct("=IiIIIIII QQ16x")
TURNS = ("none", "waiting", "has", "yields")


FAULTS = "-DSLICER_SHARE_FAULTS"  # with points at which tests kill and stop a process
COMPILE = ["-std=c11", "-D_GNU_SOURCE", "-fPIC", "-pthread", "-fvisibility=hidden"]
COMPILE += ["-ftls-model=initial-exec", "-Wall", "-Wextra", "-Werror"]


def shipped_library() -> Path | None:
    """The library as the package's build made it, if no source is newer."""
    library = SOURCES.parent / LIBRARY
    if not library.exists():
        return None
    built = library.stat().st_mtime_ns
    return library if all(path.stat().st_mtime_ns < built for path in SOURCES.glob("*.[ch]")) else None


def build_pool(directory: Path) -> Path:
    """Compile the thousand wrappers, which take the compiler long and only pass on."""
    directory.mkdir(parents=True, exist_ok=True)
    cc = [os.environ.get("CC", "cc"), *COMPILE, "-O1"]
    subprocess.run([*cc, "-c", str(SOURCES / "pool.c")], check=True, cwd=directory)
    return directory / "pool.o"


def build_library(directory: Path, pool: Path, *flags: str) -> Path:
    """Compile the library much as the package does, with these flags besides; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    sources = [str(path) for path in sorted(SOURCES.glob("*.c")) if path.name != "pool.c"]
    if FAULTS in flags:
        sources.append(str(Path(__file__).with_name("share_faults.c")))
    cc = [os.environ.get("CC", "cc"), *COMPILE, f"-I{SOURCES}", "-O2", "-g", *flags]
    library = ["-shared", "-o", LIBRARY, str(pool), *sources, "-ldl", "-lpthread"]
    subprocess.run([*cc, *library], check=True, cwd=directory)
    return directory / LIBRARY


class Told(NamedTuple):
    """What the library wrote into a job's file."""

    troubles: set[str]
    rows: int
    counters: dict[str, int]
    peak_mib: list[float]
    charged_mib: float
    """By all rows of GPU 0, dead ones too."""


class Job:
    """A job's file."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self.id = path.name
        path.write_bytes(content)
        path.chmod(0o600)

    def told(self) -> Told:
        data = self.path.read_bytes()
        live = LIVE.unpack_from(data, HEAD.size)
        rows = [ROW.unpack_from(data, HEAD.size + LIVE.size + ROW.size * n) for n in range(MAX_PROCESSES)]
        after = live[MAX_GPUS + 2 :]
        return Told(
            {name for bit, name in TROUBLES.items() if live[MAX_GPUS] & bit},
            live[MAX_GPUS + 1],
            dict(zip(COUNTERS, after, strict=False)),
            [peak / MIB for peak in after[16:]],
            sum(row[2] for row in rows) / MIB,
        )

    def count(self, counter: str) -> int:
        return self.told().counters[counter]

    def put(self, offset: int, data: bytes) -> None:
        """Write into the file, for running processes too."""
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def set_overhead(self, mib: int) -> None:
        """What slicer saw on GPU 0 beyond what was charged."""
        self.put(HEAD.size, struct.pack("=Q", mib * MIB))


def job_content(
    job_id: str, *, wants: str = "lock", priority: int = 0, gpus: Sequence[str] = (GPU0,), limit_mib: int = 0
) -> bytes:
    """A job's file as slicer makes it."""
    uuids = b"".join(uuid.encode().ljust(48, b"\0") for uuid in gpus).ljust(48 * MAX_GPUS, b"\0")
    limits = [limit_mib * MIB] * len(gpus) + [0] * (MAX_GPUS - len(gpus))
    head = HEAD.pack(
        MAGIC, VERSION, SIZE, job_id.encode(), WANTS[wants], priority, len(gpus), 0, uuids, *limits
    )
    return head.ljust(SIZE, b"\0")


class Answer(NamedTuple):
    code: int
    words: list[str]


class Client:
    """A running client of the driver."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._stderr = stderr
        self._heard = b""

    def ask(self, command: str) -> Answer:
        """Give it a command, and wait for the answer."""
        self.tell(command)
        return self.hear()

    def do(self, *commands: str) -> list[str]:
        """Give it commands that must succeed; what the last one said."""
        words: list[str] = []
        for command in commands:
            answer = self.ask(command)
            assert answer.code == 0, f"{command}: {answer}; {self.said()}"
            words = answer.words
        return words

    def tell(self, command: str) -> None:
        """Give it a command; ``hear`` gets the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, deadline_s: float = DEADLINE_S) -> Answer:
        """Wait for the answer to the command that was told first."""
        deadline = Deadline(deadline_s)
        while not self.has_answered(0.1):
            assert not deadline.has_passed(), f"no answer; {self.said()}"
        line, self._heard = self._heard.split(b"\n", 1)
        code, *words = line.decode().split()
        return Answer(int(code), words)

    def has_answered(self, wait_s: float = 0.0) -> bool:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        poller = select.poll()  # select takes no descriptor beyond 1023
        poller.register(descriptor, select.POLLIN)
        if b"\n" not in self._heard and poller.poll(wait_s * 1000):
            got = os.read(descriptor, 1 << 16)
            assert got, f"ended with {self.process.wait()}; {self.said()}"
            self._heard += got
        return b"\n" in self._heard

    def is_stopped(self) -> bool:
        """By a signal."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def said(self) -> str:
        """What it wrote to stderr."""
        return self._stderr.read_text(errors="replace")

    def hammer(self, us: int, every: int) -> None:
        """Let a thread launch kernels of ``us``, and wait after each ``every`` (0: never). It has begun."""
        self.do(f"hammer {us} {every}")
        until(lambda: int(self.do("progress")[0]) > 3, "it works")

    def halt(self) -> None:
        """End that thread, and wait for its work."""
        self.do("halt", "sync")

    def end(self) -> int:
        """Let it come to its end; the exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(LONGEST_S)

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Kill it, and wait until it is gone."""
        self.process.send_signal(signum)
        self.process.wait()

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # it ended before it read all


class Turn(NamedTuple):
    """A job in the arena."""

    state: str
    priority: int
    turns: int
    has_started: bool


class ShareBox:
    """Job files in a state directory of their own, and clients with the library preloaded."""

    def __init__(self, root: Path, fake: FakeCuda, clients: Path, library: Path) -> None:
        self.fake = fake
        self.clients = clients
        self.library = library
        self.share = root / "share"
        self.share.mkdir(mode=0o700)
        self._root = root
        self._jobs = 0
        self._started: list[Client] = []

    def job(
        self, *, wants: str = "lock", priority: int = 0, gpus: Sequence[str] = (GPU0,), limit_mib: int = 0
    ) -> Job:
        self._jobs += 1
        job_id = f"{self._jobs:012x}"
        content = job_content(job_id, wants=wants, priority=priority, gpus=gpus, limit_mib=limit_mib)
        return Job(self.share / job_id, content)

    def env(self, job: Job | Path | None, preload: Sequence[Path] | None = None) -> dict[str, str]:
        """What slicer adds to the environment of a job."""
        first = [self.library] if preload is None else preload
        env = dict(self.fake.env)
        if first:
            env["LD_PRELOAD"] = ":".join(map(str, first))
        if job is not None:
            env["SLICER_SHARE_FILE"] = str(job.path if isinstance(job, Job) else job)
        return env

    def start(
        self,
        job: Job | Path | None,
        way: str = "dlsym",
        *,
        env: Mapping[str, str] | None = None,
        preload: Sequence[Path] | None = None,
        argv: Sequence[str] | None = None,
        stderr_to: int | None = None,
    ) -> Client:
        """A client of the job. Nothing of CUDA has been called yet."""
        stderr = self._root / f"stderr-{len(self._started)}"
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLICER_", "CUDA_", "LD_PRELOAD"))
        }
        with stderr.open("wb") as file:
            process = subprocess.Popen(
                argv or cuda_clients.command(self.clients, way, [sys.executable]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file if stderr_to is None else stderr_to,
                env={**environment, **self.env(job, preload), **(env or {})},
            )
        self._started.append(Client(process, stderr))
        return self._started[-1]

    def ready(self, job: Job | None, way: str = "dlsym", **more: object) -> Client:
        """A client with a context on GPU 0, which has launched nothing yet."""
        client = self.start(job, way, **more)  # type: ignore[arg-type]
        client.do("init", "context")
        return client

    @property
    def arena(self) -> Path:
        return self.share / "arena-2"

    def turn(self, job: Job) -> Turn:
        """What the arena says of a job."""
        data = self.arena.read_bytes() if self.arena.exists() else b""
        for number in range(ARENA_JOBS if data else 0):
            row = ARENA_JOB.unpack_from(data, ARENA_JOB_AT + number * ARENA_JOB.size)
            if row[1] and row[0].rstrip(b"\0").decode() == job.id:
                return Turn(TURNS[row[10] & 3], row[2], row[14], True)
        return Turn("none", 0, 0, False)

    def until_turn(self, job: Job, state: str) -> None:
        """Wait until the arena says that a job waits for its turn, or has it."""
        until(lambda: self.turn(job).state == state, f"{job.id} {state}: {self.turn(job)}")

    def close(self) -> None:
        for client in self._started:
            client.close()


def overlaps(fake: FakeCuda, *jobs: Sequence[Client], killed: Mapping[int, int] | None = None) -> list[str]:
    """Where work of two of these jobs (their clients) was on one GPU at once, by the driver's own log.

    ``killed``: by pid, when a process was killed, in ns. From then on it had no work.
    """
    owner = {client.pid: number for number, job in enumerate(jobs) for client in job}
    ends = killed or {}
    found: list[str] = []
    last: dict[tuple[int, int], Busy] = {}  # by GPU and job
    for busy in fake.busy():
        if busy.pid not in owner or busy.start >= ends.get(busy.pid, busy.end):
            continue
        cut = busy._replace(end=min(busy.end, ends.get(busy.pid, busy.end)))
        for (gpu, job), before in last.items():
            if gpu == cut.gpu and job != owner[cut.pid] and before.end > cut.start:
                found.append(f"{before} and {cut}")
        here = (cut.gpu, owner[cut.pid])
        if here not in last or last[here].end < cut.end:
            last[here] = cut
    return found
