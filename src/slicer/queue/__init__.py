"""``slicer queue``: the jobs of a file, each started as soon as the ledger has room for it.

The jobs file (:mod:`slicer.queue.file.jobs_file`) and the journal (:mod:`slicer.queue.state.journal`) tell
what is still to do. :mod:`slicer.queue.loop` does it.
"""
