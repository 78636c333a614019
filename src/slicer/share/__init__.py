"""Sharing one GPU between unmodified CUDA programs: a lock around their work, and a cap on their memory.

A small C library (``preload/``) does this, preloaded into the job's processes. slicer and the library
exchange everything through the job's file.
"""
