"""The control socket of a running queue: questions of other processes, answers, and news."""
