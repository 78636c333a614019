"""A box for ``slicer route``: a configuration, a simulated GPU, and jobs that say where they are."""

from __future__ import annotations

import json
import shlex
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slicer.outcome import decisions
from slicer.outcome.decisions import DecisionRow
from tests.patience import until
from tests.process.harness import SLICER, Box, Gate

# Small files to the GPU, one job at a time each way.
WHISPER = """\
[routes.whisper]
probe = "size"
threshold = "1K"
{lines}
[routes.whisper.gpu]
args = ["--device", "cuda"]
vram = "2G"
{gpu}
[routes.whisper.cpu]
args = ["--device", "cpu"]
profile = "light"
{cpu}
"""

# "job NAME INPUT …": writes down that it ran and where; then what the test wants of it.
_JOB = """\
#!/bin/sh
where=cpu; [ -z "$CUDA_VISIBLE_DEVICES" ] || where=gpu
echo "start $1 $$ $where" >>"$LOG"
[ ! -p "$GATE" ] || read x <"$GATE"
eval "$DO"
echo "end $1 $$ $where" >>"$LOG"
"""

# What a program says whose GPU is full, before it fails.
OOM = 'if [ $where = gpu ]; then echo "torch.OutOfMemoryError: CUDA out of memory." >&2; exit 3; fi'


class RouteBox(Box):
    """Everything that ``slicer route`` touches, below one directory. The route is called "whisper"."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, slots=2)
        self._config = root / "config.toml"
        self.env |= {"SLICER_CONFIG": str(self._config), "SLICER_SIM": "1x24G"}
        self.state /= "sim-1x24G"
        self.configure()
        self.job = root / "bin" / "job"
        self.job.write_text(_JOB)
        self.job.chmod(0o755)
        args = root / "bin" / "args"
        args.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        args.chmod(0o755)
        (root / "small").write_bytes(b"x" * 100)
        (root / "large").write_bytes(b"x" * 5000)

    def configure(self, lines: str = "", *, gpu: str = "", cpu: str = "") -> None:
        """Write the configuration: the route's own lines, and those of its destinations."""
        self._config.write_text(WHISPER.format(lines=textwrap.dedent(lines), gpu=gpu, cpu=cpu))

    def command(self, *arguments: str | bytes, backend: str = "plain") -> list[str | bytes]:
        """The command line of ``slicer route --backend plain ARGUMENTS``."""
        return [*self.prefix, *SLICER, "route", "--backend", backend, *arguments]

    def shell_line(self, *arguments: str) -> str:
        """The same, as it is typed."""
        return shlex.join([str(word) for word in self.command(*arguments)])

    def route(
        self, *arguments: str, do: str = "", name: str = "a", input: str = "small", **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run ``slicer route whisper ARGUMENTS -- job NAME INPUT`` to its end. ``do``: shell for the job."""
        env = {"DO": do, **options.pop("env", {})}
        return self.run("whisper", *arguments, "--", "job", name, input, env=env, **options)

    def hold_way(
        self, gate: Gate, input: str = "small", *arguments: str, name: str = "holder",
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """A job that runs until its gate opens; returned once its command runs."""
        words = ("whisper", "--name", name, *arguments, "--", "job", name, input)
        process = self.start(*words, env={"GATE": str(gate.path), "DO": "", **(env or {})})
        until(lambda: self.started(name) or process.poll() is not None, f"{name} runs")
        return process

    def ways(self) -> list[str]:
        """Who started, and where: ``a gpu``, in their order."""
        found = [line.split() for line in self.lines()]
        return [f"{words[1]} {words[3]}" for words in found if words[0] == "start"]

    def decisions(self) -> list[DecisionRow]:
        """What the history keeps, the oldest first."""
        return [past.row for past in decisions.read(self.history)]

    def results(self) -> list[str]:
        """``started gpu``, in the order of the decisions."""
        return [f"{row.result} {row.destination}".strip() for row in self.decisions()]


def json_lines(err: str) -> list[dict[str, Any]]:
    """The lines of JSON in what was said on stderr."""
    return [json.loads(line) for line in err.splitlines() if line.startswith("{")]
