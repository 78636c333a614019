"""A Slurm of two nodes on this machine, with fake GPUs, started in about a second.

``n1`` has two GPUs of 24 shards, ``n2`` one of 80. Their device nodes are copies of /dev/zero. The daemons
run as root, and jobs of any user on either node.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.patience import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_CONF = """\
ClusterName=box
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={home}/munge.socket,cred_expire=5
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny,EnableIPv6
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,default_queue_depth=1000
SlurmdParameters=config_overrides
GresTypes=gpu,shard
ReturnToService=2
MinJobAge={min_job_age}
MaxArraySize=2001
DefMemPerCPU=64
SlurmdTimeout=10
KillWait=2
InactiveLimit=0
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeAddr=127.0.0.1 Port={port_1} CPUs=32 RealMemory=16000 Gres=gpu:2,shard:48
NodeName=n2 NodeAddr=127.0.0.1 Port={port_2} CPUs=32 RealMemory=16000 Gres=gpu:1,shard:80
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
PartitionName=small Nodes=n1 MaxTime=INFINITE State=UP
"""
_GRES = """\
NodeName=n1 Name=gpu File={home}/gpu0,{home}/gpu1
NodeName=n1 Name=shard Count=48
NodeName=n2 Name=gpu File={home}/gpu2
NodeName=n2 Name=shard Count=80
"""


def missing() -> str:
    """Why there can be no Slurm here; "" if there can."""
    gone = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if gone:
        return f"there is no {', '.join(gone)} (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "Slurm's daemons are started by root"


def _name_this_host() -> None:
    """Slurm's daemons look up the machine's own name. A test machine has no resolver."""
    hosts = Path("/etc/hosts")
    known = hosts.read_text() if hosts.exists() else "127.0.0.1 localhost\n"
    if os.environ.get("SLICER_TEST_MACHINE") and os.uname().nodename not in known.split():
        hosts.write_text(f"127.0.0.1 {os.uname().nodename}\n{known}")


class SlurmBox:
    """``environ`` has what the commands of Slurm need."""

    def __init__(self, home: Path, *, port: int = 16817, min_job_age: int = 3600) -> None:
        self.home = home
        home.mkdir(mode=0o755, exist_ok=True)
        for name in ("state", "spool-n1", "spool-n2"):
            (home / name).mkdir(mode=0o755)
        for number in range(3):
            os.mknod(home / f"gpu{number}", 0o666 | 0o020000, os.makedev(1, 5))
        ports = {"port": port, "port_1": port + 1, "port_2": port + 2}
        conf = home / "slurm.conf"
        conf.write_text(_CONF.format(home=home, min_job_age=min_job_age, **ports))
        (home / "gres.conf").write_text(_GRES.format(home=home))
        self.environ = {**os.environ, "SLURM_CONF": str(conf)}
        (home / "cgroup.conf").write_text(
            f"CgroupPlugin={'cgroup/v1' if self.version < 23 else 'disabled'}\n"
        )
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        key = home / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    @property
    def version(self) -> int:
        """Its year."""
        return int(self.run("sinfo", "--version").split()[1].partition(".")[0])

    def start(self) -> None:
        home = self.home
        _name_this_host()
        self._start(
            "munged", "munged", "--foreground", "--force", f"--socket={home}/munge.socket",
            f"--key-file={home}/munge.key", f"--pid-file={home}/munged.pid", f"--log-file={home}/munged.log",
            f"--seed-file={home}/munge.seed",
        )  # fmt: skip
        until(lambda: (home / "munge.socket").exists(), "munged has its socket")
        self.start_controller()
        for node in ("n1", "n2"):
            self.start_node(node)
        until(self._are_up, "both nodes are idle")

    def start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D", "-i")

    def start_node(self, name: str, *, hides: str = "") -> None:
        """Start a node's daemon. ``hides``: a directory of this machine that the node does not share."""
        if hides:
            script = f"mount -t tmpfs none {shlex.quote(hides)} && exec slurmd -D -N {name}"
            self._start(name, "unshare", "--mount", "--propagation=private", "sh", "-c", script)
            return
        self._start(name, "slurmd", "-D", "-N", name)

    def kill(self, name: str) -> None:
        """Kill a daemon: "slurmctld", "n1" or "n2"."""
        found = self._daemons.pop(name)
        found.kill()
        found.wait()

    def end(self, name: str) -> None:
        """End a daemon, which saves its state."""
        found = self._daemons.pop(name)
        found.terminate()
        found.wait()

    def run(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stderr, self.log())
        return done.stdout

    def resume(self) -> None:
        """Make the nodes usable again, whatever was wrong with them."""
        for node in ("n1", "n2"):
            words = ["scontrol", "update", f"nodename={node}", "state=resume"]
            subprocess.run(words, env=self.environ, capture_output=True, check=False)  # fails if it is

    def log(self) -> str:
        return "\n".join(
            f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self.home.glob("*.log"))
        )

    def stop(self) -> None:
        for name in reversed(list(self._daemons)):
            self.kill(name)

    def _are_up(self) -> bool:
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%T"], env=self.environ, capture_output=True, text=True, check=False
        )
        return done.returncode == 0 and set(done.stdout.split()) == {"idle"}

    def _start(self, name: str, *words: str) -> None:
        log = (self.home / f"{name}.out.log").open("ab")
        environ = {**self.environ, "PATH": _PATH}
        self._daemons[name] = subprocess.Popen(
            words, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        log.close()
