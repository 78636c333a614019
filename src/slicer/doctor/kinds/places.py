"""What can be found of GPUs, slicer's state and the journal."""

from __future__ import annotations

from slicer.doctor.model import Kind

FOUND = (
    # -- gpus ------------------------------------------------------------------------------------------------
    Kind(
        id="driver-hangs",
        area="gpus",
        severity="problem",
        title="the NVIDIA driver does not answer",
        why=(
            "Jobs that want a GPU, and `slicer status`, wait for the driver. It may hang after a GPU has "
            "failed (an Xid error)."
        ),
        cure="`dmesg | grep -i xid`, then `nvidia-smi --gpu-reset` or a reboot.",
    ),
    Kind(
        id="driver-unusable",
        area="gpus",
        severity="problem",
        title="there is an NVIDIA GPU, and its driver cannot be used",
        why="No job gets a GPU here.",
        cure=(
            "Install the driver, load it (`modprobe nvidia`), or reboot after an upgrade, as the "
            "finding says."
        ),
    ),
    Kind(
        id="gpus-not-passed-in",
        area="gpus",
        severity="note",
        title="the machine has NVIDIA GPUs, and this container was not given them",
        why="No job gets a GPU in here.",
        cure="Start the container with `--gpus all` (nvidia-container-toolkit).",
    ),
    Kind(
        id="no-nvidia-ml-py",
        area="gpus",
        severity="problem",
        title="the Python module pynvml is missing or too old",
        why="slicer asks the driver for GPUs with it. It needs nvidia-ml-py 12.535 or later.",
        cure=(
            "`python -m pip install nvidia-ml-py` in slicer's environment. The Debian package has it, unless "
            "it was built without `debian/rules pynvml`."
        ),
    ),
    Kind(
        id="nouveau",
        area="gpus",
        severity="warning",
        title="an NVIDIA GPU runs under another kernel driver than NVIDIA's",
        why="CUDA and NVML need NVIDIA's own. Under nouveau or vfio-pci slicer does not see the GPU.",
        cure="Install NVIDIA's driver, and blacklist nouveau.",
    ),
    Kind(
        id="no-uvm-node",
        area="gpus",
        severity="warning",
        title="/dev/nvidia-uvm is not there yet",
        why=(
            "CUDA makes it at its first use. That is too late in a job behind the device fence, which knows "
            "only drivers that were loaded before. For root's jobs and the broker's slicer loads it, if "
            "nvidia-modprobe is there."
        ),
        cure="`nvidia-modprobe -u -c=0`, at every boot.",
    ),
    Kind(
        id="node-missing",
        area="gpus",
        severity="problem",
        title="a GPU's device node is missing",
        why="No program can open the GPU.",
        cure="`nvidia-modprobe -c=N`, or nvidia-persistenced at boot.",
    ),
    Kind(
        id="node-forbidden",
        area="gpus",
        severity="problem",
        title="you may not open a GPU's device node",
        why="A lease on the GPU is granted, and CUDA then finds no device.",
        cure=(
            "`usermod -aG GROUP USER` with the node's group, and log in again. Where that is root: "
            "NVreg_DeviceFileMode=0666 for the module nvidia, in /etc/modprobe.d."
        ),
    ),
    Kind(
        id="mig-on",
        area="gpus",
        severity="warning",
        title="a GPU is in MIG mode",
        why=(
            "slicer leases physical GPUs. One lease covers all instances of the GPU, and processes' "
            "memory is not known. --share takes all instances for the one GPU, too: its jobs take turns "
            "where they need not."
        ),
        cure="`nvidia-smi -i N -mig 0`, or leave these GPUs out with `gpu = […]` in the profile.",
    ),
    Kind(
        id="exclusive-compute",
        area="gpus",
        severity="warning",
        title="a GPU lets only one process compute (EXCLUSIVE_PROCESS)",
        why=(
            "Jobs cannot share it: with --vram, also with --share, the second one is granted its lease and "
            "fails in CUDA."
        ),
        cure="`nvidia-smi -i N -c DEFAULT`.",
    ),
    Kind(
        id="compute-prohibited",
        area="gpus",
        severity="problem",
        title="a GPU lets no process compute (PROHIBITED)",
        why="A job is granted a lease on it and fails in CUDA.",
        cure="`nvidia-smi -i N -c DEFAULT`.",
    ),
    Kind(
        id="persistence-off",
        area="gpus",
        severity="note",
        title="the driver lets go of idle GPUs (persistence mode is off)",
        why=(
            "The first job on an idle GPU waits a second or more for it, and settings such as power "
            "limits are lost."
        ),
        cure="`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` until the next boot.",
    ),
    Kind(
        id="display-on-gpu",
        area="gpus",
        severity="note",
        title="a display is driven by a GPU",
        why=(
            "Its memory counts as used by programs outside slicer. With more than gpu.idle_threshold "
            "of it, no job that wants the whole GPU starts."
        ),
        cure="Raise `[gpu] idle_threshold`, or ask for memory (`--vram`) in place of the whole GPU.",
    ),
    Kind(
        id="foreign-process",
        area="gpus",
        severity="note",
        title="a process outside slicer uses a GPU",
        why="Jobs that want the whole GPU wait until it ends.",
        cure="Start it with `slicer run --gpus 1`, or end it.",
    ),
    Kind(
        id="server-outside",
        area="gpus",
        severity="warning",
        title="a model server holds a GPU outside of slicer",
        why=(
            "It keeps its models on the GPU while nobody asks it, and knows of no job. Jobs that want the "
            "whole GPU wait until it ends."
        ),
        cure=(
            "`slicer serve` gives it a GPU only while somebody asks. Describe it as `[serve.NAME]` in a "
            "configuration file (docs/serve.md), stop it, then `slicer serve NAME --check` and "
            "`slicer install --serve NAME`."
        ),
    ),
    Kind(
        id="amd-not-handled",
        area="gpus",
        severity="note",
        title="there are AMD GPUs, which slicer does not know",
        why="slicer leases NVIDIA GPUs only. Jobs on others are neither counted nor kept apart.",
        cure="Count them as slots: `[slots] amd-gpu = 1` in a configuration file, and `--slot amd-gpu`.",
    ),
    Kind(
        id="share-without-vram",
        area="gpus",
        severity="note",
        title="a profile has `share`, and no `vram`",
        why=(
            "`share` acts where a job holds a part of a GPU's memory. A job with whole GPUs is alone on "
            "them, and runs as without `share`. With `--vram` on the command line it acts."
        ),
        cure='`vram = "8G"` in the profile, or no `share`.',
    ),
    Kind(
        id="share-library-unusable",
        area="gpus",
        severity="problem",
        title="the library of --share is missing or cannot be loaded",
        why="Jobs with `--share cap` or `both` do not start; those with `--share lock` run without the lock.",
        cure="Install slicer again; from source that takes gcc.",
    ),
    Kind(
        id="mps-beside-share",
        area="gpus",
        severity="warning",
        title="an MPS daemon runs, and jobs share GPUs with a lock",
        why=(
            "Under MPS the work of all clients goes to the GPU as that of one process, so the lock of "
            "`--share` stays off beside it. The cap acts."
        ),
        cure=(
            "`echo quit | nvidia-cuda-mps-control` for slicer's lock, or `share = \"cap\"` to keep MPS; "
            "docs/sharing.md compares them."
        ),
    ),
    Kind(
        id="dmem-not-enabled",
        area="gpus",
        severity="note",
        title="the driver could limit GPU memory by cgroup, and the controller dmem is off for jobs",
        why=(
            "The cap of `--share` is then kept by the preloaded library alone, which a program can get "
            "past. systemd does not know this controller, so slicer leaves it to you."
        ),
        cure=(
            "`echo +dmem` into cgroup.subtree_control of the root cgroup and of gpu.slice, after each boot, "
            "while gpu.slice is up."
        ),
    ),
    # -- state -----------------------------------------------------------------------------------------------
    Kind(
        id="ledger-unusable",
        area="state",
        severity="problem",
        title="the directory of the ledger cannot be used",
        why="Leases are kept there. Without it no job that needs a GPU or a CPU slot starts.",
        cure="As the finding says: `chmod 1777 /run/lock`, or another SLICER_STATE_DIR.",
    ),
    Kind(
        id="ledger-open",
        area="state",
        severity="problem",
        title="others may write to the ledger",
        why="What another user may change is not believed, so slicer refuses to work with it.",
        cure="`chmod go-rwx DIRECTORY`.",
    ),
    Kind(
        id="ledger-newer",
        area="state",
        severity="problem",
        title="a newer slicer has made the ledger",
        why="This one does not know its form, and starts no job beside it.",
        cure="Take the newer slicer: `which -a slicer`.",
    ),
    Kind(
        id="ledger-full",
        area="state",
        severity="problem",
        title="there is no room for the ledger",
        why=(
            "No lease can be written, so no job that needs one starts. Any user can fill /run/lock and"
            " /dev/shm."
        ),
        cure="`du -x -d1 DIRECTORY` shows who fills it.",
    ),
    Kind(
        id="ledger-stuck",
        area="state",
        severity="problem",
        title="a stopped process holds the ledger's lock",
        why="Everybody else waits for it.",
        cure="`kill -CONT PID`.",
    ),
    Kind(
        id="ledger-on-disk",
        area="state",
        severity="warning",
        title="the ledger is on a disk",
        why=(
            "It outlives a reboot, each lease costs disk writes, and network file systems lock "
            "unreliably."
        ),
        cure="Unset SLICER_STATE_DIR, or let it name a directory on a tmpfs.",
    ),
    Kind(
        id="ledger-in-dev-shm",
        area="state",
        severity="warning",
        title="your ledger is in /dev/shm, and logind clears that at your last logout",
        why=(
            "/run/lock is not open to all users here. A job that outlives your session is then unknown"
            " to the next one, which grants its GPU again."
        ),
        cure=(
            "`loginctl enable-linger USER` (by root where that is refused), or `RemoveIPC=no` in "
            "/etc/systemd/logind.conf."
        ),
    ),
    Kind(
        id="ledger-name-taken",
        area="state",
        severity="note",
        title="somebody else has taken your ledger's usual name",
        why="Yours has another name and works. Whoever took it is worth a question.",
        cure="`ls -ld DIRECTORY` shows the owner; root may remove it.",
    ),
    Kind(
        id="history-unusable",
        area="state",
        severity="warning",
        title="the history cannot be kept",
        why="Outcomes of jobs are lost; jobs run all the same.",
        cure="Make its directory your own: `chown`, `chmod go-w`.",
    ),
    Kind(
        id="history-full",
        area="state",
        severity="warning",
        title="there is no room for the history",
        why="Outcomes of jobs are lost, and a queue's logs on the same disk end.",
        cure="`df -h DIRECTORY`; free some space.",
    ),
    Kind(
        id="history-damaged",
        area="state",
        severity="warning",
        title="the history is damaged",
        why="The next job sets it aside and begins a new one.",
        cure="Nothing has to be done; the old file is kept as history.db.corrupt-….",
    ),
    Kind(
        id="history-newer",
        area="state",
        severity="warning",
        title="a newer slicer has written the history",
        why="This one adds nothing to it.",
        cure="Take the newer slicer: `which -a slicer`.",
    ),
    Kind(
        id="cache-unused",
        area="state",
        severity="note",
        title="the cache of the configuration is not yours alone",
        why="slicer does not read it, and parses the configuration anew at each start.",
        cure="`rm -r DIRECTORY`; slicer makes it again.",
    ),
    # -- journal ---------------------------------------------------------------------------------------------
    Kind(
        id="no-journald",
        area="journal",
        severity="warning",
        title="systemd's journal does not listen",
        why="Events of jobs are kept nowhere. Jobs do not notice.",
        cure="`systemctl start systemd-journald.socket systemd-journald`.",
    ),
    Kind(
        id="journal-off",
        area="journal",
        severity="warning",
        title="the journal keeps nothing (Storage=none)",
        why="Events of jobs are lost at once; `journalctl -u SCOPE` shows nothing.",
        cure="`Storage=auto` in /etc/systemd/journald.conf.",
    ),
    Kind(
        id="journal-volatile",
        area="journal",
        severity="note",
        title="the journal is lost at a reboot",
        why=(
            "What happened to jobs before it can then only be seen in `slicer history`. A user's own "
            "entries are kept apart, for the user to read, only in a persistent journal."
        ),
        cure="`mkdir -p /var/log/journal && journalctl --flush`.",
    ),
    Kind(
        id="journal-closed",
        area="journal",
        severity="note",
        title="you may not read the journal",
        why="`journalctl --user-unit SCOPE` shows you nothing of your own jobs.",
        cure="`usermod -aG systemd-journal USER`, and log in again; or a persistent journal.",
    ),
    Kind(
        id="journal-rate-limited",
        area="journal",
        severity="note",
        title="the journal drops entries early (RateLimitBurst)",
        why="A queue of short jobs tells of several events a job. Those beyond the limit are lost.",
        cure="Raise RateLimitBurst= in /etc/systemd/journald.conf; the default is 10000.",
    ),
    Kind(
        id="catalog-not-read",
        area="journal",
        severity="note",
        title="slicer's catalog is installed, and journalctl does not know it",
        why="`journalctl -x` explains no event of slicer's.",
        cure="`journalctl --update-catalog`.",
    ),
)
