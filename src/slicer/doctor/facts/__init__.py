"""What the doctor looks at: each area with a frozen record of facts and a ``gather…``.

Nothing here changes anything, makes a directory or takes a lock. A file counts only if it is root's or the
caller's and a regular one; no FIFO is waited for.
"""
