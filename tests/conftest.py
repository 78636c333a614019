"""Activates the plugin that runs marked tests inside test machines (see tests/machines/README.md)."""

import signal

import pytest
from hypothesis import settings

from tests.shield import raise_shield

# What nohup(1) and a shell's "&" have ignored would be ignored by all that tests start, too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

raise_shield()

# No promise is about an example's time, and a busy host takes long.
settings.register_profile("any-host", deadline=None)
settings.load_profile("any-host")

# Assertions in the harness show their values, too.
HARNESS = (
    "process", "soak", "systemd", "unit", "broker_box", "broker_client", "browser", "media", "patience",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"tests.{name}" for name in HARNESS))

pytest_plugins = ["tests.machines.plugin", "tests.built", "tests.browser"]
