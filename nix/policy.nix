# What /etc/slicer/policy.toml may say, as options. A key is left out of the file as long as it is null. An unknown key
# is refused here: the broker would refuse the whole file, and with it every job that wants a GPU.
{ lib }:

let
  inherit (lib) mkOption types;
  values = import ./values.nix { inherit lib; };
  inherit (values) key;

  # What can be added up over the members of a group, too.
  amounts = {
    max_gpus = key (values.count 0 "infinity") 2 "GPUs at a time, whole ones and shared ones.";
    max_vram = key (values.cap values.margin) "40G" "GPU memory at a time; a whole GPU counts with all its memory.";
    max_cpu_slots = key (values.count 0 "infinity") 4 "Slots of the name cpu at a time.";
  };
  caps = amounts // {
    max_priority = key (values.cap values.priority) 10 "The highest priority that a job may ask for.";
    max_reserve = key values.time "4h" "The longest reservation that a user may make.";
    max_hold = key values.time "24h" "A job that holds a GPU or a slot is ended after that.";
    idle_timeout = key values.time "1h" "A job that does not use its GPUs for that time is warned.";
    max_waiting = key (values.count 0 "infinity") 100 "Requests in the queue at a time.";
  };
  weight = key values.factor 2 "The share that is due, compared with those of others; 1 unless it is said.";

  each =
    whose: options:
    mkOption {
      type = types.attrsOf (types.submodule { inherit options; });
      default = { };
      description = whose;
    };
in
{
  type = types.submodule {
    options = {
      half_life = key values.someTime "7d" "What was used counts half after this time.";
      patience =
        key values.time "1d"
          "Who waited that long for a GPU and got none is served out of turn, once.";
      fence = key (values.choice [
        "auto"
        "on"
        "off"
      ]) "on" "Whether users' jobs are kept from GPUs that they have no lease on.";
      on_idle = key (values.choice [
        "warn"
        "stop"
      ]) "stop" "Whether a job that was warned is also ended, one warning period later.";
      devices =
        key values.nvidiaDevices [ "/dev/nvidia-modeset" ]
          "NVIDIA's nodes that every job may open beside its own GPUs.";
      allow_services =
        key values.flag true
          "Whether system services of users may have jobs, which are outside of their sandbox and limits.";
      user_uids =
        key values.uids "108000-119999"
          "Which uids of the ranges in /etc/subuid are users. Unset: those that a name service knows.";
      default = mkOption {
        type = types.submodule { options = caps; };
        default = { };
        description = "Caps of every user except root.";
      };
      users = each "Caps and weights of users, by name or uid. They win over all others." (caps // { inherit weight; });
      groups = each "Caps and weights of each member of groups, by name or gid." (
        caps
        // {
          inherit weight;
          together = mkOption {
            type = types.submodule { options = amounts; };
            default = { };
            description = "Caps of all members together, in addition to those of each.";
          };
        }
      );
    };
  };
}
