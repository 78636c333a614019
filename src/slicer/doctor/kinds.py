"""Everything that the doctor can find. The ids are stable: scripts and people's notes refer to them.

docs/doctor.md is this table (``python -m tests.unit.doctor`` writes it). Pure.
"""

from __future__ import annotations

from slicer.doctor.model import Finding, Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.doctor.model import Area, Severity

_FOUND: list[Kind] = []


def _kind(area: Area, id: str, severity: Severity, title: str, why: str, cure: str) -> None:
    _FOUND.append(Kind(id, area, severity, title, why, cure))


# -- systemd ------------------------------------------------------------------------------------------------
_kind(
    "systemd", "no-systemd", "warning",
    "systemd does not run here",
    "There are no scopes. Limits are best effort: CPU affinity, niceness, and a guard that looks at memory.",
    "Run slicer where systemd is PID 1: on the host instead of in the container; under WSL with `systemd=true`.",
)  # fmt: skip
_kind(
    "systemd", "no-pystemd", "problem",
    "the Python module pystemd cannot be loaded",
    "slicer asks systemd for scopes with it. Without it no job starts.",
    "`apt install python3-pystemd`, or reinstall slicer where a compiler and libsystemd-dev are.",
)  # fmt: skip
_kind(
    "systemd", "manager-unreachable", "problem",
    "the systemd manager that would run your jobs does not answer",
    "A user's jobs run in the user's own manager, which lives while the user is logged in, or lingers. Root's run"
    " in the system manager, which is asked over D-Bus. Without it no job starts.",
    "`loginctl enable-linger USER` for a user, `systemctl start dbus.socket` for root.",
)  # fmt: skip
_kind(
    "systemd", "systemd-hangs", "problem",
    "systemd does not answer in time",
    "Every job waits for systemd to make its scope.",
    "`systemctl list-jobs`; see what PID 1 waits for.",
)  # fmt: skip
_kind(
    "systemd", "systemd-old", "warning",
    "systemd is older than 252",
    "slicer is tested with 252 and later. Older ones lack OOMPolicy for scopes, among others.",
    "Upgrade the distribution.",
)  # fmt: skip
_kind(
    "systemd", "no-cgroup2", "problem",
    "no cgroup v2 hierarchy is mounted",
    "slicer finds a job's processes, and the end of a lease, by its cgroup v2. Without it no job starts.",
    "Boot with `systemd.unified_cgroup_hierarchy=1` on the kernel's command line.",
)  # fmt: skip
_kind(
    "systemd", "units-failed", "note",
    "units of slicer's have failed",
    "`systemctl is-system-running` says \"degraded\" because of them, and monitoring may complain.",
    "`systemctl status UNIT` says why; `systemctl reset-failed UNIT` forgets it.",
)  # fmt: skip

# -- kernel -------------------------------------------------------------------------------------------------
_kind(
    "kernel", "no-pidfd", "problem",
    "the kernel gives no pidfd",
    "slicer waits for processes by pidfd (Linux 5.3). An old container runtime's seccomp filter may forbid it.",
    "Upgrade the kernel or the container runtime (Docker 20.10.6 or later).",
)  # fmt: skip
_kind(
    "kernel", "no-memory-peak", "note",
    "cgroups have no memory.peak",
    "History and `--outcome` cannot say how much memory a job used at most (Linux 5.19).",
    "A newer kernel.",
)  # fmt: skip
_kind(
    "kernel", "no-cgroup-kill", "note",
    "cgroups have no cgroup.kill",
    "To end a scope systemd signals its processes one by one; one that forks quickly can outrun that (Linux 5.14).",
    "A newer kernel.",
)  # fmt: skip
_kind(
    "kernel", "no-psi", "note",
    "the kernel keeps no pressure figures (PSI)",
    "History has no pressure, and systemd-oomd cannot act.",
    "Boot with `psi=1` on the kernel's command line.",
)  # fmt: skip
_kind(
    "kernel", "few-open-files", "warning",
    "the limit of open files is small",
    "A queue needs some ten descriptors for each job that runs, and jobs inherit the limit.",
    "`ulimit -n 4096`; for good `LimitNOFILE=` or /etc/security/limits.conf.",
)  # fmt: skip
_kind(
    "kernel", "few-processes", "warning",
    "the limit of processes is nearly reached",
    "A job starts with two processes of slicer's and its own. Beyond the limit fork fails, with an error that"
    " names no limit.",
    "`ulimit -u 16384`; for good `LimitNPROC=` or /etc/security/limits.conf.",
)  # fmt: skip
_kind(
    "kernel", "tasks-max-near", "warning",
    "TasksMax of your slice is nearly reached",
    "Beyond it fork fails in all of your jobs and sessions.",
    "`systemctl set-property user-UID.slice TasksMax=infinity`.",
)  # fmt: skip
_kind(
    "kernel", "inotify-exhausted", "problem",
    "no inotify instance is to be had",
    "The first job that waits watches the ledger with one. Without it a job that has to wait fails. Editors and"
    " file synchronisers often use them all up.",
    "`sysctl fs.inotify.max_user_instances=1024`; for good a file in /etc/sysctl.d.",
)  # fmt: skip
_kind(
    "kernel", "proc-hidden", "note",
    "/proc hides other users' processes (hidepid)",
    "`slicer status` cannot name other users' processes on a GPU. Their memory counts all the same.",
    "Nothing has to be done. An administrator can exempt a group with the mount option `gid=`.",
)  # fmt: skip

# -- session ------------------------------------------------------------------------------------------------
_kind(
    "session", "no-linger", "warning",
    "your jobs end at your last logout",
    "Your jobs run in your user manager, and systemd stops it when you are logged out everywhere: also when ssh"
    " breaks, and under tmux and nohup.",
    "`loginctl enable-linger USER`.",
)  # fmt: skip
_kind(
    "session", "linger-in-vain", "warning",
    "this systemd ends your jobs at your last logout in spite of lingering",
    "logind of systemd 255.0 to 256.2 stops user@UID.service at the last logout even where the user lingers"
    " (systemd#43361; Ubuntu 24.04 has 255.4).",
    "Upgrade systemd to 256.3 or later. Until then stay logged in while jobs run, or run them as root.",
)  # fmt: skip
_kind(
    "session", "logout-kills", "warning",
    "logind ends what your session leaves behind (KillUserProcesses=yes)",
    "`slicer run` and `slicer queue` themselves are ended at the logout, also under tmux and nohup. A job that runs"
    " goes on if you linger, but nothing new is started.",
    "`slicer queue --detach`; or `KillUserProcesses=no` in /etc/systemd/logind.conf.",
)  # fmt: skip

# -- limits -------------------------------------------------------------------------------------------------
_kind(
    "limits", "controllers-missing", "problem",
    "cgroup controllers that your profiles' limits need are not there",
    "systemd accepts such a limit and nothing enforces it. On cgroup v1 and in \"hybrid\" set-ups the controllers"
    " belong to v1; in a container the host decides which ones are passed in.",
    "Boot with `systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all`; in a container, delegate them from the host.",
)  # fmt: skip
_kind(
    "limits", "not-delegated", "warning",
    "your user manager was not given controllers that your profiles ask for",
    "systemd gives user managers cpu, memory and pids. IOWeight and AllowedCPUs also need io and cpuset.",
    "`slicer install --user-delegation` as root, then log out everywhere and in again.",
)  # fmt: skip
_kind(
    "limits", "io-weight-not-heeded", "note",
    "no disk heeds IOWeight",
    "Weights act on a disk under the bfq scheduler, or with io.cost on. Without either, systemd accepts them and all"
    " jobs read and write alike.",
    "`echo bfq > /sys/block/DISK/queue/scheduler`, or for fast disks"
    " `echo 'MAJ:MIN enable=1' > /sys/fs/cgroup/io.cost.qos`; for good a udev rule.",
)  # fmt: skip
_kind(
    "limits", "oomd-absent", "warning",
    "profiles use ManagedOOM, and systemd-oomd does not run",
    "Nothing else reads these directives.",
    "`systemctl enable --now systemd-oomd`.",
)  # fmt: skip
_kind(
    "limits", "devices-not-fenced", "problem",
    "profiles use DevicePolicy or DeviceAllow, which do not act for you",
    "Device rules are BPF programs, and only the system manager may load them. A user manager accepts the directives"
    " and lets all devices through.",
    "Run such jobs as root, or take the directives out of the profile.",
)  # fmt: skip
_kind(
    "limits", "profile-unusable", "warning",
    "a profile cannot be used on this machine",
    "A job with this profile fails before it starts.",
    "`slicer profiles show NAME` and the file it names.",
)  # fmt: skip

# -- gpus ---------------------------------------------------------------------------------------------------
_kind(
    "gpus", "driver-hangs", "problem",
    "the NVIDIA driver does not answer",
    "Jobs that want a GPU, and `slicer status`, wait for the driver. It hangs after a GPU has failed (an Xid error).",
    "`dmesg | grep -i xid`, then `nvidia-smi --gpu-reset` or a reboot.",
)  # fmt: skip
_kind(
    "gpus", "driver-unusable", "problem",
    "there is an NVIDIA GPU, and its driver cannot be used",
    "No job gets a GPU here.",
    "Install the driver, load it (`modprobe nvidia`), or reboot after an upgrade, as the finding says.",
)  # fmt: skip
_kind(
    "gpus", "gpus-not-passed-in", "note",
    "the machine has NVIDIA GPUs, and this container was not given them",
    "No job gets a GPU in here.",
    "Start the container with `--gpus all` (nvidia-container-toolkit).",
)  # fmt: skip
_kind(
    "gpus", "no-nvidia-ml-py", "problem",
    "the Python module pynvml cannot be loaded",
    "slicer asks the driver for GPUs with it.",
    "`python -m pip install nvidia-ml-py` in slicer's environment.",
)  # fmt: skip
_kind(
    "gpus", "nouveau", "warning",
    "an NVIDIA GPU runs under another kernel driver than NVIDIA's",
    "CUDA and NVML need NVIDIA's own. Under nouveau or vfio-pci slicer does not see the GPU.",
    "Install NVIDIA's driver, and blacklist nouveau.",
)  # fmt: skip
_kind(
    "gpus", "no-uvm-node", "warning",
    "/dev/nvidia-uvm is not there yet",
    "CUDA makes it at its first use, which fails in a job whose DeviceAllow was settled before.",
    "`nvidia-modprobe -u -c=0`, at every boot.",
)  # fmt: skip
_kind(
    "gpus", "node-missing", "problem",
    "a GPU's device node is missing",
    "No program can open the GPU.",
    "`nvidia-modprobe -c=N`, or nvidia-persistenced at boot.",
)  # fmt: skip
_kind(
    "gpus", "node-forbidden", "problem",
    "you may not open a GPU's device node",
    "A lease on the GPU is granted, and CUDA then finds no device.",
    "`usermod -aG GROUP USER` with the node's group, and log in again.",
)  # fmt: skip
_kind(
    "gpus", "mig-on", "warning",
    "a GPU is in MIG mode",
    "slicer leases physical GPUs. One lease covers all instances of the GPU, and processes' memory is not known.",
    "`nvidia-smi -i N -mig 0`, or leave these GPUs out with `gpu = […]` in the profile.",
)  # fmt: skip
_kind(
    "gpus", "exclusive-compute", "warning",
    "a GPU lets only one process compute (EXCLUSIVE_PROCESS)",
    "Jobs cannot share it: with --vram the second one is granted its lease and fails in CUDA.",
    "`nvidia-smi -i N -c DEFAULT`.",
)  # fmt: skip
_kind(
    "gpus", "compute-prohibited", "problem",
    "a GPU lets no process compute (PROHIBITED)",
    "A job is granted a lease on it and fails in CUDA.",
    "`nvidia-smi -i N -c DEFAULT`.",
)  # fmt: skip
_kind(
    "gpus", "persistence-off", "note",
    "the driver lets go of idle GPUs (persistence mode is off)",
    "The first job on an idle GPU waits a second or more for it, and settings such as power limits are lost.",
    "`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` until the next boot.",
)  # fmt: skip
_kind(
    "gpus", "display-on-gpu", "note",
    "a display is driven by a GPU",
    "Its memory counts as used by programs outside slicer. With more than gpu.idle_threshold of it, no job that"
    " wants the whole GPU starts.",
    "Raise `[gpu] idle_threshold`, or ask for memory (`--vram`) in place of the whole GPU.",
)  # fmt: skip
_kind(
    "gpus", "foreign-process", "note",
    "a process outside slicer uses a GPU",
    "Jobs that want the whole GPU wait until it ends.",
    "Start it with `slicer run --gpus 1`, or end it.",
)  # fmt: skip
_kind(
    "gpus", "amd-not-handled", "note",
    "there are AMD GPUs, which slicer does not know",
    "slicer leases NVIDIA GPUs only. Jobs on others are neither counted nor kept apart.",
    "Let such jobs exclude each other with `cpu_slots`.",
)  # fmt: skip

# -- state --------------------------------------------------------------------------------------------------
_kind(
    "state", "ledger-unusable", "problem",
    "the directory of the ledger cannot be used",
    "Leases are kept there. Without it no job that needs a GPU or a CPU slot starts.",
    "As the finding says: `chmod 1777 /run/lock`, or another SLICER_STATE_DIR.",
)  # fmt: skip
_kind(
    "state", "ledger-open", "problem",
    "others may write to the ledger",
    "What another user may change is not believed, so slicer refuses to work with it.",
    "`chmod go-rwx DIRECTORY`; for /run/slicer of an older version `slicer install`.",
)  # fmt: skip
_kind(
    "state", "ledger-newer", "problem",
    "a newer slicer has made the ledger",
    "This one does not know its form, and starts no job beside it.",
    "Take the newer slicer: `which -a slicer`.",
)  # fmt: skip
_kind(
    "state", "ledger-full", "problem",
    "there is no room for the ledger",
    "No lease can be written, so no job that needs one starts. Any user can fill /run/lock and /dev/shm.",
    "`du -x -d1 DIRECTORY` shows who fills it.",
)  # fmt: skip
_kind(
    "state", "ledger-stuck", "problem",
    "a stopped process holds the ledger's lock",
    "Everybody else waits for it.",
    "`kill -CONT PID`.",
)  # fmt: skip
_kind(
    "state", "ledger-on-disk", "warning",
    "the ledger is on a disk",
    "It outlives a reboot, each lease costs disk writes, and network file systems lock unreliably.",
    "Unset SLICER_STATE_DIR, or let it name a directory on a tmpfs.",
)  # fmt: skip
_kind(
    "state", "ledger-in-dev-shm", "warning",
    "your ledger is in /dev/shm, and logind clears that at your last logout",
    "/run/lock is not open to all users here. A job that outlives your session is then unknown to the next one,"
    " which grants its GPU again.",
    "`loginctl enable-linger USER`, or `RemoveIPC=no` in /etc/systemd/logind.conf.",
)  # fmt: skip
_kind(
    "state", "ledger-name-taken", "note",
    "somebody else has taken your ledger's usual name",
    "Yours has another name and works. Whoever took it is worth a question.",
    "`ls -ld DIRECTORY` shows the owner; root may remove it.",
)  # fmt: skip
_kind(
    "state", "history-unusable", "warning",
    "the history cannot be kept",
    "Outcomes of jobs are lost; jobs run all the same.",
    "Make its directory your own: `chown`, `chmod go-w`.",
)  # fmt: skip
_kind(
    "state", "history-full", "warning",
    "there is no room for the history",
    "Outcomes of jobs are lost, and a queue's logs on the same disk end.",
    "`df -h DIRECTORY`; free some space.",
)  # fmt: skip
_kind(
    "state", "history-damaged", "warning",
    "the history is damaged",
    "The next job sets it aside and begins a new one.",
    "Nothing has to be done; the old file is kept as history.db.corrupt-….",
)  # fmt: skip
_kind(
    "state", "history-newer", "warning",
    "a newer slicer has written the history",
    "This one adds nothing to it.",
    "Take the newer slicer: `which -a slicer`.",
)  # fmt: skip

# -- journal ------------------------------------------------------------------------------------------------
_kind(
    "journal", "no-journald", "warning",
    "systemd's journal does not listen",
    "Events of jobs are kept nowhere. Jobs do not notice.",
    "`systemctl start systemd-journald.socket systemd-journald`.",
)  # fmt: skip
_kind(
    "journal", "journal-off", "warning",
    "the journal keeps nothing (Storage=none)",
    "Events of jobs are lost at once; `journalctl -u SCOPE` shows nothing.",
    "`Storage=auto` in /etc/systemd/journald.conf.",
)  # fmt: skip
_kind(
    "journal", "journal-volatile", "note",
    "the journal is lost at a reboot",
    "What happened to jobs before it can then only be seen in `slicer history`. A user's own entries are kept apart,"
    " for the user to read, only in a persistent journal.",
    "`mkdir -p /var/log/journal && journalctl --flush`.",
)  # fmt: skip
_kind(
    "journal", "journal-closed", "note",
    "you may not read the journal",
    "`journalctl --user-unit SCOPE` shows you nothing of your own jobs.",
    "`usermod -aG systemd-journal USER`, and log in again; or a persistent journal.",
)  # fmt: skip
_kind(
    "journal", "journal-rate-limited", "note",
    "the journal drops entries early (RateLimitBurst)",
    "A queue of short jobs tells of several events a job. Those beyond the limit are lost.",
    "Raise RateLimitBurst= in /etc/systemd/journald.conf; the default is 10000.",
)  # fmt: skip
_kind(
    "journal", "catalog-not-read", "note",
    "slicer's catalog is installed, and journalctl does not know it",
    "`journalctl -x` explains no event of slicer's.",
    "`journalctl --update-catalog`.",
)  # fmt: skip

# -- units --------------------------------------------------------------------------------------------------
_kind(
    "units", "units-missing", "note",
    "slicer's slices are not installed",
    "Jobs run all the same, but gpu.slice and cpu.slice as a whole have no weights against the rest of the machine,"
    " and `journalctl -x` explains no event.",
    "`slicer install` as root, or `slicer install --user` for yourself.",
)  # fmt: skip
_kind(
    "units", "units-outdated", "warning",
    "slicer's unit files are those of another version",
    "Slices and explanations are not what this version's documentation says.",
    "`slicer install` as root, or `slicer install --user`.",
)  # fmt: skip
_kind(
    "units", "units-edited", "note",
    "somebody edited unit files of slicer's",
    "`slicer install` leaves them alone, so they stay as they are in an upgrade.",
    "Put changes into `systemctl edit UNIT`; then `slicer install --force`.",
)  # fmt: skip
_kind(
    "units", "slice-masked", "problem",
    "a slice of slicer's is masked",
    "systemd refuses every job in it.",
    "`systemctl unmask gpu.slice cpu.slice`.",
)  # fmt: skip
_kind(
    "units", "older-leftovers", "warning",
    "an older version's group and shared directories are still there",
    "Members of that group could change what root's slicer reads, so it refuses these directories.",
    "`slicer install` as root takes them back.",
)  # fmt: skip

# -- configuration ------------------------------------------------------------------------------------------
_kind(
    "configuration", "configuration-broken", "problem",
    "a configuration file has a mistake",
    "slicer starts no job until it is mended. What runs is not touched.",
    "The line that the finding names.",
)  # fmt: skip
_kind(
    "configuration", "configuration-warning", "warning",
    "a configuration file is passed over",
    "What it says does not hold.",
    "As the finding says.",
)  # fmt: skip

# -- environment --------------------------------------------------------------------------------------------
_kind(
    "environment", "package-overwritten", "problem",
    "another distribution called slicer is in slicer's own environment",
    "shap needs a library of that name. Both write site-packages/slicer, so one has overwritten files of the other.",
    "`python -m pip uninstall -y slicer`, then reinstall slicer-systemd; best in an environment of its own (pipx).",
)  # fmt: skip
_kind(
    "environment", "import-is-another", "note",
    "`import slicer` is another package in the Python on your PATH",
    "slicer's Python API is not to be had there; that name belongs to a library that shap needs. The command line"
    " works everywhere.",
    "Call the command (`slicer run -- python …`), or use the Python that slicer is installed in.",
)  # fmt: skip
_kind(
    "environment", "several-slicers", "note",
    "there are several slicers on PATH",
    "The first one counts, and root's PATH may have another. Versions that differ may refuse each other's ledger.",
    "`which -a slicer`; remove those that are not meant.",
)  # fmt: skip
_kind(
    "environment", "sudo-finds-no-slicer", "note",
    "`sudo slicer` does not find this slicer",
    "sudo searches its secure_path, not yours.",
    "`sudo \"$(command -v slicer)\" …`, or a link in /usr/local/bin.",
)  # fmt: skip
_kind(
    "environment", "sudo-drops-variables", "note",
    "sudo drops variables that change what slicer does",
    "`sudo slicer …` and jobs that call sudo do not see them (env_reset).",
    "`sudo --preserve-env=NAMES …`, or `Defaults env_keep += \"NAMES\"` in /etc/sudoers.d/slicer.",
)  # fmt: skip
_kind(
    "environment", "under-sudo", "note",
    "this is root's slicer, under sudo",
    "Root's leases and yours do not exclude each other: they are kept in two ledgers.",
    "Run all GPU jobs of a machine as one user, or all as root.",
)  # fmt: skip
_kind(
    "environment", "simulation-on", "warning",
    "SLICER_SIM is set: GPUs are simulated",
    "Jobs get no real GPU, and leases do not meet those of other terminals.",
    "`unset SLICER_SIM`.",
)  # fmt: skip
_kind(
    "environment", "gpu-lock-skipped", "warning",
    "SLICER_SKIP_GPU_LOCK is set",
    "Jobs start on GPUs without a lease, beside whoever holds them.",
    "`unset SLICER_SKIP_GPU_LOCK PSRUN_SKIP_GPU_LOCK`.",
)  # fmt: skip
_kind(
    "environment", "gpu-lock-claimed", "warning",
    "GPU_LOCK_HELD is set outside of a job",
    "slicer believes that a wrapper around it holds the GPUs, and takes no lease on one.",
    "`unset GPU_LOCK_HELD`, also in your shell's start-up files.",
)  # fmt: skip
_kind(
    "environment", "fault-points-on", "warning",
    "SLICER_FAULTS is set",
    "It kills slicer at named points. It is for slicer's own tests.",
    "`unset SLICER_FAULTS`.",
)  # fmt: skip
_kind(
    "environment", "inside-a-job", "note",
    "this shell is inside a job of slicer's",
    "What is said here holds for jobs inside that job, which have no scope of their own.",
    "Nothing has to be done.",
)  # fmt: skip

# -- others -------------------------------------------------------------------------------------------------
_kind(
    "others", "gpu-lock-held", "warning",
    "a script holds the GPU lock",
    "No GPU job of slicer's starts until it lets go (compat_gpu_lock).",
    "`ps -fp PID`: wait for it, or end it.",
)  # fmt: skip
_kind(
    "others", "gpu-lock-unusable", "problem",
    "the file of the GPU lock cannot be used",
    "Every job that wants a GPU fails over it.",
    "Mend compat_gpu_lock in the configuration, or GPU_LOCK_PATH.",
)  # fmt: skip
_kind(
    "others", "docker-is-outside", "note",
    "docker's containers run outside of slicer's scopes",
    "`slicer run -- docker run …` limits the docker client only: dockerd starts the container in a cgroup of its own,"
    " and its GPU memory counts as foreign.",
    "`docker run --cgroup-parent=gpu.slice …` puts it under the slice's limits; or rootless podman with"
    " `--cgroups=disabled`.",
)  # fmt: skip
_kind(
    "others", "docker-cgroupfs", "note",
    "docker makes cgroups behind systemd's back (driver cgroupfs)",
    "`--cgroup-parent=gpu.slice` then makes a cgroup that systemd does not know, beside the real slice.",
    "`{\"exec-opts\": [\"native.cgroupdriver=systemd\"]}` in /etc/docker/daemon.json, then"
    " `systemctl restart docker`.",
)  # fmt: skip
_kind(
    "others", "other-scheduler", "warning",
    "another scheduler runs here",
    "It may hand out the same GPUs. Neither knows of the other: slicer sees its jobs as foreign processes only.",
    "Give each its own GPUs, or start jobs of one through the other.",
)  # fmt: skip

# -- the looks themselves -----------------------------------------------------------------------------------
_kind(
    "others", "look-hangs", "warning",
    "a look at the machine did not end in time",
    "A file system or a driver hangs. What it would have told is not known.",
    "`ps -eo pid,stat,wchan:32,cmd | grep ' D'` shows processes that hang in the kernel.",
)  # fmt: skip
_kind(
    "others", "look-failed", "warning",
    "a look at the machine failed",
    "What it would have told is not known.",
    "Please report it, with the output.",
)  # fmt: skip

KINDS: dict[str, Kind] = {kind.id: kind for kind in _FOUND}


def finding(id: str, what: str, *mend: str) -> Finding:
    """A case of the kind with that id."""
    return Finding(KINDS[id], what, mend)
