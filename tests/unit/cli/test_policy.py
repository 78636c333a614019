"""``slicer policy check``. W30"""

from __future__ import annotations

from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]


def test_a_mistake_in_a_policy_is_told_with_its_line(cli: Cli) -> None:  # W30
    path = cli.root / "new.toml"
    path.write_text("[default]\nmax_gpu = 1\n")
    done = cli.run("policy", "check", str(path), code=1)
    assert f"{path}:2: unknown key 'max_gpu' in [default] (did you mean max_gpus?)" in done.stderr
    path.write_text("[users.nobody-of-that-name]\nmax_gpus = 1\n")
    done = cli.run("policy", "check", str(path))
    assert "there is no user 'nobody-of-that-name'" in done.stderr
    assert done.stdout == f"{path}: valid\n"
    assert "cannot be read" in cli.run("policy", "check", str(cli.root / "none"), code=1).stderr
