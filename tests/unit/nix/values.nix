# Which of the given values the options of a profile and of the settings take: { KEY = [ VALUE … ]; } becomes
# { KEY = [ BOOL … ]; }. A key is spelled as in "gpu.margin"; one without a point is a profile's, "route.",
# "destination." and "to." are tables below routes.
{ lib, given }:

let
  configuration = import ../../../nix/settings.nix {
    inherit lib;
    freeformType = lib.types.attrsOf lib.types.anything;
  };
  within = type: type.getSubOptions [ ];
  settings = within configuration.type;
  profile = within settings.profiles.type.nestedTypes.elemType;
  route = within settings.routes.type.nestedTypes.elemType;
  destination = within route.cpu.type.nestedTypes.elemType;
  option =
    key:
    let
      path = lib.splitString "." key;
      table = settings.${lib.head path};
    in
    if lib.length path == 1 then
      profile.${key}
    else if lib.head path == "top" then
      settings.${lib.last path}
    else if lib.head path == "route" then
      route.${lib.last path}
    else if lib.head path == "destination" then
      destination.${lib.last path}
    else if lib.head path == "to" then
      (within route.to.type.nestedTypes.elemType).${lib.last path}
    else if lib.head path == "slices" then
      (within (within table.type).${lib.elemAt path 1}.type).${lib.last path}
    else
      (within table.type).${lib.last path};
in
lib.mapAttrs (key: map (option key).type.check) given
