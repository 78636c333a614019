"""Sharing one GPU between unmodified CUDA programs: a lock around their work, and a cap on their memory.

A small C library (``preload/``) does it, preloaded into the job's processes. Slicer tells it what is wanted
through the job's file, and reads there what became of it.
"""
