"""What can be found of systemd, the kernel, the session and limits."""

from __future__ import annotations

from slicer.doctor.model import Kind

FOUND = (
    # -- systemd ---------------------------------------------------------------------------------------------
    Kind(
        id="no-systemd",
        area="systemd",
        severity="warning",
        title="systemd does not run here",
        why=(
            "There are no scopes. Limits are best effort: CPU affinity, niceness, and a guard that "
            "looks at memory."
        ),
        cure=(
            "Run slicer where systemd is PID 1: on the host instead of in the container; under WSL "
            "with `systemd=true`."
        ),
    ),
    Kind(
        id="no-pystemd",
        area="systemd",
        severity="problem",
        title="the Python module pystemd cannot be loaded",
        why="slicer asks systemd for scopes with it. Without it no job starts.",
        cure=(
            "`apt install python3-pystemd`, or reinstall slicer where a compiler and libsystemd-dev "
            "are."
        ),
    ),
    Kind(
        id="manager-unreachable",
        area="systemd",
        severity="problem",
        title="the systemd manager that would run your jobs does not answer",
        why=(
            "A user's jobs run in the user's own manager, which lives while the user is logged in, or "
            "lingers. Root's run in the system manager, which is asked over D-Bus. Without it no job "
            "starts."
        ),
        cure=(
            "`loginctl enable-linger USER` (by root where that is refused), `systemctl start dbus.socket` "
            "for root."
        ),
    ),
    Kind(
        id="systemd-hangs",
        area="systemd",
        severity="problem",
        title="systemd does not answer in time",
        why="Every job waits for systemd to make its scope.",
        cure="`systemctl list-jobs`; see what PID 1 waits for.",
    ),
    Kind(
        id="systemd-old",
        area="systemd",
        severity="warning",
        title="systemd is older than 252",
        why="slicer is tested with 252 and later.",
        cure="Upgrade the distribution.",
    ),
    Kind(
        id="no-cgroup2",
        area="systemd",
        severity="problem",
        title="no cgroup v2 hierarchy is mounted",
        why=(
            "slicer finds a job's processes, and the end of a lease, by its cgroup v2. Without it no "
            "job starts."
        ),
        cure="Boot with `systemd.unified_cgroup_hierarchy=1` on the kernel command line.",
    ),
    Kind(
        id="units-failed",
        area="systemd",
        severity="note",
        title="units of slicer's have failed",
        why=(
            '`systemctl is-system-running` says "degraded" because of them, and monitoring may '
            "complain."
        ),
        cure="`systemctl status UNIT` says why; `systemctl reset-failed UNIT` forgets it.",
    ),
    # -- kernel ----------------------------------------------------------------------------------------------
    Kind(
        id="no-pidfd",
        area="kernel",
        severity="problem",
        title="the kernel gives no pidfd",
        why=(
            "slicer waits for processes by pidfd (Linux 5.3). An old container runtime's seccomp "
            "filter may forbid it."
        ),
        cure="Upgrade the kernel or the container runtime, or let its seccomp profile allow pidfd_open.",
    ),
    Kind(
        id="no-memory-peak",
        area="kernel",
        severity="note",
        title="cgroups have no memory.peak",
        why="History and `--outcome` cannot say how much memory a job used at most (Linux 5.19).",
        cure="A newer kernel.",
    ),
    Kind(
        id="no-cgroup-kill",
        area="kernel",
        severity="note",
        title="cgroups have no cgroup.kill",
        why=(
            "To end a scope systemd signals its processes one by one; one that forks quickly can "
            "outrun that (Linux 5.14)."
        ),
        cure="A newer kernel.",
    ),
    Kind(
        id="no-psi",
        area="kernel",
        severity="note",
        title="the kernel keeps no pressure figures (PSI)",
        why="History has no pressure, and systemd-oomd cannot act.",
        cure="Boot with `psi=1` on the kernel command line.",
    ),
    Kind(
        id="few-open-files",
        area="kernel",
        severity="warning",
        title="the limit of open files is small",
        why="A queue needs several descriptors for each job that runs, and jobs inherit the limit.",
        cure="`ulimit -n 4096`; for good `LimitNOFILE=` or /etc/security/limits.conf.",
    ),
    Kind(
        id="few-processes",
        area="kernel",
        severity="warning",
        title="the limit of processes is nearly reached",
        why=(
            "A job starts with two processes of slicer's and its own. Beyond the limit fork fails, "
            "with an error that names no limit."
        ),
        cure="`ulimit -u 16384`; for good `LimitNPROC=` or /etc/security/limits.conf.",
    ),
    Kind(
        id="tasks-max-near",
        area="kernel",
        severity="warning",
        title="TasksMax of your slice is nearly reached",
        why="Beyond it fork fails in all of your jobs and sessions.",
        cure="`systemctl set-property user-UID.slice TasksMax=infinity`.",
    ),
    Kind(
        id="inotify-exhausted",
        area="kernel",
        severity="problem",
        title="no inotify instance is to be had",
        why=(
            "The first job that waits watches the ledger with one. Without it a job that has to wait "
            "fails. Editors and file synchronisers often use them all up."
        ),
        cure="`sysctl fs.inotify.max_user_instances=1024`; for good a file in /etc/sysctl.d.",
    ),
    Kind(
        id="proc-hidden",
        area="kernel",
        severity="note",
        title="/proc hides other users' processes (hidepid)",
        why=(
            "`slicer status` cannot name other users' processes on a GPU. Their memory counts all the "
            "same."
        ),
        cure="Nothing has to be done. An administrator can exempt a group with the mount option `gid=`.",
    ),
    # -- session ---------------------------------------------------------------------------------------------
    Kind(
        id="no-linger",
        area="session",
        severity="warning",
        title="your jobs end at your last logout",
        why=(
            "Your jobs run in your user manager, and systemd stops it when you are logged out "
            "everywhere: also when ssh breaks, and under tmux and nohup."
        ),
        cure="`loginctl enable-linger USER`, by root where that is refused.",
    ),
    Kind(
        id="linger-in-vain",
        area="session",
        severity="warning",
        title="this systemd ends your jobs at your last logout in spite of lingering",
        why=(
            "logind of systemd 255.0 to 256.2 stops user@UID.service at the last logout even where the user "
            "lingers (systemd#43361), unless the distribution has mended it. Ubuntu 24.04 has 255.4."
        ),
        cure=(
            "Upgrade systemd to 256.3 or later. Until then stay logged in while jobs run, or run them "
            "as root."
        ),
    ),
    Kind(
        id="logout-kills",
        area="session",
        severity="warning",
        title="logind ends what your session leaves behind (KillUserProcesses=yes)",
        why=(
            "`slicer run` and `slicer queue` themselves are ended at the logout, also under tmux and "
            "nohup. A job that runs goes on if you linger or there is a broker, but nothing new is started."
        ),
        cure="`slicer queue --detach`; or `KillUserProcesses=no` in /etc/systemd/logind.conf.",
    ),
    # -- limits ----------------------------------------------------------------------------------------------
    Kind(
        id="controllers-missing",
        area="limits",
        severity="problem",
        title="cgroup controllers that your profiles' limits need are not there",
        why=(
            'systemd accepts such a limit and nothing enforces it. On cgroup v1 and in "hybrid" '
            "set-ups the controllers belong to v1; in a container the host decides which ones are "
            "passed in."
        ),
        cure=(
            "Boot with `systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all`; in a container, delegate"
            " them from the host."
        ),
    ),
    Kind(
        id="not-delegated",
        area="limits",
        severity="warning",
        title="your user manager was not given controllers that your profiles ask for",
        why=(
            "systemd gives user managers cpu, memory and pids. IOWeight and AllowedCPUs also need io "
            "and cpuset."
        ),
        cure="`slicer install --user-delegation` as root, then log out everywhere and in again.",
    ),
    Kind(
        id="io-controller-missing",
        area="limits",
        severity="note",
        title="the io controller is not there for your jobs, so IOWeight does not act",
        why=(
            "All jobs read and write alike. systemd gives user managers cpu, memory and pids only; a "
            "container has what its host passes in."
        ),
        cure=(
            "`slicer install --user-delegation` as root, then log out everywhere and in again; in a "
            "container, delegate io from the host."
        ),
    ),
    Kind(
        id="io-weight-not-heeded",
        area="limits",
        severity="note",
        title="no disk heeds IOWeight",
        why=(
            "Weights act on a disk under the bfq scheduler, or with io.cost on. Without either, "
            "systemd accepts them and all jobs read and write alike."
        ),
        cure=(
            "`echo bfq > /sys/block/DISK/queue/scheduler`, or for fast disks `echo 'MAJ:MIN enable=1' "
            "> /sys/fs/cgroup/io.cost.qos`; for good a udev rule, or a line for systemd-tmpfiles."
        ),
    ),
    Kind(
        id="oomd-absent",
        area="limits",
        severity="warning",
        title="profiles use ManagedOOM, and systemd-oomd does not run",
        why="Nothing else reads these directives.",
        cure="`systemctl enable --now systemd-oomd`.",
    ),
    Kind(
        id="devices-not-fenced",
        area="limits",
        severity="problem",
        title="profiles use DevicePolicy or DeviceAllow, which do not act for you",
        why=(
            "Device rules are BPF programs, and only the system manager may load them. A user manager "
            "accepts the directives and lets all devices through."
        ),
        cure="Run such jobs as root, or take the directives out of the profile.",
    ),
    Kind(
        id="profile-unusable",
        area="limits",
        severity="warning",
        title="a profile cannot be used on this machine",
        why="A job with this profile fails before it starts.",
        cure="`slicer profiles show NAME` and the file it names.",
    ),
)
