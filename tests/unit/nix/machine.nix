# programs.slicer on a NixOS of which there is nothing but the options that it sets. Gives what it set.
{ lib, given }:

let
  # Nothing is built here: a derivation is its name and what it would be made of.
  derivation =
    name: contents:
    {
      type = "derivation";
      inherit name;
      outPath = "/nix/store/none-${name}";
    }
    // contents;
  package = derivation "slicer" { };

  value =
    (lib.types.oneOf [
      lib.types.bool
      lib.types.int
      lib.types.float
      lib.types.str
      lib.types.path
      (lib.types.attrsOf value)
      (lib.types.listOf value)
    ])
    // {
      description = "TOML value";
    };

  pkgs = {
    formats.toml = _: {
      type = value;
      generate = name: settings: derivation name { inherit settings; };
    };
    runCommand =
      name: environment: script:
      derivation name { inherit environment script; };
    stdenv.buildPlatform.canExecute = _: true;
    stdenv.hostPlatform = { };
    slicer-systemd = package;
  };

  anything = lib.mkOption {
    type = lib.types.anything;
    default = { };
  };
  listOf =
    type:
    lib.mkOption {
      type = lib.types.listOf type;
      default = [ ];
    };

  nixos.options = {
    assertions = listOf lib.types.raw;
    environment.etc = anything;
    fileSystems = anything;
    environment.systemPackages = listOf lib.types.package;
    systemd.package = lib.mkOption { default = derivation "systemd" { }; };
    systemd.packages = listOf lib.types.package;
    systemd.services = anything;
    systemd.sockets = anything;
    systemd.user.services = anything;
    systemd.timers = anything;
    systemd.slices = anything;
    systemd.tmpfiles.settings = anything;
  };

  evaluated = lib.evalModules {
    modules = [
      ../../../nix/module.nix
      nixos
      { config = given; }
    ];
    specialArgs = { inherit pkgs; };
  };
  inherit (evaluated) config;
  names = map (each: each.name);
  file = config.environment.etc."slicer/config.toml".source or null;
in
{
  packages = names config.environment.systemPackages;
  unitPackages = names config.systemd.packages;
  inherit (config) fileSystems;
  inherit (config.systemd) services slices sockets timers;
  userServices = config.systemd.user.services;
  policy = config.environment.etc."slicer/policy.toml".source.settings or null;
  tmpfiles = config.systemd.tmpfiles.settings;
  etc = lib.attrNames config.environment.etc;
  # The file that is to be written, and the script that checks it and gives it on.
  settings = file.environment.written.settings or file.settings or null;
  script = file.script or null;
  failed = map (each: each.message) (lib.filter (each: !each.assertion) config.assertions);
}
