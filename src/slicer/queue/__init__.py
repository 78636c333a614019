"""``slicer queue``: the jobs of a file, each started as soon as the ledger has room for it.

From the file (:mod:`slicer.queue.file.jobs_file`) and the journal (:mod:`slicer.queue.state.journal`) it
follows what is still to do; from what was asked of the ledger and what runs, what happens next
(:mod:`slicer.queue.loop`).
"""
