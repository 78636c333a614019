"""slicer on a real systemd, as tests drive it: start jobs, wait for what they do, see that nothing is left.

A test module says ``pytest_plugins = ["tests.systemd.helpers.fixtures"]`` and takes the fixture ``slicer``.
"""
