"""The NixOS module, the package and the flake, evaluated with nixpkgs' own lib, without a NixOS or a store.

``python -m tests.unit.nix`` writes the options into docs/nixos.md anew.
"""
