"""Simulated GPUs, for machines without one."""
