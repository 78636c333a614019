"""``python -m bench.gpu``: what of sharing can only be seen on a GPU, in one call. See bench/README.md."""
