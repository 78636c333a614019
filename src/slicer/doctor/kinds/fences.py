"""What can be found of the device fence and of a closed shop."""

from __future__ import annotations

from slicer.doctor.model import Kind

FOUND = (
    Kind(
        id="gpus-not-fenced",
        area="gpus",
        severity="note",
        title="your jobs can open GPUs that they have no lease on",
        why=(
            "Only the system's systemd can fence a job off from devices, with a BPF program: for root's "
            "jobs, and for everybody's where there is a broker. Else a lease binds who asks for one."
        ),
        cure="`slicer install --broker`, as root. In a container: have the host allow bpf(2) there.",
    ),
    Kind(
        id="closed-shop",
        area="gpus",
        severity="note",
        title="login sessions cannot open the GPUs (a closed shop)",
        why=(
            "Only jobs with a lease can, and services. nvidia-smi and the like fail in a shell. How much GPU "
            "memory a job uses is seen by its user's slicer only through the broker."
        ),
        cure="It is meant so. `slicer install --closed-shop --undo` takes it back.",
    ),
    Kind(
        id="closed-shop-without-broker",
        area="gpus",
        severity="problem",
        title="login sessions cannot open the GPUs, and there is no broker",
        why="Jobs of ordinary users run in login sessions then, and none of them can use a GPU.",
        cure="`slicer install --broker`, or `slicer install --closed-shop --undo`.",
    ),
    Kind(
        id="closed-shop-not-acting",
        area="gpus",
        severity="problem",
        title="the closed shop is installed, and the kernel knows nothing of it",
        why=(
            "Every login session can open the GPUs. systemd has not read the drop-in, or not acted on it "
            "yet: it may do so only when something starts. Or it may not load BPF programs."
        ),
        cure=(
            "`systemctl daemon-reload`, and start anything (`systemd-run true`). If that is not it, "
            "`journalctl -b -u user.slice` tells why."
        ),
    ),
)
