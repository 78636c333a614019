# The keys of slicer's configuration file, as options. A null key is left out of the file. Then slicer's own
# default applies.
{ lib, freeformType }:

let
  inherit (lib) mkOption types;
  inherit (import ./values.nix { inherit lib; }) keys kinds options;

  submodule = options: types.submodule { inherit freeformType options; };
  optionOf =
    type: default: description:
    mkOption { inherit type default description; };
  table = description: options: optionOf (submodule options) { } description;
  # A table that has a meaning even if it is empty.
  tableOrNone = description: options: optionOf (types.nullOr (submodule options)) null description;
  tablesOf = description: options: optionOf (types.attrsOf (submodule options)) { } description;

  # A value in the form of a unit file. An empty quota is none.
  inUnitFile =
    name: found:
    if name == "cpu_quota" && found == "infinity" then
      ""
    else
      lib.concatMapStringsSep "," toString (lib.toList found);

  profile = options keys.profile;
  slice =
    name:
    table ''
      Limits of all jobs in `${name}.slice` together. They become a drop-in of the slice;
      `systemd.slices.${name}.sliceConfig` overrides them.
    '' (lib.intersectAttrs keys.slice profile);

  destination = options keys.destination;
  slurm = options keys.slurm;
in
{
  type = submodule (
    options keys.top
    // {
      slots = mkOption {
        type = types.submodule {
          freeformType = types.attrsOf kinds.some-count;
          options = options keys.slots;
        };
        default = { };
        description = "CPU slots, and counted slots of any other name: `license-matlab = 2`.";
      };
      gpu = table "How jobs share GPUs." (options keys.gpu);
      waiting = table "How jobs take turns." (options keys.waiting);
      logs = table "The output of jobs that were started with `--detach`." (options keys.logs);
      history = table "How jobs ended and what they used." (options keys.history);
      queue = table "{command}`slicer queue`." (options keys.queue);
      notify = table "Messages about the ends of jobs. Any user can read them, so put no passwords here." (
        options keys.notify
      );
      engine = table "Where {command}`slicer queue --engine` may send jobs." {
        slurm = table "How these jobs ask Slurm for what they need." (
          slurm
          // {
            profiles = tablesOf "The same, for the jobs of one profile." (lib.getAttrs keys.slurmJobs slurm);
          }
        );
      };
      slices = table "Limits of slices." {
        cpu = slice "cpu";
        gpu = slice "gpu";
      };
      profiles = mkOption {
        type = types.attrsOf (submodule profile);
        default = { };
        example = lib.literalExpression ''
          {
            train = {
              inherits = "gpu";
              vram = "20G";
              memory_max = "80%";
              timeout = "12h";
              env.WANDB_MODE = "offline";
            };
          }
        '';
        description = ''
          Profiles: named sets of limits and needs for {command}`slicer run --profile NAME`. One with the name
          of a built-in profile overrides its values and keeps the rest.
        '';
      };
      routes = tablesOf ''
        Routes, for {command}`slicer route NAME`: whether a job goes to the GPU or the CPU, by the size of its
        input.
      '' (
        options keys.route
        // {
          gpu = tableOrNone "The destination of inputs up to the threshold." destination;
          cpu = tableOrNone "The destination of all other inputs." destination;
          to = tablesOf "Any number of destinations, instead of `gpu`, `cpu` and `threshold`." (
            destination // options keys.to
          );
        }
      );
      serve = tablesOf ''
        Servers, for {command}`slicer serve NAME`: each has a GPU only while it is in use. `programs.slicer.serve`
        makes systemd start them.
      '' (options keys.serve);
    }
  );

  inherit (keys) builtinProfiles;

  # The settings of a slice in the form of systemd.slices.<name>.sliceConfig.
  sliceConfig =
    settings:
    lib.mapAttrs' (
      name: directive: lib.nameValuePair directive (inUnitFile name settings.${name})
    ) (lib.filterAttrs (name: _: settings.${name} != null) keys.slice);
}
