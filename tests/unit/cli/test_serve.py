"""`slicer serve --check`: what each server would do, and what prevents it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.cli import serve_look
from slicer.cli.serve import lines, problems_of, warnings_of
from slicer.cli.serve_look import Address, ServerCheck
from slicer.kernel import listeners
from slicer.record import replace
from tests.patience import LONGEST_S
from tests.unit import made_up
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

OLLAMA = made_up.server("ollama", command=("ollama", "serve"))
RUNS = made_up.server("runs", listen=("127.0.0.1:8000",), upstream="http://127.0.0.1:8001")
WELL = ServerCheck(
    server=OLLAMA, beside=(), addresses=(Address("127.0.0.1:11434"),), aiohttp="", command="",
    lease="1 GPU: free now", gpus=1, profile="", upstream="", proxy_pid=0,
)  # fmt: skip


@pytest.fixture
def port() -> Iterator[int]:
    """A port where somebody listens: this process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def configure(cli: Cli, text: str) -> None:
    path = cli.root / "slicer.toml"
    path.write_text(text)
    cli.environ |= {"SLICER_CONFIG": str(path), "SLICER_SIM": "2x24G"}
    program = cli.root / "bin/ollama"
    program.parent.mkdir(exist_ok=True)
    program.touch(0o755)
    cli.environ["PATH"] = f"{program.parent}:{cli.environ['PATH']}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found: int = listening.getsockname()[1]
        return found


def check(cli: Cli, *names: str, code: int | None = 0) -> str:
    """What it says, without what the machine lacks."""
    return cli.run("serve", "--dry-run", *names, code=code).stdout


def test_where_nothing_is_wrong_it_says_what_it_would_do_and_why(cli: Cli) -> None:  # B6
    pytest.importorskip("aiohttp")
    configure(cli, f"""\
[profiles.llm]
inherits = "gpu"
vram = "10G"

[serve.ollama]
kind = "ollama"
listen = ["127.0.0.1:{free_port()}"]
command = ["ollama", "serve"]
profile = "llm"
idle = "30s"
""")  # fmt: skip
    out = check(cli)
    where = f"({cli.root}/slicer.toml:"
    assert out.startswith("ollama: ready to serve\n")
    assert f"kind           ollama {where}6)" in out
    assert f"starts         ollama serve {where}8)" in out
    assert "10.0G on 1 GPU: free now (GPU 0 Simulated GPU (24 GiB)); profile llm" in out
    assert f"gives back     30s after the last request {where}10)" in out
    assert "at once if it is idle and others wait for a GPU (default)" in out
    assert not cli.state.exists()  # nothing was taken


def test_it_starts_and_takes_nothing_while_it_looks(cli: Cli, port: int) -> None:  # B6
    configure(cli, f'[serve.o]\nkind = "ollama"\ncommand = ["sh", "-c", "touch {cli.root}/ran"]\n')
    check(cli, code=None)
    assert not (cli.root / "ran").exists()
    assert not cli.state.exists()


def test_each_thing_that_is_wrong_is_said_and_fails(cli: Cli, port: int) -> None:  # B6
    configure(cli, f"""\
[serve.taken]
kind = "ollama"
listen = ["127.0.0.1:{port}"]
command = ["ollama", "serve"]

[serve.absent]
kind = "raw"
listen = ["unix:{cli.root}/none/x.sock"]
command = ["no-such-server", "${{PORT}}"]

[serve.without]
kind = "openai"
listen = ["127.0.0.1:{free_port()}"]
upstream = "http://127.0.0.1:1"
profile = "light"
""")  # fmt: skip
    out = check(cli, code=1)
    assert f"127.0.0.1:{port} is in use by pid {os.getpid()} (" in out
    assert "problem: command: no-such-server: command not found" in out
    assert f"problem: unix:{cli.root}/none/x.sock: {cli.root}/none does not exist" in out
    assert "problem: profile light requests no GPU" in out
    assert "warning: no server answers at http://127.0.0.1:1 now (Connection refused)" in out


def test_without_aiohttp_it_says_what_to_install(cli: Cli) -> None:  # B6
    configure(cli, '[serve.o]\nkind = "ollama"\ncommand = ["ollama", "serve"]\n')
    absent = cli.root / "absent"
    absent.mkdir()
    (absent / "sitecustomize.py").write_text(
        "from importlib import metadata\n"
        "def version(name):\n    raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = version\n"
    )
    cli.environ["PYTHONPATH"] += f":{absent}"
    assert "problem: slicer serve needs aiohttp 3.9 or later (it is not installed)" in check(cli, code=1)
    said = cli.run("serve", "o", code=125).stderr
    assert "pip install aiohttp in slicer's environment" in said
    assert said.count("\n") == 1
    assert "slicer web needs aiohttp" in cli.run("web", code=125).stderr


def test_a_server_that_there_is_not_is_said_with_those_there_are(cli: Cli) -> None:  # B6
    configure(cli, '[serve.ollama]\nkind = "ollama"\ncommand = ["ollama", "serve"]\n')
    said = cli.run("serve", "olama", code=2).stderr
    assert "'olama'" in said
    assert "ollama" in said
    configure(cli, "")
    assert "no server is configured" in cli.run("serve", code=2).stderr
    assert check(cli).startswith("No server is configured: ")


def test_status_and_check_bring_in_neither_asyncio_nor_aiohttp(cli: Cli) -> None:  # X1
    configure(cli, '[serve.ollama]\nkind = "ollama"\ncommand = ["ollama", "serve"]\n')
    code = (
        "import sys\nfrom slicer.cli.app import main\nmain(sys.argv[1:])\n"
        "print(*(name for name in ('asyncio', 'aiohttp') if name in sys.modules), file=sys.stderr)\n"
    )
    for words in (("status",), ("serve", "--dry-run")):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env=cli.environ, capture_output=True, text=True,
            timeout=LONGEST_S, check=False,
        )  # fmt: skip
        assert done.stderr.splitlines()[-1] == "", words


# -- what is judged -----------------------------------------------------------------------------------------


def test_what_is_well_has_no_problem_and_no_warning() -> None:  # B6
    assert (problems_of(WELL), warnings_of(WELL)) == ([], [])


def test_of_a_public_address_it_warns_even_if_it_is_meant() -> None:  # S9
    listen = ("0.0.0.0:11434",)
    meant = replace(WELL, server=replace(OLLAMA, listen=listen, public=True), addresses=(Address(*listen),))
    assert problems_of(meant) == []
    assert "0.0.0.0:11434: everybody who can reach it" in warnings_of(meant)[0]
    assert "slicer asks for no password" in warnings_of(meant)[0]


def test_who_has_the_address_decides_what_helps() -> None:  # B6
    def told(server: object, name: str) -> str:
        address = Address("127.0.0.1:11434", "Address already in use", 812, name)
        (problem,) = problems_of(replace(WELL, server=server, addresses=(address,)))
        return problem

    assert told(OLLAMA, "ollama").endswith("which slicer would start itself: stop and disable it")
    assert "move that server to the address in upstream" in told(RUNS, "ollama")
    assert told(OLLAMA, "nginx").endswith("stop it, or choose another address with listen")
    unseen = replace(WELL, addresses=(Address("127.0.0.1:11434", "Address already in use"),))
    assert problems_of(unseen) == ["127.0.0.1:11434: Address already in use"]


def test_its_own_proxy_is_no_obstacle() -> None:  # B6
    address = Address("127.0.0.1:11434", "Address already in use", 812, "slicer")
    seen = replace(WELL, addresses=(address,), proxy_pid=812)
    assert problems_of(seen) == []
    assert "pid 812 already serves it" in warnings_of(seen)[0]


def test_its_own_socket_is_no_obstacle() -> None:  # B6
    for pid, name in ((0, ""), (1, "systemd")):
        address = Address("127.0.0.1:11434", "Address already in use", pid, name)
        seen = replace(WELL, addresses=(address,), socket="slicer-serve-ollama.socket")
        assert problems_of(seen) == []
        assert any("through slicer-serve-ollama.socket" in line.text for line in lines(seen))
    other = replace(WELL, socket="slicer-serve-ollama.socket", addresses=(replace(address, name="nginx"),))
    assert "is in use by pid 1 (nginx)" in problems_of(other)[0]


def test_an_installed_socket_is_found(cli: Cli) -> None:  # B6
    configure(cli, '[serve.ollama]\nkind = "ollama"\ncommand = ["ollama", "serve"]\n')
    units = cli.root / ".local/share/systemd/user"
    units.mkdir(parents=True)
    (units / "slicer-serve-ollama.socket").touch()
    assert "through slicer-serve-ollama.socket; the first request starts it" in check(cli, code=None)


def test_servers_at_one_address_have_to_differ() -> None:  # B6
    other = made_up.server("other", command=("x",))
    (warning,) = warnings_of(replace(WELL, beside=(other,)))
    assert "no request is for it, because other has the same address" in warning
    for own in (replace(OLLAMA, models=("m",)), replace(OLLAMA, path="/x"), replace(OLLAMA, default=True)):
        assert warnings_of(replace(WELL, server=own, beside=(other,))) == []
    assert serve_look.beside(OLLAMA, (OLLAMA, other, RUNS)) == (other,)


def test_what_the_configuration_refuses_is_not_looked_at(cli: Cli) -> None:  # B6, S9
    for text, said in (
        ('listen = ["0.0.0.0:1"]\ncommand = ["ollama"]', "can be reached from other machines"),
        ('upstream = "http://127.0.0.1:11434/"', "is where slicer itself listens"),
        ("", "has neither a command nor an upstream"),
    ):
        configure(cli, f'[serve.s]\nkind = "ollama"\n{text}\n')
        assert said in cli.run("serve", "--dry-run", code=125).stderr


def test_a_socket_that_was_left_behind_is_no_obstacle(tmp_path: Path) -> None:  # B6
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        bound.listen()
        assert serve_look._unix_address(f"unix:{path}").error
    assert serve_look._unix_address(f"unix:{path}").error == ""
    path.unlink()
    path.touch()
    assert "is not a socket" in serve_look._unix_address(f"unix:{path}").error
    assert "longer than 107" in serve_look._unix_address(f"unix:/{'x' * 108}").error


def test_it_finds_who_listens(port: int) -> None:  # B6
    assert listeners.pid("127.0.0.1", port) == os.getpid()
    assert listeners.pid("127.0.0.1", free_port()) == 0
