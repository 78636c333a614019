# The options of the module, as documentation lists them.
{ lib, given }:

let
  evaluated = lib.evalModules {
    modules = [
      ../../../nix/module.nix
      { config._module.check = false; }
    ];
    specialArgs.pkgs.formats.toml = _: { type = lib.types.attrsOf lib.types.anything; };
  };
  text = found: found.text or found;
in
map (option: {
  inherit (option) name;
  type = option.type;
  description = text option.description;
  default = text (option.default or null);
  example = text (option.example or null);
}) (
  lib.filter (option: option.visible && !option.internal && lib.hasPrefix "programs." option.name) (
    lib.optionAttrSetToDocList evaluated.options
  )
)
