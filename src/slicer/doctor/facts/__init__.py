"""What the doctor looks at: a file an area, each with a frozen record of facts and ``gather``.

Nothing here changes anything, makes a directory or takes a lock. A file counts only if it is root's or the
caller's and a regular one; no FIFO is waited for.
"""
