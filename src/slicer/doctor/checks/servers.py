"""Model servers that hold a GPU outside of slicer, and how each is brought in. Pure."""

from __future__ import annotations

from slicer.doctor.facts.gpus import GpuUser
from slicer.doctor.kinds import finding
from slicer.doctor.model import Finding, Who
from slicer.quantity import format_mib
from slicer.record import record
from slicer.text import quote


@record
class Known:
    """A server that slicer can stand in front of: what people call it, and its kind and command there."""

    what: str
    kind: str
    command: tuple[str, ...]


_OLLAMA = Known("Ollama", "ollama", ("ollama", "serve"))
_LLAMACPP = Known("llama.cpp", "llamacpp", ("llama-server", "-m", "MODEL.gguf", "--port", "${PORT}"))
_VLLM = Known("vLLM", "openai", ("vllm", "serve", "MODEL", "--port", "${PORT}"))
_SGLANG = Known("SGLang", "openai", ("sglang", "serve", "--model-path", "MODEL", "--port", "${PORT}"))
_TGI = Known("TGI", "openai", ("text-generation-launcher", "--model-id", "MODEL", "--port", "${PORT}"))
_COMFYUI = Known("ComfyUI", "comfyui", ("python3", "ComfyUI/main.py", "--port", "${PORT}"))

# By what the words of its command end in or begin with. The first that fits: Ollama starts a llama-server.
_ENDS = (
    ("ollama", _OLLAMA), ("ollama_llama_server", _OLLAMA), ("llama-server", _LLAMACPP), ("vllm", _VLLM),
    ("vllm.entrypoints.openai.api_server", _VLLM), ("sglang.launch_server", _SGLANG), ("sglang", _SGLANG),
    ("text-generation-launcher", _TGI), ("text-generation-server", _TGI), ("ComfyUI/main.py", _COMFYUI),
)  # fmt: skip
_BEGINNINGS = (("VLLM::", _VLLM), ("sglang::", _SGLANG))
_WORDS = 3  # of a command, in which its program or its script stands


def known(user: GpuUser) -> Known | None:
    """Which server a process on a GPU is; None: none that is known, or its word is not believed."""
    if not user.command:
        return None
    if user.unit == "ollama.service" or "/ollama/" in user.command[0]:
        return _OLLAMA
    for word in user.command[:_WORDS]:
        for end, server in _ENDS:
            if word == end or word.endswith(f"/{end}"):
                return server
    beginning = user.command[0]
    return next((server for start, server in _BEGINNINGS if beginning.startswith(start)), None)


def outside(users: tuple[GpuUser, ...], served: tuple[str, ...], who: Who) -> tuple[Finding, ...]:
    """A finding for each such server. ``served``: the kinds that `slicer serve` has in hand as they run."""
    found: dict[str, tuple[Known, list[GpuUser]]] = {}
    for user in users:
        server = None if user.is_slicers else known(user)
        if server is not None and server.kind not in served:
            found.setdefault(server.what, (server, []))[1].append(user)
    return tuple(_finding(server, processes, who) for server, processes in found.values())


def _finding(server: Known, users: list[GpuUser], who: Who) -> Finding:
    shown = "; ".join(f"pid {each.pid}, {format_mib(each.used_mib)} of GPU {each.gpu}" for each in users)
    name = server.what.lower().replace(".", "")
    words = ", ".join(f'"{word}"' for word in server.command)
    what = f"{server.what}: {shown}"
    if who.is_nixos:
        setting = f"programs.slicer.settings.serve.{name}"
        return finding("server-outside", what, f"# in the configuration: {setting}, in place of its own unit")
    stops = [who.root(f"systemctl disable --now {quote(unit)}") for unit in _units(users)]
    return finding(
        "server-outside", what, *stops,
        f'# in config.toml: [serve.{name}], kind = "{server.kind}", command = [{words}]',
        f"slicer serve {name} --check",
    )  # fmt: skip


def _units(users: list[GpuUser]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.unit for each in users if each.unit))
