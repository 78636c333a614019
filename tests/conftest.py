"""Activates the plugin that runs marked tests inside test machines (see tests/machines/README.md)."""

pytest_plugins = ["tests.machines.plugin"]
