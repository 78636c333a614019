"""The library under the compiler's sanitizers: no bad access, no race, nothing undefined.

The runtime of the sanitizer is preloaded before the library, so programs that know nothing of it can run.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.fake_cuda import FakeCuda
from tests.process.share_box import ShareBox, overlaps
from tests.process.share_fixtures import Variant

pytest_plugins = ["tests.process.share_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.with_ci]

SANITIZERS = {
    "asan": ["-fsanitize=address", "-fno-omit-frame-pointer"],
    "tsan": ["-fsanitize=thread"],
    "ubsan": ["-fsanitize=undefined", "-fno-sanitize-recover=all"],
}
ENV = {
    "SLICER_SHARE_QUANTUM_MS": "3",
    "SLICER_SHARE_WINDOW_MS": "100",  # nobody is overtaken, however slow the machine is
    "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0",  # the driver's objects live as long as the process
    "TSAN_OPTIONS": "exitcode=66",
}


def runtime(name: str) -> Path:
    """The shared library of a sanitizer's runtime."""
    command = [os.environ.get("CC", "cc"), f"-print-file-name=lib{name}.so"]
    path = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    if not path.is_absolute():
        pytest.skip(f"no lib{name} for the C compiler")
    return path.resolve()


@pytest.mark.parametrize("name", SANITIZERS)
def test_the_library_is_clean_under_a_sanitizer(  # D5
    build_variant: Variant, shared_gpus: FakeCuda, cuda_clients: Path, tmp_path: Path, name: str
) -> None:
    first = runtime(name)
    library = build_variant(name, "-g1", "-O1", *SANITIZERS[name])
    share = ShareBox(tmp_path, shared_gpus, cuda_clients, library)
    jobs = [share.job(wants="both", priority=priority, limit_mib=1000) for priority in (0, 0, 1)]
    try:
        clients = [
            share.start(job, way, env=ENV, preload=[first, library])
            for job, way in zip(jobs, ("dlsym", "linked", "cudart"), strict=True)
        ]
        for client in clients:
            client.do("init", "context", "copy 5000", "alloc create 10", "free 0", "nvml 0")
        for command in ("threads 4 work 100 20 3", "threads 4 churn linear 20 5", "threads 4 relookup"):
            for client in clients:
                client.tell(command)
            assert [client.hear().words for client in clients] == [["4"]] * 3
        for client in clients:
            client.do("stream", "begin 0 1", "spin 100 0", "end 0", "graph 0 0", "vmm 4", "sync")
            assert client.ask("fork init").code == 3
            client.do("primary", "spin 100", "reset", "use 0", "destroy 0")
        for client in clients:
            assert client.end() == 0, client.said()
            assert client.said() == ""
    finally:
        share.close()
    assert overlaps(shared_gpus, *([client] for client in clients)) == []
    assert all(job.count("gated") > 80 for job in jobs)
