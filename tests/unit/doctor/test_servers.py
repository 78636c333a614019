"""Model servers that hold a GPU outside slicer: which are known, and which are reported."""

from __future__ import annotations

import pytest

from slicer.doctor.checks import gpus
from slicer.doctor.facts.gpus import GpuUser
from slicer.record import replace
from tests.unit.doctor.cases import OLLAMA, on_driver
from tests.unit.doctor.made_up import ALICE, DEVICES, DRIVER, ROOT


def user(*command: str, name: str = "python3") -> GpuUser:
    return GpuUser(0, 4711, name, 6144, False, command)


@pytest.mark.parametrize(("command", "kind"), [
    (("/usr/local/bin/ollama", "runner", "--port", "1"), "ollama"),
    (("/usr/lib/ollama/llama-server", "-m", "x"), "ollama"),
    (("llama-server", "-m", "m.gguf"), "llamacpp"),
    (("/venv/bin/python3", "/venv/bin/vllm", "serve", "x"), "openai"),
    (("python3", "-m", "vllm.entrypoints.openai.api_server"), "openai"),
    (("VLLM::EngineCore",), "openai"),
    (("python3", "-m", "sglang.launch_server"), "openai"),
    (("python3", "/srv/ComfyUI/main.py", "--listen"), "comfyui"),
])  # fmt: skip
def test_it_is_known_by_its_command(command: tuple[str, ...], kind: str) -> None:  # B6
    found = gpus.known_server(user(*command))
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize("command", [
    (),
    ("python3", "train.py", "--name", "ollama"),
    ("python3", "main.py"),
    ("myollama", "serve"),
])  # fmt: skip
def test_other_programs_are_no_servers(command: tuple[str, ...]) -> None:  # B6
    assert gpus.known_server(user(*command)) is None


def test_one_of_several_processes_is_one_finding_with_the_way_in() -> None:  # B6, X10
    both = (OLLAMA, replace(OLLAMA, pid=4712, gpu=1))
    (found,) = gpus.outside_servers(both, (), ROOT)
    assert found.what == "Ollama: pid 4711, 6.0G of GPU 0; pid 4712, 6.0G of GPU 1"
    assert found.mend == (
        "systemctl disable --now ollama.service",
        '# in config.toml: [serve.ollama], kind = "ollama", command = ["ollama", "serve"]',
        "slicer serve ollama --dry-run",
    )


def test_what_slicer_serves_already_is_not_said() -> None:  # B6
    assert gpus.outside_servers((OLLAMA,), ("ollama",), ALICE) == ()
    assert gpus.outside_servers((replace(OLLAMA, is_slicers=True),), (), ALICE) == ()
    assert gpus.gpus(DEVICES, replace(DRIVER, users=(OLLAMA,)), "", ALICE, served=("ollama",)).findings == ()


def test_it_is_no_foreign_process_besides() -> None:  # X10
    other = user("python3", "train.py")
    ids = [found.kind.id for found in on_driver(users=(OLLAMA, other))().findings]
    assert ids == ["server-outside", "foreign-process"]


def test_nobody_elses_word_is_believed() -> None:  # S9
    """Without a command: its owner is neither this user, root, nor an account of the system's."""
    ids = [found.kind.id for found in on_driver(users=(replace(OLLAMA, command=(), unit=""),))().findings]
    assert ids == ["foreign-process"]
