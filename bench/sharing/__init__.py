"""``python -m bench.sharing``: what sharing a GPU does to a latency job and to batch jobs.

The jobs are started as a user would start them, by ``slicer run``. Each is a small program over the CUDA
driver (``client``, ``bench.gpu.cuda``). What is run, and what the figures mean, is decided in pure functions
(``planning``, ``measures``, ``verdict``); ``running`` starts the jobs. See bench/README.md.
"""
