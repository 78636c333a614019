"""In place of ``slicer run``, where its own dependencies (NVML's) are missing: start a program as a sharing
job.

It takes those of slicer run's options that the checks use. It makes the job's file and the environment with
slicer's own code, and writes what slicer's outcome would say of the sharing. There is no lease, and no
supervisor that looks at NVML: so contexts are not in the cap. The variable BENCH_GPU_UUID says on which GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from slicer.record import as_dict
from slicer.share import environment, layout
from slicer.share.environment import FOLDER, ShareOrder
from slicer.share.program import library_path
from slicer.share.summary import sharing_of


def parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("run")
    parser.add_argument("-q", action="store_true")
    parser.add_argument("--no-wait", action="store_true")
    parser.add_argument("--vram", required=True, help="in MiB, as in 500M")
    parser.add_argument("--share", default="off")
    parser.add_argument("--share-mode", default="")
    parser.add_argument("--priority", type=int, default=0)
    parser.add_argument("--outcome", type=Path)
    for ignored in ("--name", "--gpu", "--gpus", "--backend"):
        parser.add_argument(ignored)
    parser.add_argument("command", nargs="+")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    said = parsed(argv)
    uuid = os.environ["BENCH_GPU_UUID"]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if said.share == "off":
        os.execvpe(said.command[0], said.command, environ)
    limit_mib = int(said.vram.removesuffix("M")) if said.share != "lock" else 0
    folder = Path(os.environ["SLICER_STATE_DIR"]) / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    order = ShareOrder(
        wants=said.share, mode=said.share_mode or "yield", is_mode_said=bool(said.share_mode), skip_syncs=0,
        over_cap="warn", priority=said.priority, limit_mib=limit_mib, outer_gpus=(), folder=str(folder),
        library=library_path(), problem="",
    )  # fmt: skip
    job = os.urandom(6).hex()
    path = folder / job
    path.touch(mode=0o600)
    path.write_bytes(layout.new(job, order.wants, order.priority, (uuid,), limit_mib << 20))
    try:
        process = subprocess.Popen(said.command, env=environment.variables(environ, order, job))
        signal.signal(signal.SIGTERM, lambda signo, _: process.send_signal(signo))
        code = process.wait()
        if said.outcome is not None:
            told = as_dict(sharing_of(order, layout.decode(path.read_bytes())))
            said.outcome.write_text(json.dumps({"sharing": told}))
    finally:
        path.unlink()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
