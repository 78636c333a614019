"""``slicer bench sharing``: what sharing a GPU does to a latency job and to batch jobs, on the user's own
GPU.

The jobs are started as a user would start them, by ``slicer run``. Each is a small program over the CUDA
driver (``client``, ``cuda``, ``ptx``). What is run, and what the figures mean, is decided in pure functions
(``planning``, ``measures``, ``verdict``); ``running`` starts the jobs.
"""
