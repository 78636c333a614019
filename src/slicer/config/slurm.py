"""``[engine.slurm]``: how the jobs of ``slicer queue --engine slurm`` ask Slurm for what they need."""

from __future__ import annotations

from slicer.config import values
from slicer.config.build import Said, kinds
from slicer.config.route_values import texts
from slicer.errors import ConfigError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.build import Row
    from slicer.config.route_values import AnyConfig
    from slicer.config.values import Entry


@record
class SlurmSettings:
    """The settings for the jobs of one profile. "" and (): not given, so Slurm's own default applies."""

    partition: str
    qos: str
    constraint: str
    arguments: tuple[str, ...]  # further ones for sbatch
    gib_per_shard: float | None  # None: there are no shards, so vram= takes a whole GPU
    slicer: str  # the command on the nodes


# Each of these words would contradict what slicer says itself.
_OURS = (
    "-a", "--array", "-J", "--job-name", "--comment", "-o", "--output", "-e", "--error", "-i", "--input",
    "-D", "--chdir", "--wrap", "--requeue", "--no-requeue", "--parsable", "-W", "--wait", "-d",
    "--dependency", "-N", "--nodes", "-n", "--ntasks", "-t", "--time", "--gres", "-G", "--gpus", "-p",
    "--partition", "-q", "--qos", "-C", "--constraint",
)  # fmt: skip


def settings(config: AnyConfig, profile: str) -> SlurmSettings:
    """The settings for the jobs of this profile. Raises ConfigError."""
    said = Said({})
    for layer in config.layers:
        engine = layer.data.get("engine", {}).get("slurm", {})
        said.entries |= layer.entries("engine", "slurm")
        if profile in engine.get("profiles", {}):
            said.entries |= layer.entries("engine", "slurm", "profiles", profile)
    return SlurmSettings(**said.read(_ROWS, readers={"word": _word, "arguments": _arguments}))


def check(config: AnyConfig) -> None:
    """Raise ConfigError for a bad value, and for settings of a profile that does not exist."""
    settings(config, "")
    for layer in config.layers:
        for name in layer.data.get("engine", {}).get("slurm", {}).get("profiles", {}):
            if name not in config.names():
                entry = (name, layer.where("engine", "slurm", "profiles", name), ConfigError)
                raise values.refuse(entry, "engine.slurm.profiles", f"there is no profile {name!r:.60}")
            settings(config, name)


def _word(entry: Entry, key: str) -> str:
    found = values.text(entry, key)
    if found.startswith("-") or not found.isprintable() or " " in found:
        raise values.refuse(entry, key, f"{found!r:.60} is not a name")
    return found


def _arguments(entry: Entry, key: str) -> tuple[str, ...]:
    found = texts(entry, key)
    for word in found:
        option = word.partition("=")[0] if word.startswith("--") else word[:2]
        if not word.startswith("-") or word.strip("-") == "":
            hint = 'write option and value in one word: "--account=lab"'
            raise values.refuse(entry, key, f"{word!r:.60} is not an option", hint)
        if option in _OURS:
            message = f"{option} is slicer's to say"
            raise values.refuse(entry, key, message, "by a key of [engine.slurm], or in the jobs file")
    return found


_ROWS: dict[str, Row] = {
    "partition": ("word", ""),
    "qos": ("word", ""),
    "constraint": ("word", ""),
    "arguments": ("arguments", ()),
    "gib_per_shard": ("factor", None),
    "slicer": ("text", "slicer"),
}
KEYS = kinds(_ROWS)
PROFILE_KEYS = {key: KEYS[key] for key in ("partition", "qos", "constraint", "arguments")}
