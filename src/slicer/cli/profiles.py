"""``slicer profiles``: lists the profiles, shows every value of one, and writes a file to start from."""

from __future__ import annotations

import contextlib
import os

import click

from slicer.cli import common, complete, output
from slicer.columns import Line
from slicer.config import files, profile_report, profiles
from slicer.config.profile_report import Setting, Summary
from slicer.errors import SlicerError
from slicer.text import visible


class FileExists(SlicerError):
    """The configuration file already exists, and there is no --force."""

    kind = "file-exists"


@click.group(
    "profiles",
    invoke_without_command=True,
    epilog="""\
\b
Examples:
  slicer profiles                    all profiles, and the settings
  slicer profiles show heavy         every value of heavy, and its source
  slicer profiles init --user        write a file of your own to start from

\b
Files are read in this order; later ones override single keys:
  /etc/slicer/config.toml, /etc/slicer/conf.d/*.toml,
  ~/.config/slicer/config.toml, $SLICER_CONFIG""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the profiles for `slicer run --profile`."""
    if ctx.invoked_subcommand is not None:
        ctx.default_map = {ctx.invoked_subcommand: {"as_json": as_json}}  # slicer profiles --json show NAME
        return
    found = common.config()
    rows = profile_report.summaries(found)
    general = profile_report.general_settings(found)
    if as_json:
        output.show_json({"profiles": rows, "settings": general})
        return
    cells = [
        (
            f"{row.name} *" if row.is_default else row.name, row.slice, str(row.gpus), _slots(row),
            ", ".join(row.inherits) or "-", row.description or "-",
        )
        for row in rows
    ]  # fmt: skip
    lines = output.table("PROFILE<20 | SLICE | GPUS> | SLOTS> | INHERITS<20 | DESCRIPTION", cells)
    output.show([*lines, Line(""), Line("* the default"), Line(""), *_settings(general)])


@command.command(
    "show",
    short_help="Show every value of a profile and where it comes from.",
    epilog="""\
\b
Examples:
  slicer profiles show               the default profile
  slicer profiles show heavy         the profile heavy
  slicer profiles show gpu --json    for scripts""",
)
@click.argument("name", required=False, shell_complete=complete.profiles)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(name: str | None, as_json: bool) -> None:
    """Show every value of a profile and where it comes from. Without NAME: the default profile."""
    found = common.config()
    settings = profile_report.settings(found, name)
    shown = name or found.default_profile
    if as_json:
        output.show_json({"profile": shown, "settings": settings})
    else:
        about = {setting.name: setting.value for setting in settings}["description"]
        rest = tuple(setting for setting in settings if setting.name != "description")
        heading = Line(f"{shown}: {about}" if about else shown)
        output.show([heading, Line(""), *_settings(rest)])


def _slots(row: Summary) -> str:
    """Text such as "1", which is a CPU slot, or "1, license-matlab"."""
    others = [name if count == 1 else f"{name} {count}" for name, count in sorted(row.slots.items())]
    return ", ".join([str(row.cpu_slots)] * (row.cpu_slots > 0 or not others) + others)


def _settings(settings: tuple[Setting, ...]) -> list[Line]:
    rows = [(setting.name, setting.value or '""', setting.source) for setting in settings]
    return output.table("SETTING | VALUE<40 | FROM", rows)


@command.command(
    "init",
    short_help="Write a configuration file to start from.",
    epilog="""\
\b
Examples:
  slicer profiles init --user           ~/.config/slicer/config.toml
  sudo slicer profiles init             /etc/slicer/config.toml, for everybody
  slicer profiles init --user --force   the old one becomes config.toml~""",
)
@click.option(
    "--system", "where", flag_value="system", help="Write /etc/slicer/config.toml (root's default)."
)
@click.option("--user", "where", flag_value="user", help="Write your own file (other users' default).")
@click.option("--force", is_flag=True, help="Replace an existing file, which is kept as FILE~.")
def init(where: str | None, force: bool) -> None:
    """Write a configuration file with every built-in value as a comment."""
    is_system = where == "system" or (where is None and os.geteuid() == 0)
    path = f"{files.SYSTEM_DIR}/config.toml" if is_system else files.user_file(os.environ)
    if not path:
        raise SlicerError("you have no home directory", hint="set HOME or XDG_CONFIG_HOME")
    text = profile_report.default_config_text(profiles.host())
    with common.failing("cannot be written", path, hint="--user writes your own" if is_system else ""):
        kept = _write(path, text, force=force)
    print(visible(f"wrote {path}" + (f" (the old one is now {kept})" if kept else "")))


def _write(path: str, text: str, *, force: bool) -> str:
    """Write a new file. Returns the name under which the old one is kept; "" if there was none."""
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    exists = os.path.lexists(path)
    if exists and not force:
        hint = "--force replaces it and keeps it as a backup"
        raise FileExists("the configuration file already exists", where=path, hint=hint)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
        if exists:
            os.replace(path, f"{path}~")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return f"{path}~" if exists else ""
