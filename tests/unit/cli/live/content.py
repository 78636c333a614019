"""A made-up content with eight GPUs; ``python -m tests.unit.cli.live.content`` rewrites its pages."""

from __future__ import annotations

from pathlib import Path

from slicer.cli.live.page import page
from slicer.cli.live.view import Content, View, settled
from slicer.cli.status_text import people
from slicer.columns import ASCII, UNICODE, Glyphs
from slicer.gpu.snapshot import GpuSnapshot, ProcessOnGpu
from slicer.ledger.halted import Halted
from slicer.model import Gpu, GpuLoad, GpuMemory, Lease, UserStanding
from slicer.outcome.job_files import DetachedJob
from slicer.record import replace
from tests.unit import made_up
from tests.unit.cli.made_up_status import NOW_S, made, process

PAGES = Path(__file__).with_name("pages")
ROOT, ALICE, BOB = 0, 54321, 54322  # the last two have no names
UUIDS = tuple(f"GPU-{letter * 4}" for letter in "abcdefgh")
GPUS = tuple(
    Gpu(i, uuid, "NVIDIA H100 80GB HBM3", 81559, i) for i, uuid in enumerate(UUIDS)
)


def job(number: int, name: str, uid: int, gpus: str, vram_gib: int | None, command: str) -> Lease:
    """A job that holds the GPUs with these digits."""
    job_id = f"{number:08x}beef"
    return made_up.lease(
        job_id, name=name, uid=uid, command=command, pid=4000 + number, keeper=0, profile="",
        unit=f"slicer-{job_id}.scope", cgroup=f"/gpu.slice/slicer-{job_id}.scope",
        gpus=tuple(UUIDS[int(each)] for each in gpus), since_s=NOW_S - 100 * number, slots={},
        vram_mib=None if vram_gib is None else vram_gib * 1024, vram_peak_mib=(),
        expect_s=7200.0 if number % 2 else None,
    )  # fmt: skip


JOBS = (
    job(1, "train", ALICE, "01", None, "python train.py --epochs 90 --config configs/large.yaml"),
    job(2, "eval", BOB, "2", 30, "python eval.py --checkpoint runs/17/last.pt"),
    replace(job(3, "notebook", BOB, "3", 20, "jupyter lab"), idle_since_s=NOW_S - 480, idle_warn_s=60.0),
    replace(job(4, "render", ROOT, "4", None, "blender -b scene.blend"), forced=1),
    *(job(i, f"sweep-{i}", ALICE, "5", 8, f"python sweep.py --seed {i} --lr 0.{i}") for i in range(5, 12)),
)
WAITING = tuple(
    made_up.ticket(
        f"{i:08x}cafe", name=f"big-{i}", command=f"python big.py {i}", uid=(ALICE, BOB)[i % 2], pid=1,
        arrived_s=NOW_S - 60 * i, gpus=8, cpu_slots=0, expect_s=600.0,
    )
    for i in range(30, 0, -1)
)  # fmt: skip
LATER = DetachedJob(
    "0000abcd0123", "report", ("python", "report.py"), "/", "light", "", 1, 1, "", (f"{JOBS[0].job}:ok",),
    1_700_000_000.0,
)  # fmt: skip


def _in(lease: Lease, gpu: int, gib: int) -> ProcessOnGpu:
    return process(UUIDS[gpu], lease.pid, gib * 1024, lease.cgroup)


PROCESSES = (
    _in(JOBS[0], 0, 70), _in(JOBS[0], 1, 71), _in(JOBS[1], 2, 33), _in(JOBS[2], 3, 12), _in(JOBS[3], 4, 9),
    *(_in(each, 5, 6) for each in JOBS[4:]), replace(process(UUIDS[6], 99, 2048), uid=BOB),
)  # fmt: skip
SEEN = GpuSnapshot(
    tuple(
        GpuMemory(uuid, 81559, sum(each.used_mib or 0 for each in PROCESSES if each.gpu_uuid == uuid))
        for uuid in UUIDS
    ),
    PROCESSES,
)  # fmt: skip
STATUS = made(
    JOBS, WAITING, SEEN, GPUS, later=(LATER,),
    load={uuid: GpuLoad(11 * i, 40 + i, 100 * i, 700) for i, uuid in enumerate(UUIDS[:7])},
    halted=(Halted(JOBS[1].job, "stopped", None), Halted(JOBS[4].job, "paused", NOW_S - 30)),
    users=(UserStanding(ALICE, 3, 4, 0, None, 0, None, 15, 0.6, 0.5),),
)  # fmt: skip
CONTENT = Content(STATUS, tuple(people(STATUS)), ("a warning",), "host  17:03:25", ALICE, 1_700_000_060.0)
VIEW = settled(View(), CONTENT)


def text(
    view: View, width: int, height: int, content: Content = CONTENT, message: str = "", mark: Glyphs = UNICODE
) -> str:
    """A page as text, without spaces at the ends of lines."""
    return "".join(f"{line.text.rstrip()}\n" for line in page(view, content, message, width, height, mark))


COPIES = {
    "80x12": lambda: text(VIEW, 80, 12),
    "80x12-waiting": lambda: text(settled(replace(VIEW, chosen=WAITING[9].job), CONTENT), 80, 12),
    "80x24": lambda: text(VIEW, 80, 24),
    "80x24-ascii": lambda: text(VIEW, 80, 24, mark=ASCII),
    "200x50": lambda: text(VIEW, 200, 50),
    "80x24-help": lambda: text(replace(VIEW, mode="help"), 80, 24),
}

if __name__ == "__main__":
    for name, copy in COPIES.items():
        (PAGES / f"{name}.txt").write_text(copy())
