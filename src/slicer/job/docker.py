"""docker in a job: what is added to ``docker run``, and what is refused. Pure.

dockerd starts the container, and systemd puts nothing below a scope. So the job gets a slice of its own
(``gpu-ID.slice``), with the profile's limits and the fence, around its scope and the container, whose
``--cgroup-parent`` it is. The lease names the slice. So it lasts until that is empty, whatever becomes of
slicer, docker's client and dockerd, and what stops the slice stops the container.

Only dockerd's own systemd can have that slice: the system's, for root's jobs and through the broker. runc
looks for ``cpu.slice`` in a directory that systemd names otherwise, so a job there cannot have one. A job
with GPUs is refused if its container would not be in it; another one is told, and runs.
"""

from __future__ import annotations

from slicer.config.profiles import THREAD_VARIABLES
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicer.model import Manager

LABEL = "slicer.job"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"  # what NVIDIA's runtime shows, unless --gpus says it; images set "all"
_NVIDIA = "nvidia"
_CDI = "nvidia.com/gpu="
_DEVICES = ("/dev/nvidia", _CDI)
_ALL = ("device", f"{_CDI}all")  # as --gpus all, where GPUs have names by CDI alone (NixOS)
# docker's options that take no value: those of docker itself, and those of run (docker/cli 29).
_DOCKERS = ("D", "debug", "tls", "tlsverify", "v", "version", "help")
_RUNS = (
    "d", "detach", "disable-content-trust", "help", "i", "init", "interactive", "no-healthcheck",
    "oom-kill-disable", "P", "privileged", "publish-all", "q", "quiet", "read-only", "rm", "sig-proxy", "t",
    "tty", "use-api-socket",
)  # fmt: skip
_FALSE = ("0", "f", "F", "false", "False", "FALSE")  # Go's strconv.ParseBool


@record
class RunOption:
    """As written: its words, and the names in it with their values; a flag's is "true"."""

    words: tuple[str, ...]
    named: tuple[tuple[str, str], ...]


@record
class DockerRun:
    """The command line of a ``docker run``."""

    head: tuple[str, ...]  # docker, with its own options
    verb: tuple[str, ...]  # "run", or "container run"
    options: tuple[RunOption, ...]
    rest: tuple[str, ...]  # the image, and its command

    def values(self, *names: str) -> list[str]:
        return [value for option in self.options for name, value in option.named if name in names]


@record
class Daemon:
    """What ``docker info`` says of the daemon."""

    driver: str  # of cgroups
    version: str  # of cgroups
    machine: tuple[str, str]  # host name and kernel
    manager: Manager  # the systemd that it asks; "user": of a rootless one
    runtime: str  # the default one


def parse(command: Sequence[str]) -> DockerRun | None:
    """The command line's parts; None: it starts no container."""
    _, rest = _options(command[1:], _DOCKERS)
    size = 2 if rest[:1] == ("container",) else 1
    if rest[size - 1 : size] != ("run",):
        return None
    own, image = _options(rest[size:], _RUNS)
    return DockerRun((*command[:1], *own_options(command)), rest[:size], own, image)


def own_options(command: Sequence[str]) -> tuple[str, ...]:
    """docker's own options, which say what daemon it asks."""
    return tuple(word for option in _options(command[1:], _DOCKERS)[0] for word in option.words)


def _options(words: Sequence[str], flags: tuple[str, ...]) -> tuple[tuple[RunOption, ...], tuple[str, ...]]:
    """The options at the beginning, by the rules of Go's pflag, and the rest."""
    found, at = [], 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        named = list(_named(words[at], flags))
        size = 1
        if named and named[-1][1] is None:  # its value is the next word
            size = 2
        value = words[at + 1] if at + 1 < len(words) else ""
        pairs = tuple((name, value if said is None else said) for name, said in named)
        found.append(RunOption(tuple(words[at : at + size]), pairs))
        at += size
    return tuple(found), tuple(words[at:])


def _named(word: str, flags: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """The names in the word of an option, with their values; None: the next word."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        yield name, value if equals else "true" if name in flags else None
        return
    for at, letter in enumerate(word[1:], 2):
        left = word[at:]
        if left.startswith("=") or letter not in flags:
            yield letter, left.removeprefix("=") if left else None
            return
        yield letter, "true"


def why_outside(daemon: Daemon, machine: tuple[str, str], manager: Manager, slice_name: str) -> str:
    """Why dockerd cannot start a container in this job; "": it can. ``machine``: this one, as in Daemon."""
    if daemon.machine != machine:
        return f"dockerd runs on another machine ({daemon.machine[0]})"
    if daemon.manager != manager:
        whose = "the system's" if daemon.manager == "system" else "a user's"
        instead = "the broker puts jobs there" if daemon.manager == "system" else "it is rootless"
        return f"dockerd asks {whose} systemd for containers, and this job is in another one ({instead})"
    if daemon.driver != "systemd" or daemon.version != "2":
        return f"its cgroup driver is {daemon.driver} on cgroup v{daemon.version}, not systemd on v2"
    return "" if slice_name == "gpu" else "runc finds no slice below cpu.slice (jobs with GPUs are elsewhere)"


def why_refused(run: DockerRun, gpus: int, *, linger: bool) -> str:
    """What the command line may not have in a job with so many GPUs; "": nothing of that kind."""
    if run.values("cgroup-parent"):
        return "--cgroup-parent: the container is in the job's own slice"
    if set(run.values("restart")) - {"no", ""}:
        return "--restart: the end of the job ends the container"
    if not linger and set(run.values("d", "detach")) - set(_FALSE):
        return "--detach: the job ends with the command, and the container with it (--linger waits for it)"
    devices = set(run.values("device")) - {_ALL[1] if gpus else ""}
    if any(value.startswith(_DEVICES) for value in devices):
        return "--device: a container gets the GPUs of the lease, without an option"
    for value in run.values("gpus"):
        count, _ = _gpu_fields(value)
        if "device=" in count:
            return "--gpus device=: a container gets the GPUs of the lease, without an option"
        if not gpus or (count.isdigit() and int(count) > gpus):
            return f"--gpus {value}: the lease has {gpus or 'no GPU'} (slicer run --gpus)"
    return ""


def _gpu_fields(value: str) -> tuple[str, str]:
    """Which GPUs a value of --gpus asks for, and its other fields."""
    if "device=" in value:
        return value, ""
    fields = value.split(",")
    which = [each for each in fields if "=" not in each or each.startswith("count=")]
    return "".join(which).removeprefix("count="), ",".join(each for each in fields if each not in which)


def is_compose_up(command: Sequence[str]) -> bool:
    """Whether that is a ``docker compose`` which starts containers."""
    _, rest = _options(command[1:], _DOCKERS)
    return rest[:1] == ("compose",) and not {"create", "run", "start", "up"}.isdisjoint(rest)


def container_in(cgroup: str) -> str:
    """The id of the container that has a cgroup of that name; "": none has."""
    return cgroup.removeprefix("docker-").removesuffix(".scope") if cgroup.startswith("docker-") else ""


def added(run: DockerRun, slice_name: str, job: str, gpus: Sequence[str], runtime: str) -> tuple[str, ...]:
    """The options that a job adds. ``gpus``: their UUIDs; ``runtime``: the daemon's default one."""
    words = [f"--cgroup-parent={slice_name}", f"--label={LABEL}={job}"]
    if gpus and _ALL[1] in run.values("device"):
        words += [f"--device={_CDI}{each}" for each in gpus]
    elif gpus:
        asked = [_gpu_fields(value)[1] for value in run.values("gpus")]
        words.append("--gpus=" + ",".join((f'"device={",".join(gpus)}"', *filter(None, asked))))
    if _NVIDIA in (run.values("runtime") or [runtime]):
        words.append(f"--env={_VISIBLE}={','.join(gpus) or 'void'}")
    return tuple(words)


def in_job(run: DockerRun, words: Sequence[str]) -> tuple[str, ...]:
    """The command line with the added ``words`` (:func:`added`) in it. They win over the user's."""
    threads = tuple(f"--env={name}" for name in THREAD_VARIABLES)  # a name alone: with the client's value
    has_gpus = any(word.startswith(("--gpus=", "--device=")) for word in words)
    kept = (each for each in run.options if not has_gpus or not _asks_for_gpus(*each.named[-1]))
    own = (word for option in kept for word in option.words)
    return (*run.head, *run.verb, *threads, *own, *words, *run.rest)


def _asks_for_gpus(name: str, value: str) -> bool:
    return name == "gpus" or (name, value) == _ALL
