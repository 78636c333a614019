# The arguments that nix/package.nix gives to buildPythonApplication, with names in the place of packages.
{ lib, given }:

let
  names = lib.genAttrs given lib.id;
in
import ../../../nix/package.nix {
  lib = lib // {
    fileset = {
      toSource = { root, fileset }: map (path: lib.removePrefix "${toString root}/" (toString path)) fileset;
      unions = lib.id;
    };
  };
  util-linux = "util-linux";
  writableTmpDirAsHomeHook = "writableTmpDirAsHomeHook";
  python3Packages = names // {
    buildPythonApplication = lib.id;
    hypothesis = "hypothesis";
    pytest-xdist = "pytest-xdist";
    pytestCheckHook = "pytestCheckHook";
    python.sitePackages = "lib/python/site-packages";
  };
}
