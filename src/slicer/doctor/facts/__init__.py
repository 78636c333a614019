"""The facts that the doctor gathers: each area has a record of facts and a ``gather…`` function.

Nothing here changes anything, creates a directory or takes a lock. A file counts only if it is a regular file
of root's or the caller's; nothing waits for a FIFO.
"""
