"""What is said of lines that are valid, but probably mistakes."""

from __future__ import annotations

from slicer.queue.file.doubts import Doubts
from slicer.queue.file.shell import Shell

DASH, BASH = Shell("/bin/sh", "/bin/sh", "dash"), Shell("bash", "/usr/bin/bash", "bash")
ENDED = "its command would be ended as soon as it has started"


def doubts(shell: Shell = DASH, **environ: str) -> Doubts:
    return Doubts("jobs.txt", shell, lambda profile: profile == "waits", environ)


def test_so_little_memory_that_gib_must_have_been_meant_is_doubted() -> None:  # W33, E1
    text = "a\n[vram=18] b\n[vram=18000] c\n[vram=255M] d\n[ vram=8 gpus=2] e\n# [vram=8] f\n"
    assert doubts().of(text) == [
        "jobs.txt:2:2: vram=18 is 18 MiB; for GiB, write vram=18G (and 1 line more)"
    ]


def test_a_command_in_the_background_is_doubted_unless_its_profile_waits() -> None:  # U17
    text = "a\n  [vram=8G]  nohup b > log 2>&1 &\nc &\n[profile=waits] d &\n"
    cure = "drop the &, or set linger = true in its profile"
    said = f'jobs.txt:2:33: the line ends with "&": {ENDED} ({cure}) (and 1 line more)'
    assert doubts().of(text) == doubts(BASH).of(text) == [said]


def test_a_redirection_that_the_shell_does_not_know_is_doubted() -> None:  # U17
    cure = "write > FILE 2>&1, or use --shell bash"
    said = f'jobs.txt:1:3: dash reads "&>" as "&" and ">": {ENDED} ({cure})'
    assert doubts().of("a &> log") == [said]
    assert doubts(BASH).of("a &> log") == []


def test_a_container_that_leaves_the_job_is_doubted() -> None:  # U5
    said = "dockerd starts it outside of the job, without its GPUs and limits (podman does not)"
    for line, column in (
        ("docker run --rm image python a.py", 1), ("[gpus=1] cd x && docker -D container run image", 18),
        ("docker compose up", 1), ("docker-compose run a", 1),
    ):  # fmt: skip
        assert doubts().of(line) == [f"jobs.txt:1:{column}: {said}"], line
    for line in ("podman run image", "docker pull image", "python docker run.py", "echo my-docker run"):
        assert doubts().of(line) == [], line


def test_a_gpu_that_a_line_chooses_past_its_lease_is_doubted() -> None:  # U18
    for line, column in (
        ("CUDA_VISIBLE_DEVICES=1 python a.py", 1),
        ("[vram=8G] cd x && export CUDA_VISIBLE_DEVICES='0,1'; python a.py", 26),
        ("[env.CUDA_VISIBLE_DEVICES=GPU-1f] python a.py", 6),
    ):
        (said,) = doubts().of(line)
        assert said.startswith(f"jobs.txt:1:{column}: CUDA_VISIBLE_DEVICES=")
        assert said.endswith("uses a GPU that the job may have no lease on (drop it: slicer sets it)")
    for line in (
        "CUDA_VISIBLE_DEVICES= python a.py",
        "CUDA_VISIBLE_DEVICES=-1 python a.py",
        "CUDA_VISIBLE_DEVICES=$SLICER_GPU_INDICES python a.py",
        "podman run --env CUDA_VISIBLE_DEVICES=0 image",
        "python a.py --set=CUDA_VISIBLE_DEVICES=0 $CUDA_VISIBLE_DEVICES",
    ):
        assert doubts().of(line) == []


def test_each_kind_is_said_and_each_line_once() -> None:
    known = doubts()
    assert len(known.of("[vram=8] a &\n[vram=8] b\n")) == 2
    assert known.of("# moved\n[vram=8] a &\n") == []
    assert [each.partition(":")[2][:4] for each in known.of("[vram=8] a &\nc &\n")] == ["2:3:"]


def test_a_function_that_bash_exported_and_the_shell_drops_is_doubted() -> None:  # U17
    exported = {"BASH_FUNC_module%%": "() { :\n}", "BASH_FUNC_f%%": "() { :\n}"}
    text = "module load cuda && python f.py --module=x\nbash -c f\n./module\n"
    dropped = "is bash's function, which dash drops (use --shell bash)"
    assert doubts(DASH, **exported).of(text) == [
        f"jobs.txt:1:1: module {dropped}", f"jobs.txt:2:9: f {dropped}",
    ]  # fmt: skip
    assert doubts(BASH, **exported).of(text) == []
