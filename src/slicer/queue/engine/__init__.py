"""Engines: what places the attempts of jobs, starts, watches and ends them."""
