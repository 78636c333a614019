"""``slicer queue``: the jobs of a file, each started as soon as the ledger has room for it.

:mod:`slicer.queue.loop` is its main loop. ``file`` reads the jobs file. ``state`` keeps the states of the
jobs. ``start`` decides which jobs start, and starts them. ``run`` supervises running jobs, ``judge`` decides
what the end of an attempt means, ``show`` formats all of it as text, and ``control`` answers other processes.
"""
