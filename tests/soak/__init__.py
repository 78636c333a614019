"""The soak: many jobs at once, participants killed at random, the invariant checked from outside slicer.

``python -m tests.soak`` (``make soak``) for minutes; ``tests/process/test_soak.py`` for seconds. Beside it
``python -m tests.soak.fuzz``: broken files for everything that reads some.
"""
