"""The NixOS module, the package and the flake, evaluated with nixpkgs' own lib. No NixOS is needed, nor a store.

``python -m tests.unit.nix`` writes the options into docs/nixos.md anew.
"""
