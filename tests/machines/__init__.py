"""Test machines: a real systemd for the tests, on machines that do not run one (or must not be touched).

`python -m tests.machines` is the command line, `tests.machines.plugin` the pytest side; README.md beside
this file tells how to use both. Nothing here is imported by slicer itself.
"""
