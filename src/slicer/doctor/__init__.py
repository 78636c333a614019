"""``slicer doctor``: which of slicer's promises hold on this machine, which do not, and how to fix that.

``facts/`` examines the machine, one file an area, and changes nothing. Each look runs in its own process with
a deadline (``looks``), because a driver, a bus or a file system may hang. ``checks/`` decides from the facts
what to report, and is pure. ``kinds.toml`` has all possible findings.
"""
