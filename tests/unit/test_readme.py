"""What README.md and the pages beside it show is true: examples are run as they are printed."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import click
import pytest

from slicer.cli import app, runoptions
from slicer.cli.simjob import SimOptions
from slicer.config import routes, serve
from slicer.errors import UsageError
from tests.patience import LONGEST_S, until
from tests.unit.config.machine import Machine
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
_FILES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"))
DESIGN = {f"dev/{path.name}": path.read_text() for path in ROOT.glob("docs/dev/*.md")}
PAGES = {**{path.name: path.read_text() for path in _FILES}, **DESIGN}


def block(page: str, language: str) -> str:
    """The only code block of the page in that language."""
    (found,) = [part.partition("```")[0] for part in PAGES[page].split(f"```{language}\n")[1:]]
    return found


def anchor(heading: str) -> str:
    """What a forge calls a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 110


def test_contributing_is_short_and_leads_to_every_page_of_the_design() -> None:
    assert len(CONTRIBUTING.splitlines()) <= 130
    assert [name for name in DESIGN if f"(docs/{name})" not in CONTRIBUTING] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    folder = next(path.parent for path in (ROOT / name, ROOT / "docs" / name) if path.exists())
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[name]):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        assert not path or (folder / path).exists(), target
        if heading:
            text = (folder / path).read_text() if path else PAGES[name]
            headings = {anchor(line.lstrip("# ")) for line in text.splitlines() if line[:1] == "#"}
            assert heading in headings, target


LEFT_OUT = "needs a value|requires an argument"
NO_COMMANDS = ("slicer cap", "slicer idle")  # words of the JSON


def spans(text: str) -> list[str]:
    """The commands in the running text of a page, and in its tables."""
    found = re.findall(r"`(?:sudo )?(slicer [a-z][^`]*)`", " ".join(text.split()))
    return [each for each in dict.fromkeys(found) if each not in NO_COMMANDS]


def accept(line: str) -> None:
    """Parsed by the command's own parser, which raises what it would say."""
    words = shlex.split(line, comments=True)
    ends = (at for at, word in enumerate(words) if word in ("…", ">", "|", "||", "&&", "&"))
    _, name, *rest = words[: next(ends, len(words))]
    if name in ("run", "hold") and rest != ["--help"]:
        _, inner = runoptions.parse(rest, name)
        if inner[:2] == ("slicer", "simjob"):
            accept(shlex.join(inner))
    elif name == "route":  # options may stand before and behind the route's name
        options, words = runoptions.parse(rest, name)
        runoptions.parse([*words[1:]], name, options)
    else:
        above = click.Context(app.app, **app.app.context_settings)  # commands keep what they inherit of it
        command = app.app.get_command(above, name)
        assert command, name
        with contextlib.suppress(click.exceptions.Exit), command.make_context(name, rest, above) as context:
            if name == "simjob":
                job = SimOptions(**context.params)
                assert job.spike is None or job.spike.at_s < job.plan.end_s, line


def test_every_command_that_readme_names_can_be_typed() -> None:
    named = spans(README + PAGES["first-day.md"])
    assert len(named) > 40
    for each in named:
        accept(each)


@pytest.mark.parametrize("name", PAGES)
def test_every_command_that_a_page_names_is_there(name: str) -> None:
    """In running text its arguments may be left out, and an option's value."""
    for each in spans(PAGES[name]):
        try:
            accept(each)
        except (UsageError, click.UsageError) as error:
            told = str(getattr(error, "message", error))
            if not isinstance(error, click.MissingParameter) and not re.search(LEFT_OUT, told):
                raise


@pytest.mark.parametrize("span", ["slicer sumbit FILE", "slicer run --gpuss 1 -- CMD", "slicer logs --x JOB"])
def test_a_command_that_does_not_exist_is_found(span: str) -> None:
    with pytest.raises((AssertionError, UsageError, click.UsageError)):
        accept(span)


def section(heading: str) -> str:
    return README.partition(f"## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("door", ["I train models", "I run the lab's server", "I host services"])
def test_each_door_leads_to_a_page(door: str) -> None:
    """That these are there is tested above, with all links."""
    assert re.search(r"\bNext: .*\]\(docs/", section(door), re.DOTALL), door


@pytest.mark.parametrize("peer", ["pueue", "task-spooler", "Slurm", "docker", "gflow", "gpusched"])
def test_who_comes_from_elsewhere_finds_the_commands(peer: str) -> None:
    (row,) = re.findall(rf"^\| {peer} \|.*", PAGES["coming-from.md"], re.MULTILINE)
    assert "`slicer " in row.split(" | ")[2]


def test_the_warning_of_other_users_is_on_the_first_screen() -> None:
    rows = [row for line in README.splitlines() for row in textwrap.wrap(line, 80) or [""]]
    assert "another user can be given the same GPU" in " ".join(rows[:24])


def test_readme_leads_to_every_page() -> None:
    assert [page.name for page in ROOT.glob("docs/*.md") if f"(docs/{page.name})" not in README] == []


def test_the_configuration_is_valid_and_its_profiles_do_what_they_say(tmp_path: Path) -> None:  # W13
    machine = Machine(tmp_path)
    machine.system(block("configuration.md", "toml"))
    found = machine.load()
    train = found.profile("train")
    assert (train.slots, train.gpus, train.vram_mib, train.slice) == ({}, 1, 20 << 10, "gpu")
    assert found.profile("heavy").slots == {"cpu": 1}
    assert set(tomllib.loads(block("configuration.md", "toml"))["profiles"]) == {"heavy", "train"}


@pytest.mark.parametrize("text", PAGES["serve.md"].split("```toml\n")[1:])
def test_the_servers_in_the_docs_can_be_read(text: str, tmp_path: Path) -> None:  # B6
    machine = Machine(tmp_path)
    machine.system(text.partition("```")[0])
    assert serve.load(machine.load())


@pytest.mark.parametrize("text", PAGES["routes.md"].split("```toml\n")[1:])
def test_each_route_of_the_page_is_a_configuration(text: str, tmp_path: Path) -> None:  # C1, C2
    machine = Machine(tmp_path)
    machine.system(text.partition("```")[0])
    assert routes.load(machine.load())


def test_the_route_of_the_example_is_a_configuration(tmp_path: Path) -> None:  # C1, C2
    machine = Machine(tmp_path)
    machine.system((ROOT / "docs/examples/whisper/slicer.toml").read_text())
    (whisper,) = routes.load(machine.load()).values()
    assert [(each.name, each.max_jobs) for each in whisper.destinations] == [("gpu", 2), ("cpu", 1)]


def test_the_python_example_works_as_printed(cli: Cli) -> None:  # W3
    env = {**cli.environ, "SLICER_SIM": "1x24G"}
    line = [sys.executable, "-c", block("gpus.md", "python")]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done
    holder = cli.popen("run", "--backend", "plain", "--vram", "8G", "--name", "other", "sleep", "9", env=env)
    try:
        until(lambda: cli.json("status", env=env)["jobs"], "it holds its part")
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        assert (done.returncode, done.stdout) == (0, "other None\n"), done
    finally:
        holder.terminate()
        holder.wait(timeout=LONGEST_S)


def test_the_command_lines_can_be_typed_as_printed() -> None:
    text = "\n".join(PAGES.values())
    scripts = [part.partition("```")[0] for part in text.split("```sh\n")[1:]]
    tour = textwrap.indent("\n".join(scripts), "    ")
    command = r"^(?:    (?:\$ )?|\$ )(?:sudo )?(slicer [a-z].*?)(?: +(?:[|>#&]|2>).*)?$"
    lines = re.findall(command, f"{text}\n{tour}", re.MULTILINE)
    assert len(lines) > 60
    for line in lines:
        accept(line)
        assert not line.startswith("slicer route ") or " -- " in line


def test_the_queue_example_ends_as_printed(cli: Cli) -> None:
    """Its jobs file, run to the end (but for the figures, which depend on the machine)."""
    (cli.root / "bin").mkdir()
    program = cli.root / "bin" / "slicer"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m slicer "$@"\n')
    program.chmod(0o755)
    printed = README.partition("    $ cat jobs.txt\n")[2].partition("\n\n")[0]
    (cli.root / "jobs.txt").write_text(
        textwrap.dedent(printed).replace("--hold", "--ramp 0.1 --hold 0.1 #") + "\n"
    )
    path = f"{cli.root}/bin:{cli.environ['PATH']}"
    out = cli.run("queue", "jobs.txt", "--sim", "2", "--backend", "plain", env={"PATH": path}).stdout
    for said in (
        "4 of 4 jobs to run; logs and status.txt in slicer_logs",
        "job 1 (base) started on GPU 0 (declared 18G): slicer simjob --vram 11G",
        "job 2 started on GPU 1 (declared 18G): slicer simjob --vram 17G",
        "job 3 ran out of GPU memory (attempt 1 of 3): again with 10G instead of 8G",
        "job 4 started: echo published",
        "4 jobs in ",
    ):
        assert said in out
    assert "4 ok" in out
