"""A report about jobs that have run: ``figures`` and ``over_time`` calculate, ``page`` shows."""
