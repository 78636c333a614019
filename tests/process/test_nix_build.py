"""The Nix package's own steps, build and check phase, where a build of Nix runs: it needs no Nix.

There is nothing but the files that nix/package.nix names, its dependencies and the tools of stdenv. There is
no network, no /usr/bin, no /sys and no home directory; /bin has only sh; the user is an ordinary one.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.machines import checkout, host
from tests.machines.host import REPO

pytestmark = [pytest.mark.slow, pytest.mark.with_ci]

# What stdenv has in PATH, as far as a build or a test may want it.
STDENV = """\
bash sh awk bzip2 cmp diff find gawk grep gzip make patch sed tar xargs xz
[ basename cat chmod chown cp cut date dd df dirname du echo env expr false head id install kill ln ls mkdir
mkfifo mktemp mv nice nl nohup nproc od paste printf pwd readlink realpath rm rmdir seq sha256sum sleep sort
split stat stty sync tail tee test timeout touch tr true truncate tty uname uniq wc whoami yes
gcc cc ld as ar nm objcopy objdump ranlib readelf strip
"""
# What other packages of nativeCheckInputs have.
PROGRAMS = {"util-linux": "flock prlimit setsid setpriv unshare"}
PASSWD = "root:x:0:0::/build:/noshell\nnixbld:x:1000:100::/build:/noshell\nnobody:x:65534:65534::/:/noshell\n"
GROUP = "root:x:0:\nnixbld:!:100:\nnogroup:x:65534:\n"
SITE = "lib/python/site-packages"
SITE_OF_NIX = "${python3Packages.python.sitePackages}"
ENVIRON = {
    "PATH": "/store/bin", "PYTHONPATH": f"/build/out/{SITE}:/store/python", "HOME": "/homeless-shelter",
    "NIX_BUILD_TOP": "/build", "out": "/build/out", "TERM": "dumb", "LC_ALL": "C.UTF-8",
    "SLICER_BUILD_LAUNCHER": "no", "SLICER_TEST_QUICK": "1",
}  # fmt: skip
UNLIMITED = "tests/unit/cli/test_doctor.py::test_where_no_process_can_be_forked_it_says_so"
LIMIT_S = 1500  # of one step; most of it is waiting for a processor
# What buildPythonApplication does before and after its own hooks: the wheel is installed below $out.
BUILD = f"""
set -eu
python -c 'import setuptools.build_meta as backend; backend.build_wheel("/build/dist")'
python -m zipfile -e /build/dist/*.whl $out/{SITE}
mkdir $out/bin
cp $out/{SITE}/*.data/scripts/* $out/bin
"""
CHECK = """
set -eu
export HOME=$(mktemp -d)
exec python -m pytest --numprocesses=$(nproc) -q "$@"
"""


def named(attribute: str) -> list[str]:
    """The words of a list in nix/package.nix: paths, packages or strings."""
    text = re.sub(r"#.*", "", (REPO / "nix/package.nix").read_text())
    found = re.search(rf"\b{attribute} (?:= )?\[([^]]*)\]", text)
    assert found is not None, attribute
    return [word.strip('"') for word in found[1].split()]


def hook(attribute: str) -> str:
    """The shell script of a hook in nix/package.nix."""
    found = re.search(rf"\b{attribute} = ''\n(.*?)\n *'';", (REPO / "nix/package.nix").read_text(), re.DOTALL)
    assert found is not None, attribute
    return found[1]


def packages(names: list[str]) -> dict[str, importlib.metadata.Distribution]:
    """The distributions of these names and all that they need, by their names."""
    found: dict[str, importlib.metadata.Distribution] = {}
    while names:
        name = names.pop().lower().replace("_", "-")
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(name)
        needed = map(Requirement, found[name].requires or ())
        names += [need.name for need in needed if not need.marker or need.marker.evaluate({"extra": ""})]
    return found


def lay(out: Path, distribution: importlib.metadata.Distribution) -> None:
    """Copy what a distribution has installed beside its Python modules."""
    for file in distribution.files or ():
        if ".." in file.parts or file.suffix in (".pyc", ".pth"):
            continue
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(file.locate()), out / file)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in the sandbox beside the system's libraries: the fileset, the dependencies, /etc."""
    root = tmp_path_factory.mktemp("nix")
    checkout.copy(root / "checkout")
    (root / "build").mkdir()
    for path in (word.removeprefix("../") for word in named("unions")):
        (root / "build" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "checkout" / path).rename(root / "build" / path)
    shutil.rmtree(root / "checkout")
    inputs = [*named("dependencies"), *named("nativeCheckInputs"), *named("build-system")]
    ours = [each.partition(".")[2] for each in inputs if each.startswith("python3Packages.")]
    for distribution in packages([{"pytestCheckHook": "pytest"}.get(each, each) for each in ours]).values():
        lay(root / "python", distribution)
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text(PASSWD)
    (root / "etc/group").write_text(GROUP)
    return root


def sandbox(store: Path) -> list[str]:
    """The command that runs another one as a build of Nix is run. Fails where there can be none."""
    bwrap = host.tool("bwrap")
    words = [bwrap or "bwrap", "--unshare-all", "--die-with-parent", "--uid", "1000", "--gid", "100"]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--clearenv"]
    words += ["--ro-bind", "/usr/lib", "/usr/lib", "--ro-bind", "/usr/include", "/usr/include"]
    words += ["--tmpfs", "/usr/lib/python3"]
    if Path("/usr/lib64").is_dir():
        words += ["--ro-bind", "/usr/lib64", "/usr/lib64"]
    words += ["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]
    words += ["--symlink", "/usr/lib", "/store/lib"]  # where gcc looks for its parts
    words += ["--ro-bind", os.path.realpath("/bin/sh"), "/bin/sh"]
    python = os.path.realpath(sys.executable)
    if sys.base_prefix != "/usr":
        words += ["--ro-bind", sys.base_prefix, sys.base_prefix]
        words += ["--tmpfs", sysconfig.get_path("purelib", vars={"base": sys.base_prefix})]
        words += ["--symlink", python, "/store/bin/python", "--symlink", python, "/store/bin/python3"]
    else:
        words += ["--ro-bind", python, "/store/bin/python", "--ro-bind", python, "/store/bin/python3"]
    others = [PROGRAMS.get(each, "") for each in named("nativeCheckInputs")]
    for tool in " ".join([STDENV, *others]).split():
        if (found := host.tool(tool)) is not None:
            words += ["--ro-bind", os.path.realpath(found), f"/store/bin/{tool}"]
    words += ["--ro-bind", str(store / "python"), "/store/python", "--ro-bind", str(store / "etc"), "/etc"]
    words += ["--bind", str(store / "build"), "/build", "--chdir", "/build"]
    for name, value in ENVIRON.items():
        words += ["--setenv", name, value]
    tried = (
        None
        if bwrap is None
        else subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    )
    if tried is None or tried.returncode:
        reason = (
            "bubblewrap is not installed (`make test` installs it)" if tried is None else tried.stderr.strip()
        )
        pytest.fail(f"no sandbox as Nix has it: {reason}")
    return words


def run(words: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*words, *more], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def built(store: Path) -> list[str]:
    """The sandbox, once the package is built and installed in it."""
    words = sandbox(store)
    after = hook("postInstall").replace(SITE_OF_NIX, SITE)
    done = run(words, "bash", "-c", BUILD + after)
    assert done.returncode == 0, done.stdout[-8000:]
    return words


@pytest.fixture(scope="module")
def checked(built: list[str]) -> subprocess.CompletedProcess[str]:
    """The check phase: minutes, so it does not count as the time of one test."""
    flags = [f"--ignore-glob={path}" for path in named("disabledTestPaths")]
    flags += ["-m", " and ".join(f"not {mark}" for mark in named("disabledTestMarks"))]
    flags += ["-k", " and ".join(f"not {test}" for test in named("disabledTests"))]
    if os.geteuid() == 0:  # whose processes the kernel does not count, by whatever uid the sandbox has them
        flags += ["--deselect", UNLIMITED]
    return run(built, "bash", "-c", CHECK, "check", *flags, *named("enabledTestPaths"))


def test_its_check_phase_passes(checked: subprocess.CompletedProcess[str]) -> None:  # K5
    assert checked.returncode == 0, checked.stdout[-12000:]
