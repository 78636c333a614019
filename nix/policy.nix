# What /etc/slicer/policy.toml may say, as options. A key is left out of the file as long as it is null. An unknown key
# is refused here: the broker would refuse the whole file, and with it every job that wants a GPU.
{ lib }:

let
  inherit (lib) mkOption types;
  inherit (import ./values.nix { inherit lib; }) keys options;

  caps = options keys.caps;
  weight = options keys.weight;
  table =
    description: options:
    mkOption {
      type = types.submodule { inherit options; };
      default = { };
      inherit description;
    };
  each =
    description: options:
    mkOption {
      type = types.attrsOf (types.submodule { inherit options; });
      default = { };
      inherit description;
    };
in
{
  type = types.submodule {
    options = options keys.policy // {
      default = table "Caps of every user except root." caps;
      users = each "Caps and weights of users, by name or uid. They win over all others." (caps // weight);
      groups = each "Caps and weights of each member of groups, by name or gid." (
        caps
        // weight
        // {
          together = table "Caps of all members together, in addition to those of each." (
            lib.getAttrs keys.together caps
          );
        }
      );
    };
  };
}
