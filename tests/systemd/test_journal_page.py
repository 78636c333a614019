"""docs/journal.md cannot lie: its commands run here, and what it shows is what comes out (K7)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.processes import MARK
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

PAGE = Path(__file__).parents[2] / "docs" / "journal.md"
PAGE_TEXT = " ".join(PAGE.read_text().split())
PREFIX = re.compile(r"^\w{3} \d\d [\d:]{8} \S+ [^:\[]+(\[\d+\])?: ")
# A job's id first: it may have digits only, and then it is no figure with the dot after it.
FIGURE = re.compile(r"[0-9a-f]{12}|\d[\d.]*(ms|[smhdKMGT])?(\d+(ms|[smh]))?\b")


@dataclass(frozen=True)
class Query:
    """A command of the page, and what it shows below it."""

    user: str
    command: str
    shown: tuple[str, ...]


def queries() -> list[Query]:
    """Every command of the page, in its order."""
    found: list[Query] = []
    for block in re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        for line in block.splitlines():
            prompt = re.match(r"(\w*)\$ (.*)", line)
            if prompt:
                found.append(Query(prompt[1] or "root", prompt[2], ()))
            else:
                last = found.pop()
                found.append(Query(last.user, last.command, (*last.shown, line)))
    return found


def words(line: str) -> str:
    """A line without its time, host, program and figures."""
    # Where there is no controller for memory, its figure is not there at all.
    message = FIGURE.sub("#", PREFIX.sub("", line))
    return re.sub(r":? ?CPU #(, memory #)?|, memory #", "", message)


QUERIES = queries()
OF_ROOT = [query for query in QUERIES if query.user == "root"]
OF_ALICE = [query for query in QUERIES if query.user == "alice"]
SIM = {"SLICER_SIM": "1x24G"}
ROUTES = """\
[routes.whisper]
probe = "size"
input = -1
threshold = "1K"
[routes.whisper.gpu]
vram = "2G"
max_jobs = 1
"""


@pytest.fixture(scope="module")
def scenario(
    tmp_path_factory: pytest.TempPathFactory, alice: User
) -> Iterator[tuple[dict[str, str], User]]:
    """A small night on a machine, once for all queries. Gives the ids that stand for those of the page."""
    directory = tmp_path_factory.mktemp("night")
    systemctl.output("slicer", "install")
    slicer = Slicer(directory)
    try:
        since = time.time()
        root_jobs(slicer)
        notebook(slicer, alice)
        systemctl.output("journalctl", "--sync")
        slicer.check_nothing_left()
        yield ids(since), alice
    finally:
        systemctl.output("slicer", "install", "--remove")
        slicer.check_nothing_left()


def root_jobs(slicer: Slicer) -> None:
    def simjob(vram: str, hold: str) -> tuple[str, ...]:
        return "--", "slicer", "simjob", "--vram", vram, "--hold", hold

    base = slicer.start("-p", "gpu", "--name", "base", "--expect", "3h", *simjob("6G", "1h"), env=SIM)
    until(lambda: happened("started", "base"), "base runs")
    train = slicer.start("-p", "gpu", "--name", "train", *simjob("6G", "0.7"), env=SIM)
    until(lambda: happened("waiting", "train"), "train waits")
    time_to_see_memory(slicer, "base")
    for verb in ("pause", "resume", "stop"):
        slicer.command(verb, "base", **SIM)
    assert base.end().code == 143
    assert train.end().code == 0
    infer = slicer.start("--vram", "2G", "--name", "infer", *simjob("6G", "1h"), env=SIM)
    until(lambda: happened("over-limit", "infer"), "somebody has looked at what infer uses")
    slicer.command("stop", "infer", **SIM)
    infer.end()
    assert slicer.run("--name", "prepare", "--", "sh", "-c", "exit 3").code == 3
    eats = "import time; x = b'x' * (300 << 20); time.sleep(60)"
    limited = ("--backend", "plain", "--set", "MemoryMax=50M")  # plain: limits act in every machine
    assert slicer.run(*limited, "--name", "big", "--", "python3", "-c", eats).code == 137
    says = "echo epoch 1: loss 0.42; echo no checkpoint found >&2"
    slicer.run("--journal", "--name", "fit", "--", "sh", "-c", says)
    assert slicer.run("--gpus", "3", "--name", "eval", "--", "true", env=SIM).code == 2
    jobs = slicer.path("jobs.txt")
    jobs.write_text("[vram=2G] slicer simjob --vram 1G --hold 0.7\n")
    logs = str(slicer.path("logs"))
    slicer.command("queue", "-q", str(jobs), "--log-dir", logs, **SIM)
    slicer.path("routes.toml").write_text(ROUTES)
    talk = slicer.path("talk.mp4")
    talk.write_bytes(b"x" * 100)
    routed = {**SIM, "SLICER_CONFIG": str(slicer.path("routes.toml"))}
    gate = slicer.gate()
    words = ("--", "sh", "-c", f": <{gate}", "whisper", str(talk))
    first = slicer.start("whisper", *words, env=routed, program="route")
    until(lambda: happened("started", "whisper:talk.mp4"), "one of the route runs")
    assert slicer.run("whisper", *words, env=routed, program="route").code == 75
    gate.open()
    assert first.end().code == 0


def notebook(slicer: Slicer, alice: User) -> None:
    line = ("--vram", "8G", "--name", "notebook", "--", "slicer", "simjob", "--vram", "1G", "--hold", "0.7")
    done = subprocess.run(
        [*alice.via, f"{MARK}={slicer.mark}", "SLICER_SIM=1x24G", "slicer", "run", *line],
        cwd="/", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done


def happened(kind: str, name: str) -> bool:
    return bool(systemctl.journal("-t", "slicer", f"SLICER_EVENT={kind}", f"SLICER_NAME={name}"))


def time_to_see_memory(slicer: Slicer, name: str) -> None:
    """The message of the end has the GPU's memory only if somebody has looked at it."""

    def is_seen() -> bool:
        told = json.loads(slicer.command("status", "--json", **SIM).stdout)
        (job,) = [job for job in told["jobs"] if job["name"] == name]
        return bool(job["gpus"][0]["peak_mib"])

    until(is_seen, f"the memory of {name} is seen")


def ids(since: float) -> dict[str, str]:
    """The page's ids, and the real ones."""
    found = {
        entry["SLICER_NAME"]: entry["SLICER_JOB"]
        for entry in systemctl.journal("-t", "slicer", "SLICER_EVENT=started", f"--since=@{since:.0f}")
    }
    return {"3f2a9c01b7de": found["train"], "77d802f3bad8": found["notebook"]}


def real(command: str, ids: dict[str, str]) -> str:
    for shown, found in ids.items():
        command = command.replace(shown, found)
    if " -f " in command:
        return f"timeout 2 {command}"
    return command


def run(command: str, prefix: tuple[str, ...] = ()) -> list[str]:
    """The lines of the command; with jq, where there is none, those that jq would read."""
    if " | jq" in command and not shutil.which("jq"):
        command, _, program = command.partition(" | jq")
        lines = run(command, prefix)
        check_fields(lines, program)
        return lines
    done = subprocess.run(
        [*prefix, "sh", "-c", command], capture_output=True, text=True, timeout=60, cwd="/", check=False
    )
    assert done.returncode in ((0, 124) if command.startswith("timeout") else (0,)), done
    return done.stdout.splitlines()


def check_fields(lines: list[str], program: str) -> None:
    entries = [json.loads(line) for line in lines]
    assert entries
    for field in re.findall(r"\.([A-Z_]+)", program):
        assert any(field in entry for entry in entries), field


@pytest.mark.parametrize("query", OF_ROOT, ids=[query.command for query in OF_ROOT])
def test_what_the_page_asks_as_root(query: Query, scenario: tuple[dict[str, str], User]) -> None:  # K7
    compare(query, run(real(query.command, scenario[0])))


@pytest.mark.parametrize("query", OF_ALICE, ids=[query.command for query in OF_ALICE])
def test_what_the_page_asks_as_a_user(query: Query, scenario: tuple[dict[str, str], User]) -> None:  # K7
    found, alice = scenario
    compare(query, run(real(query.command, found), alice.via))


def compare(query: Query, lines: list[str]) -> None:
    assert lines or "yesterday" in query.command, query
    found = {words(line) for line in lines}
    missing = [line for line in query.shown if words(line) not in found]
    assert not missing, f"the page shows what is not there: {missing}\n" + "\n".join(sorted(found))


def test_who_may_read_what(scenario: tuple[dict[str, str], User]) -> None:  # K7
    line = ("journalctl", "-t", "slicer", "-o", "cat", "SLICER_EVENT=finished")
    stranger = ("setpriv", "--reuid=4242", "--regid=4242", "--clear-groups")  # bob may have had jobs by now
    nobody = subprocess.run([*stranger, *line], capture_output=True, text=True, cwd="/", check=False)
    assert nobody.stdout == ""
    told = ("No journal files were opened due to insufficient permissions", "not seeing messages from other")
    assert any(text in nobody.stderr and text in PAGE_TEXT for text in told), nobody
    alice = "\n".join(run(" ".join(line), scenario[1].via))
    assert "notebook: finished" in alice
    trains = f"SLICER_JOB={scenario[0]['3f2a9c01b7de']}"  # she may have had one of that name herself
    assert "train: finished" not in "\n".join(run(" ".join((*line, trains)), scenario[1].via))
    member = ("setpriv", "--reuid=bob", "--regid=bob", "--groups=systemd-journal")
    all_of_it = "\n".join(run(" ".join(line), member))
    assert "notebook: finished" in all_of_it
    assert "train: finished" in all_of_it


def test_the_page_has_its_queries() -> None:  # K7
    assert re.findall(r"^## (\d+)\.", PAGE.read_text(), re.M) == [str(number) for number in range(1, 12)]
