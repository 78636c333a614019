"""What to say of how slicer is called, and of programs beside it. Pure."""

from __future__ import annotations

from slicer.doctor.kinds import finding
from slicer.doctor.model import Verdict
from slicer.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicer.doctor.facts.environment import EnvironmentFacts
    from slicer.doctor.facts.others import OthersFacts
    from slicer.doctor.model import Finding, Who

# Where sudo looks, unless sudoers says otherwise: Debian's, which others resemble.
_USUAL_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# By no name: there is no release, and the index gives a name to whoever registers it first.
_THERE = "# in slicer's source directory:"
_LOCAL = "/usr/local/bin"
_NOT_FOR_JOBS = ("SLICER_LEASE", "SLICER_FAULTS", "GPU_LOCK_HELD")  # these are never to be passed on by hand


def environment(facts: EnvironmentFacts, who: Who) -> Verdict:
    """PATH, sudo, variables, and the package's name."""
    program = facts.program or (facts.on_path[0] if facts.on_path else "")
    shown = (
        ("this slicer", facts.program or "python -m slicer"), ("on PATH", ", ".join(facts.on_path) or "none"),
        ("its Python", facts.prefix), ("sudo", facts.sudo or "none"),
        *((f"${name}", value) for name, value in facts.variables),
    )  # fmt: skip
    found = (*_packages(facts), *_variables(facts), *_programs(facts, program, who))
    return Verdict("environment", program or "python -m slicer", shown, found)


def _packages(facts: EnvironmentFacts) -> Iterator[Finding]:
    if facts.clashing:
        pip = f"{quote(facts.prefix)}/bin/python -m pip"
        theirs = quote(facts.clashing.replace(" ", "=="))
        yield finding(
            "package-overwritten", f"{facts.clashing} in {facts.prefix}",
            f"{pip} uninstall -y slicer-systemd",
            f"{pip} install --force-reinstall --no-deps {theirs}",
            _THERE, "pipx install .",
        )  # fmt: skip
    for other in facts.namesakes:
        named = f" ({other.distribution})" if other.distribution else ""
        what = f"in {other.python} it is {other.package}{named}"
        yield finding("import-is-another", what, f"slicer run -- {quote(other.python)} …")


def _variables(facts: EnvironmentFacts) -> Iterator[Finding]:
    said = dict(facts.variables)
    if "SLICER_SIM" in said:
        yield finding("simulation-on", f"SLICER_SIM={said['SLICER_SIM']}", "unset SLICER_SIM")
    skipped = [name for name in ("SLICER_SKIP_GPU_LOCK", "PSRUN_SKIP_GPU_LOCK") if said.get(name, "0") != "0"]
    if skipped:
        yield finding("gpu-lock-skipped", ", ".join(skipped), f"unset {' '.join(skipped)}")
    if "SLICER_LEASE" in said:
        yield finding("inside-a-job", f"SLICER_LEASE={said['SLICER_LEASE']}")
    elif said.get("GPU_LOCK_HELD", "0") != "0":
        yield finding("gpu-lock-claimed", f"GPU_LOCK_HELD={said['GPU_LOCK_HELD']}", "unset GPU_LOCK_HELD")
    if "SLICER_FAULTS" in said:
        yield finding("fault-points-on", f"SLICER_FAULTS={said['SLICER_FAULTS']}", "unset SLICER_FAULTS")


def _programs(facts: EnvironmentFacts, program: str, who: Who) -> Iterator[Finding]:
    if len(facts.on_path) > 1:
        yield finding("several-slicers", ", ".join(facts.on_path), "which -a slicer")
    if facts.is_under_sudo:
        yield finding("under-sudo", "sudo started this slicer")
    if not facts.sudo:
        return
    searched = _USUAL_PATH if facts.secure_path is None else facts.secure_path
    is_of_nixos = program.startswith("/nix/store/")  # whose sudo keeps PATH
    if program and not is_of_nixos and program.rpartition("/")[0] not in searched:
        usually = "usually " if facts.secure_path is None else ""
        what = f"sudo {usually}looks in {':'.join(searched)}, and this is {program}"
        yield finding("sudo-finds-no-slicer", what, *_for_root(facts, program, searched, who))
    dropped = [name for name, _ in facts.variables if name not in _NOT_FOR_JOBS]
    if dropped and who.uid:
        names = ",".join(dropped)
        yield finding("sudo-drops-variables", ", ".join(dropped), f"sudo --preserve-env={names} slicer …")


def _for_root(
    facts: EnvironmentFacts, program: str, searched: tuple[str, ...], who: Who
) -> tuple[str, ...]:
    """How root gets a slicer. A link to one that somebody else can write would make that user root."""
    place = _LOCAL if _LOCAL in searched else searched[0]
    if facts.is_roots:
        return (who.root(f"ln -s {quote(program)} {place}/slicer"),)
    install = f"PIPX_HOME=/opt/pipx PIPX_BIN_DIR={place} pipx install ."
    return _THERE, who.root(install)


def others(facts: OthersFacts, who: Who) -> Verdict:
    """Docker, other schedulers, scripts."""
    shown = [
        ("docker's cgroup driver", facts.docker or "no docker"),
        ("GPU lock of scripts", facts.lock or "none"),
    ]
    shown += [(other.what, f"pid {other.pid}") for other in facts.schedulers]
    found = tuple(_others(facts, who))
    named = [other.what for other in facts.schedulers] + (["docker"] if facts.docker else [])
    return Verdict(
        "others", f"seen: {', '.join(named)}" if named else "nothing in the way", tuple(shown), found
    )


def _others(facts: OthersFacts, who: Who) -> Iterator[Finding]:
    if facts.lock_problem:
        mend = f"ls -ld {quote(facts.lock)} {quote(facts.lock.rpartition('/')[0] or '/')}"
        yield finding("gpu-lock-unusable", f"{facts.lock} {facts.lock_problem}", mend)
    if facts.lock_holder:
        name = f" ({facts.lock_holder_name})" if facts.lock_holder_name else ""
        what = f"pid {facts.lock_holder}{name} holds {facts.lock}"
        yield finding("gpu-lock-held", what, f"ps -fp {facts.lock_holder}")
    if facts.docker == "systemd":
        yield finding("docker-is-outside", "docker is installed", "docker run --cgroup-parent=gpu.slice …")
    elif facts.docker:
        mend = '# in /etc/docker/daemon.json: {"exec-opts": ["native.cgroupdriver=systemd"]}'
        yield finding(
            "docker-cgroupfs",
            f"the cgroup driver is {facts.docker}",
            mend,
            who.root("systemctl restart docker"),
        )
    for other in facts.schedulers:
        yield finding("other-scheduler", f"{other.what} (pid {other.pid})", f"ps -fp {other.pid}")
    if facts.task_spooler:
        yield finding("other-scheduler", f"task-spooler ({facts.task_spooler})", "tsp")
