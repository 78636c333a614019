"""``slicer queue``: the jobs of a file, each started as soon as the ledger has room for it.

:mod:`slicer.queue.loop` is its main loop. ``file`` reads the jobs file. ``state`` keeps what is known of the
jobs. ``start`` decides which jobs start, and starts them. ``run`` looks after running jobs, ``judge`` decides
what the end of an attempt means, ``show`` makes text of it all, and ``detach`` makes the queue a service.
"""
