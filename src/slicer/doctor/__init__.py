"""``slicer doctor``: what holds here of what slicer promises, what does not, and how to mend it.

``facts/`` looks at the machine, a file an area, and changes nothing. Each look runs in a process of its own
and has a deadline (``looks``), because a driver, a bus or a file system that hangs is what a doctor meets.
``checks/`` decides from the facts what to say, and is pure. ``kinds.toml`` has all that can be found.
"""
