"""`python -m tests.machines`: build, try and look after the test machines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.machines import host, image, recipe
from tests.machines.host import MachineError
from tests.machines.machine import Machine, run
from tests.machines.namespace import NamespaceMachine
from tests.machines.qemu import QemuMachine
from tests.machines.settings import ci, wanted_suites

GREETING = """\
{suite} {kind} machine: systemd {systemd} as PID 1, Python {python}, this checkout at /src, slicer on PATH.
Users alice and bob are there too. All changes are lost when you leave (exit or Ctrl-D).
Try:  slicer run --profile heavy -- xz -T0 -k -c /usr/lib/x86_64-linux-gnu/libc.so.6 >/dev/null
      systemctl status gpu.slice cpu.slice;  journalctl -t slicer;  slicer history
"""


def main(argv: Sequence[str]) -> int:
    options = parser().parse_args(argv)
    try:
        return int(options.action(options))
    except MachineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    actions = top.add_subparsers(required=True)

    def action(name: str, function: object, help: str) -> argparse.ArgumentParser:
        sub = actions.add_parser(name, help=help)
        sub.set_defaults(action=function)
        return sub

    action("prepare", prepare, "install the tools and build the images that the tests here will want")
    builder = action("build", build, "build the images that the cache lacks")
    builder.add_argument("--suite", action="append", choices=recipe.SUITES, help="default: all")
    for name, function, help in (
        ("exec", execute, "run a command in a fresh machine and pass on its output and exit code"),
        ("shell", shell, "open a root shell in a fresh machine"),
    ):
        sub = action(name, function, help)
        sub.add_argument("--suite", default="trixie", choices=recipe.SUITES)
        sub.add_argument("--machine", default="namespace", choices=("namespace", "qemu"))
        sub.add_argument("--bare", action="store_true", help="without slicer installed")
        if name == "exec":
            sub.add_argument("--user", default="root", choices=("root", *recipe.USERS))
            sub.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
            sub.add_argument("command", nargs="+", help="the command, after --")
    return top


def prepare(options: argparse.Namespace) -> int:
    """What cannot be had makes tests skip, with the reason, so here it fails only where they would: in CI."""
    try:
        machines = {**host.BUILD_TOOLS, **host.NAMESPACE_TOOLS, **host.QEMU_TOOLS}
        others = {**host.NIX_TOOLS, **host.SANDBOX_TOOLS, **host.MEDIA_TOOLS, **host.BROWSER_TOOLS}
        host.install_packages({**machines, **others, **host.PROMETHEUS_TOOLS})
        build_images(wanted_suites())
    except MachineError as error:
        print(f"no test machines: {error}", file=sys.stderr)
        return int(ci())
    return 0


def build(options: argparse.Namespace) -> int:
    build_images(options.suite or list(recipe.SUITES))
    return 0


def build_images(names: list[str]) -> None:
    """Build side by side, as half of it is waiting for the network."""

    def one(name: str) -> None:
        with image.use(recipe.SUITES[name], disk=True):
            pass

    with ThreadPoolExecutor() as pool:
        list(pool.map(one, names))


def machine(options: argparse.Namespace, *, console: bool = False) -> Machine:
    suite = recipe.SUITES[options.suite]
    if options.machine == "qemu":
        return QemuMachine(suite, bare=options.bare, console=console)
    return NamespaceMachine(suite, bare=options.bare)


def execute(options: argparse.Namespace) -> int:
    with machine(options) as booted:
        result = run(booted, options.command, user=options.user, timeout_s=options.timeout)
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    if result.timed_out:
        print(f"error: killed after {options.timeout:g} s", file=sys.stderr)
    return result.returncode if result.returncode >= 0 else 128 - result.returncode


def shell(options: argparse.Namespace) -> int:
    with machine(options, console=True) as booted:
        suite = booted.suite
        greeting = GREETING.format(
            suite=suite.name, kind=booted.kind, systemd=suite.systemd, python=suite.python
        )
        print(greeting, flush=True)
        # Its exit code is that of whatever was typed last, and no news for make.
        booted.shell()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
