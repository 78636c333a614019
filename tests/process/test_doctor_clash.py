"""The cure for shap's ``slicer`` in slicer's own environment, pasted: shap's is whole again (X10, W31)."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from slicer.doctor.checks.environment import environment
from slicer.record import replace
from tests.patience import DEADLINE_S
from tests.unit.doctor.made_up import ALICE, ENVIRONMENT


def wheel(folder: Path, name: str, version: str, *modules: str) -> Path:
    """A wheel whose package ``slicer`` says in ``WHOSE`` whose it is."""
    folder.mkdir(exist_ok=True)
    about = f"{name.replace('-', '_')}-{version}.dist-info"
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    files = {f"slicer/{module}.py": f"WHOSE = {name!r}\n" for module in ("__init__", *modules)}
    files[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = f"{about}/RECORD"
    files[record] = "".join(f"{each},,\n" for each in (*files, record))
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in files.items():
            archive.writestr(each, text)
    return path


def test_the_cure_for_the_clash_leaves_the_other_library_whole(tmp_path: Path) -> None:  # X10, W31
    prefix = tmp_path / "an env"
    python, index = prefix / "bin" / "python", tmp_path / "index"
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}

    def run(*line: object) -> str:
        words = [str(word) for word in line]
        limit_s = 4 * DEADLINE_S
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=limit_s, check=False)
        assert done.returncode == 0, done
        return done.stdout

    run(sys.executable, "-m", "venv", prefix)
    theirs = wheel(index, "slicer", "0.0.8", "interpretapi")
    run(python, "-m", "pip", "install", theirs, wheel(index, "slicer-systemd", "0.1", "api"))
    facts = replace(ENVIRONMENT, clashing="slicer 0.0.8", prefix=str(prefix))
    (found,) = [each for each in environment(facts, ALICE).findings if each.kind.id == "package-overwritten"]
    out, back, *_ = found.mend
    run("sh", "-c", out)
    run("sh", "-c", back)
    assert run(python, "-c", "import slicer.interpretapi; print(slicer.WHOSE)") == "slicer\n"
    assert "systemd" not in run(python, "-m", "pip", "list")
