"""Servers in a configuration: what they come to, and what is said of what cannot be meant. (B6)"""

from __future__ import annotations

import pytest

from slicer.config import serve
from slicer.config.serve import Server
from slicer.errors import ConfigError, UsageError
from tests.unit.config.machine import Machine

WHOLE = """\
[serve.chat]
description = "for all"
kind = "llamacpp"
listen = ["127.0.0.1:8080", "[::1]:8080", "unix:/run/user/1000/chat.sock", "0.0.0.0:8080"]
public = true
hosts = ["gpu.example.org"]
command = ["llama-server", "-m", "m.gguf", "--port", "${PORT}"]
env = { A = "1", B = 2, C = false }
profile = "llm"
gpus = 2
vram = "12G"
models = ["coder"]
path = "/coder"
default = true
ready_path = "/ready"
ready_timeout = "10m"
idle = 30
min_hold = "1m"
max_wait = "0"
give_way = false
release_timeout = "5s"
drain = "1s"
on_offload = "fail"
load_first = false
routes_gpu = ["POST /extra"]
routes_free = ["/tokenize*"]
routes_allow = ["/slots"]
ignore_websockets = true
"""
SMALL = '[serve.s]\nkind = "ollama"\ncommand = ["ollama", "serve"]\n'


def only(machine: Machine, text: str, name: str = "s") -> Server:
    machine.system(text)
    return serve.find(machine.load(), name)


def test_every_key_of_a_server_arrives(machine: Machine) -> None:  # B6
    found = only(machine, WHOLE, "chat")
    where = f"{machine.etc}/config.toml"
    assert found == Server(
        name="chat", description="for all", kind="llamacpp",
        listen=("127.0.0.1:8080", "[::1]:8080", "unix:/run/user/1000/chat.sock", "0.0.0.0:8080"), public=True,
        hosts=("gpu.example.org",), upstream="",
        command=("llama-server", "-m", "m.gguf", "--port", "${PORT}"), env={"A": "1", "B": "2"},
        profile="llm", gpus=2, vram_mib=12 * 1024, models=("coder",), path="/coder", default=True,
        ready_path="/ready", ready_timeout_s=600.0, idle_s=30.0, min_hold_s=60.0, max_wait_s=0.0,
        give_way=False, release_timeout_s=5.0, drain_s=1.0, on_offload="fail", load_first=False,
        routes_gpu=("POST /extra",),
        routes_free=("/tokenize*",), routes_allow=("/slots",), ignore_websockets=True, sources=found.sources,
    )  # fmt: skip
    assert found.sources["kind"] == f"{where}:3"
    assert found.sources["upstream"] == "default"


def test_the_kind_decides_where_it_listens(machine: Machine) -> None:  # B6
    for kind, port in (("ollama", 11434), ("openai", 8000), ("llamacpp", 8080), ("comfyui", 8188)):
        text = f'[serve.s]\nkind = "{kind}"\nupstream = "http://127.0.0.1:9999/"\n'
        assert only(machine, text).listen == (f"127.0.0.1:{port}",)
    assert only(machine, text).upstream == "http://127.0.0.1:9999"


def test_a_users_file_changes_single_keys(machine: Machine) -> None:  # B6
    machine.write(machine.user, '[serve.s]\nidle = "1m"\n')
    found = only(machine, SMALL)
    assert (found.idle_s, found.command) == (60.0, ("ollama", "serve"))
    assert found.sources["idle"] == f"{machine.user}:2"


def test_a_server_that_is_not_there_is_said_with_those_that_are(machine: Machine) -> None:  # B6
    with pytest.raises(UsageError) as refused:
        only(machine, SMALL, "t")
    assert refused.value.hint is not None
    assert "s" in refused.value.hint
    with pytest.raises(UsageError, match="there are none"):
        only(machine, "", "t")


def test_a_name_that_no_unit_could_have_is_refused(machine: Machine) -> None:  # B6
    with pytest.raises(ConfigError, match="is not a valid server name"):
        only(machine, SMALL.replace("serve.s", 'serve."a/b"'))


def test_an_address_of_this_machine_alone_is_told_from_a_public_one() -> None:  # B6
    assert not any(map(serve.is_public, ("127.0.0.2:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/x")))
    assert all(map(serve.is_public, ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "192.168.1.2:1")))


def test_an_address_has_one_default(machine: Machine) -> None:  # B6
    table = '[serve.{}]\nkind = "raw"\nlisten = ["127.0.0.1:1"]\nupstream = "http://h:2"\ndefault = true\n'
    machine.system(table.format("a") + table.format("b"))
    with pytest.raises(ConfigError, match=r"serve\.a is the default at 127\.0\.0\.1:1 already"):
        serve.load(machine.load())
