"""The engine of a cluster: each attempt is a task of a job array of Slurm, which runs ``slicer run``.

``mapping``, ``parsing``, ``script`` and ``tracking`` decide (pure). ``exchange`` has the files through which
the queue and its attempts speak. ``commands`` calls Slurm: ``submitting`` hands it the arrays, and ``asking``
follows them.
"""
