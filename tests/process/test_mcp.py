"""``slicer mcp``, through the protocol, by the library's own client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slicer.kernel import proc
from tests.patience import LONGEST_S, until
from tests.process.harness import Box, command_of
from tests.process.test_control import slicer

anyio = pytest.importorskip("anyio")
client = pytest.importorskip("mcp.client")
stdio = pytest.importorskip("mcp.client.stdio")

COMMAND = (sys.executable, "-P", "-m", "slicer", "mcp")
READS = ["doctor", "history", "logs", "preview", "show", "status", "wait", "why"]
ACTS = ["queue_add", "stop", "submit"]


class Agent:
    """A client with one server."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The result of a tool that succeeds."""
        done = await self.session.call_tool(tool, arguments)
        assert not done.is_error, done.content
        found: dict[str, Any] = done.structured_content
        assert json.loads(done.content[0].text) == found
        return found

    async def fails(self, tool: str, /, **arguments: Any) -> str:
        done = await self.session.call_tool(tool, arguments)
        assert done.is_error, done
        return str(done.content[0].text)

    async def ended(self, job: str) -> dict[str, Any]:
        while not (found := await self.call("wait", job=job))["has_ended"]:
            pass
        return found


@asynccontextmanager
async def agent(box: Box, *options: str) -> AsyncIterator[Agent]:
    env = {**box.env, "SLICER_SIM": "2x24G"}
    server = stdio.StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], *options], env=env, cwd=box.root
    )
    with Path(os.devnull).open("w") as null:
        async with client.Client(stdio.stdio_client(server, errlog=null)) as session:
            yield Agent(session)


def played(box: Box, play: Callable[[Agent], Awaitable[None]], *options: str) -> None:
    async def all_of_it() -> None:
        with anyio.fail_after(LONGEST_S):
            async with agent(box, *options) as found:
                await play(found)

    anyio.run(all_of_it)


def test_a_job_from_its_preview_to_its_end(box: Box) -> None:  # U9
    async def play(agent: Agent) -> None:
        tools = {each.name: each for each in (await agent.session.list_tools()).tools}
        assert sorted(tools) == sorted(READS + ACTS)
        assert [name for name in sorted(tools) if tools[name].annotations.read_only_hint] == READS
        assert [name for name in sorted(tools) if tools[name].annotations.destructive_hint] == ["stop"]
        what = {"command": ["sh", "-c", "echo one; echo two; exit 3"], "vram": "6G", "timeout": "1h"}
        assert "agent-sh" in (await agent.call("preview", **what))["text"]
        assert (await agent.call("history"))["outcomes"] == []
        job = (await agent.call("submit", **what))["job"]
        assert (await agent.ended(job))["exit_code"] == 3
        assert (await agent.call("logs", job=job, lines=1))["text"] == "two\n"
        assert (await agent.call("why", job=job))["reason"] == "exited"
        (outcome,) = (await agent.call("history", failed=True))["outcomes"]
        assert (outcome["job"], outcome["name"], outcome["vram_mib"]) == (job, "agent-sh", 6144)
        assert (await agent.call("show", job=job))["outcome"] == outcome
        assert (await agent.call("status"))["gpus"]["total"] == 2
        assert "findings" in await agent.call("doctor")

    played(box, play)


def test_why_a_job_waits_and_how_it_is_stopped(box: Box) -> None:  # U9
    async def play(agent: Agent) -> None:
        first = (await agent.call("submit", command=["sleep", "1000"], name="first", gpus=2))["job"]
        second = (await agent.call("submit", command=["true"], name="agent-second", gpus=1))["job"]
        why = await agent.call("why", job="agent-second")
        assert (why["job"], why["state"]) == (second, "waiting")
        assert "held by agent-first" in why["why"]
        assert not (await agent.call("wait", job=first, seconds=1))["has_ended"]
        (done,) = (await agent.call("stop", job=first))["jobs"]
        assert done["done"] == "stopped"
        assert (await agent.ended(second))["exit_code"] == 0

    played(box, play)


def test_what_is_wrong_is_said_in_slicers_words(box: Box) -> None:  # U9
    async def play(agent: Agent) -> None:
        for tool in ("show", "why", "logs", "wait", "stop"):
            assert "no such job: 'nosuch'" in await agent.fails(tool, job="nosuch"), tool
        assert "this machine has 2 GPUs" in await agent.fails("submit", command=["true"], gpus=3)
        assert "No such file" in await agent.fails("submit", command=["true"], directory="/nosuch")
        assert "null byte" in await agent.fails("submit", command=["a\0b"])
        assert "too long" in await agent.fails("submit", command=["a" * 200_000])
        assert "argument list" in await agent.fails("submit", command=[])
        # Nothing that an agent says becomes an option.
        for word in ("--mine", "-h", "--help"):
            assert "no such job" in await agent.fails("stop", job=word), word
            assert "no such job" in await agent.fails("show", job=word), word
        assert "--vram" in await agent.fails("submit", command=["true"], vram="--exec")

    played(box, play)


def test_the_bounds(box: Box, tmp_path: Path) -> None:  # U9
    """Other jobs are not ended, no file but a queue's is written to, and an agent cannot fill the queue."""

    async def play(agent: Agent) -> None:
        assert "is no job of an agent" in await agent.fails("stop", job="mine")
        file = tmp_path / "notes.txt"
        file.write_text("mine\n")
        assert "not the jobs file" in await agent.fails("queue_add", file=str(file), command="true")
        assert file.read_text() == "mine\n"
        assert "time limit" in await agent.fails("submit", command=["true"])
        many, said = {"command": ["sleep", "1000"], "timeout": "1h", "gpus": 1}, []

        async def submit() -> None:
            done = await agent.session.call_tool("submit", many)
            said.append(done.content[0].text if done.is_error else "")

        async with anyio.create_task_group() as tasks:
            for _ in range(9):
                tasks.start_soon(submit)
        assert said.count("") == 3
        assert all("3 jobs of agents run or wait already" in each for each in said if each)
        for job in [*(await agent.call("status"))["waiting"], *(await agent.call("status"))["jobs"]]:
            if job["name"] != "mine":
                await agent.call("stop", job=job["job"])

    mine = box.start("--name", "mine", "--", "sleep", "1000", env={"SLICER_SIM": "2x24G"})
    until(lambda: "mine" in slicer(box, "status", SLICER_SIM="2x24G"), "it runs")
    played(box, play, "--max-jobs", "3", "--require-timeout")
    mine.send_signal(signal.SIGTERM)
    mine.communicate()


def test_another_users_jobs_are_no_agents_here(monkeypatch: pytest.MonkeyPatch) -> None:  # U9, U15
    mcp_tools = pytest.importorskip("slicer.cli.mcp_tools")
    theirs = [{"name": f"agent-{n}", "uid": os.geteuid() + 1} for n in range(9)]
    ours = [{"name": "agent-x", "uid": os.geteuid()}]

    async def room(most: int) -> None:
        async def document(*_: str) -> dict[str, Any]:
            return {"jobs": theirs, "waiting": ours, "later": [{"name": "agent-y"}]}

        monkeypatch.setattr(mcp_tools, "_document", document)
        await mcp_tools.Acts(max_jobs=most, require_timeout=False)._check_room()

    anyio.run(room, 3)
    with pytest.raises(mcp_tools.ToolError, match="2 jobs of agents"):
        anyio.run(room, 2)


def test_read_only(box: Box) -> None:  # U9
    async def play(agent: Agent) -> None:
        assert sorted(each.name for each in (await agent.session.list_tools()).tools) == READS
        for tool in ACTS:
            assert "Unknown tool" in await agent.fails(tool, job="x", command=["true"])
        assert "free now" in (await agent.call("preview", command=["true"], gpus=1))["text"]
        assert (await agent.call("history"))["outcomes"] == []

    played(box, play, "--read-only")


def texts(value: Any) -> list[str]:
    """All texts in a JSON value."""
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in texts(each)]
    return [text for each in value for text in texts(each)] if isinstance(value, list) else [str(value)]


def test_names_and_output_are_data(box: Box) -> None:  # U9
    """No control character reaches the agent, and nothing is longer than its bound."""
    escapes = "\x1b[2J\x1b]0;x\x07\u202e\x9b"
    script = "import sys; sys.stdout.buffer.write(b'\\x1b[31m\\xff\\0' + b'x' * 100_000 + b'\\nend\\n')"
    box.run("--name", escapes, "--", "echo", "y" * 100_000, env={"SLICER_SIM": "2x24G"})

    async def play(agent: Agent) -> None:
        job = (await agent.call("submit", command=[sys.executable, "-c", script], name=escapes * 2000))["job"]
        await agent.ended(job)
        logs = await agent.call("logs", job=job)
        assert logs["text"].endswith("x\nend\n")
        assert logs["is_cut"]
        shown = "".join(texts([logs, await agent.call("history"), await agent.call("show", job=job)]))
        assert not [c for c in shown if not c.isprintable() and c != "\n"]
        assert len(shown) < 20_000

    played(box, play)


def test_two_servers_at_once(box: Box) -> None:  # U9
    async def both() -> None:
        with anyio.fail_after(LONGEST_S):
            async with agent(box) as one, agent(box, "--read-only") as other:
                job = (await one.call("submit", command=["true"], gpus=1))["job"]
                assert (await other.ended(job))["exit_code"] == 0

    anyio.run(both)


def _initialized(process: subprocess.Popen[bytes]) -> None:
    said = {
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "raw", "version": "1"},
        },
    }  # fmt: skip
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(said).encode() + b"\n")
    process.stdin.flush()
    assert b'"serverInfo"' in process.stdout.readline()
    process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    process.stdin.flush()


# U9
@pytest.mark.parametrize("closes", ["stdin", "both"])
def test_a_client_that_is_killed_while_it_waits_leaves_nothing(box: Box, closes: str) -> None:
    """An old client, too, which speaks an earlier version of the protocol."""
    job = box.start("--name", "long", "--", "sleep", "1000")
    until(lambda: "long" in slicer(box, "status"), "it runs")
    server = subprocess.Popen(COMMAND, env=box.env, stdin=-1, stdout=-1, stderr=-1, cwd=box.root)
    box.adopt(server)
    _initialized(server)
    assert server.stdin
    call = {"name": "wait", "arguments": {"job": "long", "seconds": 50}}
    line = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    server.stdin.write(json.dumps(line).encode() + b"\n")
    server.stdin.flush()

    def waits() -> bool:
        return any("wait --json" in command_of(pid) for pid in proc.children(server.pid))

    until(waits, "slicer wait runs")
    (child,) = proc.children(server.pid)
    server.stdin.close()
    if closes == "both":
        assert server.stdout
        server.stdout.close()
    until(lambda: server.poll() is not None, "the server ends")
    until(lambda: not os.path.exists(f"/proc/{child}"), "slicer wait ends")
    job.send_signal(signal.SIGTERM)
    job.communicate()


def test_a_client_that_no_longer_reads(box: Box) -> None:  # U9
    server = subprocess.Popen(COMMAND, env=box.env, stdin=-1, stdout=-1, stderr=-1, cwd=box.root)
    box.adopt(server)
    _initialized(server)
    assert server.stdout
    server.stdout.close()
    line = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "status", "arguments": {}}}
    _, said = server.communicate(json.dumps(line).encode() + b"\n", timeout=LONGEST_S)
    assert said == b""
    assert server.returncode in (0, 141)  # as of SIGPIPE, if the answer came before the end of stdin


def test_without_the_library_the_hint_is_the_usual_one(box: Box) -> None:  # U9
    hidden = "import sys; sys.modules['mcp'] = None; from slicer.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "mcp"], env=box.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 125
    assert "slicer mcp needs mcp 2.3 or later" in done.stderr
    assert "pip install 'mcp>=2.3,<3' in slicer's environment" in done.stderr


def test_the_skill_names_the_tools_that_there_are(box: Box) -> None:  # U9
    text = slicer(box, "client", "--skill")
    assert text.startswith("---\nname: slicer\n")
    assert not [name for name in READS + ACTS if f"`{name}`" not in text]
