# What flake.nix has for others, with the files that packages are made of in their place.
{ lib, given }:

let
  pkgs = system: {
    callPackage = path: _: toString path;
    stdenv.hostPlatform = { inherit system; };
  };
  self = (import ../../../flake.nix).outputs {
    inherit self;
    nixpkgs = {
      inherit lib;
      legacyPackages = lib.genAttrs given pkgs;
    };
  };
  test = import ../../../nix/vm-test.nix { testers.runNixOSTest = lib.id; };
in
{
  inherit (self) checks packages;
  module = map toString self.nixosModules.default.imports;
  overlay = self.overlays.default (pkgs (lib.head given)) { };
  # The machine of the test, without what only NixOS understands.
  slicer = test.nodes.machine.programs.slicer;
  imports = map toString test.nodes.machine.imports;
}
