"""What can be found of installed files, the configuration, the environment, and other programs."""

from __future__ import annotations

from slicer.doctor.model import Kind

FOUND = (
    # -- units -----------------------------------------------------------------------------------------------
    Kind(
        id="units-missing",
        area="units",
        severity="note",
        title="slicer's slices are not installed",
        why=(
            "Jobs run all the same, but gpu.slice and cpu.slice as a whole have no weights against the"
            " rest of the machine, and `journalctl -x` explains no event."
        ),
        cure="`slicer install` as root, or `slicer install --user` for yourself.",
    ),
    Kind(
        id="units-outdated",
        area="units",
        severity="warning",
        title="slicer's unit files are those of another version",
        why="Slices and explanations are not what this version's documentation says.",
        cure="`slicer install` as root, or `slicer install --user`.",
    ),
    Kind(
        id="units-edited",
        area="units",
        severity="note",
        title="somebody edited unit files of slicer's",
        why="`slicer install` leaves them alone, so they stay as they are in an upgrade.",
        cure="Put changes into `systemctl edit UNIT`; then `slicer install --force`.",
    ),
    Kind(
        id="slice-masked",
        area="units",
        severity="problem",
        title="a slice of slicer's is masked",
        why="systemd refuses every job in it.",
        cure="`systemctl unmask gpu.slice cpu.slice`.",
    ),
    # -- configuration ---------------------------------------------------------------------------------------
    Kind(
        id="configuration-broken",
        area="configuration",
        severity="problem",
        title="a configuration file has a mistake",
        why="slicer starts no job until it is mended. What runs is not touched.",
        cure="The line that the finding names.",
    ),
    Kind(
        id="configuration-warning",
        area="configuration",
        severity="warning",
        title="a configuration file is passed over",
        why="What it says does not hold.",
        cure="As the finding says.",
    ),
    # -- environment -----------------------------------------------------------------------------------------
    Kind(
        id="package-overwritten",
        area="environment",
        severity="problem",
        title="another distribution called slicer is in slicer's own environment",
        why=(
            "shap needs a library of that name. Both write site-packages/slicer, so one has "
            "overwritten files of the other, and taking one out breaks the other."
        ),
        cure=(
            "Take slicer out of that environment, put the other library back, and install slicer in an "
            "environment of its own: `pipx install .` in its source directory."
        ),
    ),
    Kind(
        id="import-is-another",
        area="environment",
        severity="note",
        title="`import slicer` is another package in the Python on your PATH",
        why=(
            "slicer's Python API is not to be had there; that name belongs to a library that shap "
            "needs. The command line works everywhere."
        ),
        cure=(
            "Call the command (`slicer run -- python …`), or use the Python that slicer is installed "
            "in."
        ),
    ),
    Kind(
        id="several-slicers",
        area="environment",
        severity="warning",
        title="there are several slicers on PATH",
        why=(
            "The first one counts, and root's PATH may have another. Versions that differ may refuse "
            "each other's ledger."
        ),
        cure="`which -a slicer`; remove those that are not meant.",
    ),
    Kind(
        id="sudo-finds-no-slicer",
        area="environment",
        severity="note",
        title="`sudo slicer` does not find this slicer",
        why=(
            "sudo searches its secure_path, not yours. Do not let root run a slicer that you can write: "
            "whatever changes it then becomes root."
        ),
        cure=(
            "A slicer for root and all users: the Debian package, or, in slicer's source directory, "
            "`sudo PIPX_HOME=/opt/pipx PIPX_BIN_DIR=/usr/local/bin pipx install .`. A link in /usr/local/bin "
            "does where slicer is root's already."
        ),
    ),
    Kind(
        id="sudo-drops-variables",
        area="environment",
        severity="note",
        title="sudo drops variables that change what slicer does",
        why="`sudo slicer …` and jobs that call sudo do not see them (env_reset).",
        cure=(
            '`sudo --preserve-env=NAMES …`, or `Defaults env_keep += "NAMES"` in '
            "/etc/sudoers.d/slicer."
        ),
    ),
    Kind(
        id="under-sudo",
        area="environment",
        severity="note",
        title="this is root's slicer, under sudo",
        why="Root's leases and yours do not exclude each other: they are kept in two ledgers.",
        cure="Run all GPU jobs of a machine as one user, or all as root.",
    ),
    Kind(
        id="simulation-on",
        area="environment",
        severity="warning",
        title="SLICER_SIM is set: GPUs are simulated",
        why="Jobs get no real GPU, and leases do not meet those of other terminals.",
        cure="`unset SLICER_SIM`.",
    ),
    Kind(
        id="gpu-lock-skipped",
        area="environment",
        severity="warning",
        title="SLICER_SKIP_GPU_LOCK is set",
        why="Jobs start on GPUs without a lease, beside whoever holds them.",
        cure="`unset SLICER_SKIP_GPU_LOCK PSRUN_SKIP_GPU_LOCK`.",
    ),
    Kind(
        id="gpu-lock-claimed",
        area="environment",
        severity="warning",
        title="GPU_LOCK_HELD is set outside of a job",
        why="slicer believes that a wrapper around it holds the GPUs, and takes no lease on one.",
        cure="`unset GPU_LOCK_HELD`, also in your shell's start-up files.",
    ),
    Kind(
        id="fault-points-on",
        area="environment",
        severity="warning",
        title="SLICER_FAULTS is set",
        why="It kills slicer at named points. It is for slicer's own tests.",
        cure="`unset SLICER_FAULTS`.",
    ),
    Kind(
        id="inside-a-job",
        area="environment",
        severity="note",
        title="this shell is inside a job of slicer's",
        why="What is said here holds for jobs inside that job, which have no scope of their own.",
        cure="Nothing has to be done.",
    ),
    # -- wraps -----------------------------------------------------------------------------------------------
    Kind(
        id="wrap-broken",
        area="wraps",
        severity="problem",
        title="calls of a wrapped program fail",
        why="Its shim, its program, the slicer that the shim calls, or its route is gone.",
        cure=(
            "`slicer wrap check --fix`; where the program itself is gone, install it again, or take the shim "
            "away with `slicer wrap remove BIN`."
        ),
    ),
    Kind(
        id="wrap-replaced",
        area="wraps",
        severity="warning",
        title="a wrapped program is called without its route",
        why=(
            "An upgrade (of pip, of a package manager other than dpkg) or a person has put another file in "
            "place of the shim. Its jobs run beside all others, without a lease and without limits."
        ),
        cure="`slicer wrap check --fix`, or `slicer wrap install BIN --route NAME` again.",
    ),
    Kind(
        id="wrap-unfinished",
        area="wraps",
        severity="warning",
        title="a wrap is not as it was made",
        why=(
            "Something ended slicer while it wrapped or unwrapped the program, or somebody has changed the "
            "shim or taken back dpkg's diversion. Calls may go through the route or not."
        ),
        cure="`slicer wrap check --fix`; `slicer wrap remove BIN` where all of it is gone.",
    ),
    Kind(
        id="wrap-record-unusable",
        area="wraps",
        severity="warning",
        title="a record of a wrapped program is passed over",
        why="slicer did not write it, or it is damaged. So nobody looks after that program's shim.",
        cure="Remove the file; `slicer wrap install BIN --route NAME` records the shim anew.",
    ),
    # -- others ----------------------------------------------------------------------------------------------
    Kind(
        id="gpu-lock-held",
        area="others",
        severity="warning",
        title="a script holds the GPU lock",
        why="No GPU job of slicer's starts until it lets go (compat_gpu_lock).",
        cure="`ps -fp PID`: wait for it, or end it.",
    ),
    Kind(
        id="gpu-lock-unusable",
        area="others",
        severity="problem",
        title="the file of the GPU lock cannot be used",
        why="Every job that wants a GPU fails over it.",
        cure="Mend compat_gpu_lock in the configuration, or GPU_LOCK_PATH.",
    ),
    Kind(
        id="docker-is-outside",
        area="others",
        severity="note",
        title="docker's containers run outside of slicer's scopes",
        why=(
            "`slicer run -- docker run …` limits the docker client only: dockerd starts the container "
            "in a cgroup of its own, and its GPU memory counts as foreign."
        ),
        cure=(
            "`docker run --cgroup-parent=gpu.slice …` puts it under the slice's limits; or rootless "
            "podman with `--cgroups=disabled`."
        ),
    ),
    Kind(
        id="docker-cgroupfs",
        area="others",
        severity="note",
        title="docker makes cgroups behind systemd's back (driver cgroupfs)",
        why=(
            "`--cgroup-parent=gpu.slice` then makes a cgroup that systemd does not know, beside the "
            "real slice."
        ),
        cure=(
            '`{"exec-opts": ["native.cgroupdriver=systemd"]}` in /etc/docker/daemon.json, then '
            "`systemctl restart docker`."
        ),
    ),
    Kind(
        id="other-scheduler",
        area="others",
        severity="warning",
        title="another scheduler runs here",
        why=(
            "It may hand out the same GPUs. Neither knows of the other: slicer sees its jobs as "
            "foreign processes only."
        ),
        cure="Give each its own GPUs, or start jobs of one through the other.",
    ),
    Kind(
        id="look-hangs",
        area="others",
        severity="warning",
        title="a look at the machine did not end in time",
        why="A file system or a driver hangs. What it would have told is not known.",
        cure="`ps -eo pid,stat,wchan:32,cmd | grep ' D'` shows processes that hang in the kernel.",
    ),
    Kind(
        id="look-failed",
        area="others",
        severity="warning",
        title="a look at the machine failed",
        why="What it would have told is not known.",
        cure="Please report it, with the output.",
    ),
)
