# NixOS: `programs.slicer.enable = true;` is all it takes. See docs/nixos.md.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  inherit (lib) mkDefault mkIf mkOption types;

  cfg = config.programs.slicer;
  toml = pkgs.formats.toml { };
  configuration = import ./settings.nix {
    inherit lib;
    freeformType = toml.type;
  };

  # What was not said is left to slicer; tables in which nothing is said would be noise.
  said = lib.filterAttrsRecursive (_: value: value != null) cfg.settings;
  withoutEmpty = lib.filterAttrs (_: value: value != { });
  # An empty gpu or cpu is a destination all the same.
  withoutEmptyTo = lib.filterAttrs (name: value: name != "to" || value != { });
  settings = withoutEmpty (
    said
    // {
      slices = withoutEmpty said.slices;
      engine = withoutEmpty (
        said.engine // { slurm = withoutEmpty (said.engine.slurm or { }); }
      );
      routes = lib.mapAttrs (_: withoutEmptyTo) said.routes;
    }
  );
  written = toml.generate "slicer-config.toml" settings;

  # The same of the broker's policy. What is said of a user or group may be nothing but its name.
  saidOfAll = lib.filterAttrsRecursive (_: value: value != null) cfg.broker.policy;
  policy = withoutEmpty (saidOfAll // { groups = lib.mapAttrs (_: withoutEmpty) saidOfAll.groups; });

  serve = import ./serve.nix {
    inherit lib;
    inherit (cfg) package;
  };
  servers = cfg.settings.serve;
  # Those that share an address with one, after it.
  groupOf =
    name:
    let
      addresses = serve.listenOf servers.${name};
      isBeside = other: other != name && lib.intersectLists addresses (serve.listenOf servers.${other}) != [ ];
    in
    map (each: lib.nameValuePair each servers.${each}) (
      [ name ] ++ lib.filter isBeside (lib.attrNames servers)
    );
  served = lib.filter (name: servers ? ${name}) cfg.serve;
  serveUnits = map (name: serve.units (groupOf name)) served;

  # As `slicer install --closed-shop` writes it: every character device but NVIDIA's, whose major number is 195.
  closed = {
    DeviceAllow = [
      "block-* rwm"
    ] ++ map (major: "char-${toString major} rwm") (lib.remove 195 (lib.range 0 511));
    DevicePolicy = "strict";
  };
  jobRunners = lib.filter (name: config.services.${name}.enable or false) [
    "cron"
    "fcron"
    "atd"
  ];

  # slicer reads the file as it will later, and says in its own words what is wrong in it.
  checked =
    pkgs.runCommand "slicer-config-checked.toml"
      {
        preferLocalBuild = true;
        nativeBuildInputs = [ cfg.package ];
        inherit written;
      }
      ''
        SLICER_CONFIG="$written" slicer profiles >/dev/null
        cp "$written" "$out"
      '';

  inherit (cfg.settings) default_profile profiles;
  known = lib.attrNames profiles ++ configuration.builtinProfiles;
  noProfile =
    where: name:
    "${where}: there is no profile \"${toString name}\""
    + " (known: ${lib.concatStringsSep ", " (lib.unique (lib.naturalSort known))}).";
  at = name: "programs.slicer.settings.profiles.${name}";

  assertionsOf = name: profile: {
    "programs.slicer.settings.profiles: \"${name}\" is not a valid profile name. Letters, digits, . _ + and - are allowed, not beginning with -." =
      lib.match "[A-Za-z0-9_.+][A-Za-z0-9_.+-]*" name != null;
    ${noProfile "${at name}.inherits" profile.inherits} = profile.inherits == null || lib.elem profile.inherits known;
    "${at name}: timeout and runtime_max are the same limit. Keep one of them." =
      profile.timeout == null || profile.runtime_max == null;
    "${at name}: gpus = 0 contradicts vram and gpu. Leave one of them out." =
      profile.gpus != 0 || (profile.vram == null && profile.gpu == null);
    "${at name}: gpus = ${toString profile.gpus} is more than gpu names." =
      !(lib.isList profile.gpu) || profile.gpus == null || profile.gpus <= lib.length profile.gpu;
  };
  assertions = {
    ${noProfile "programs.slicer.settings.default_profile" default_profile} =
      default_profile == null || lib.elem default_profile known;
    "programs.slicer.serve: there is no server \"${lib.concatStringsSep "\", \"" (lib.subtractLists (lib.attrNames servers) cfg.serve)}\" in programs.slicer.settings.serve." =
      lib.all (name: servers ? ${name}) cfg.serve;
    "programs.slicer.serve: of several servers at one address name one, whose unit serves all of them." =
      lib.allUnique (lib.concatMap (name: map (each: each.name) (groupOf name)) served);
    "programs.slicer.broker.closedShop: without broker.enable nobody but root could use a GPU." =
      cfg.broker.closedShop -> cfg.broker.enable;
    "programs.slicer.web: the board shows what the broker knows. Set broker.enable." =
      cfg.web.enable -> cfg.broker.enable;
    "programs.slicer.broker.policy: nothing keeps it without broker.enable." =
      policy != { } -> cfg.broker.enable;
  } // lib.concatMapAttrs assertionsOf profiles;

  switch =
    description:
    mkOption {
      type = types.bool;
      default = false;
      inherit description;
    };

  slicer-catalog = {
    description = "Explain slicer's entries to journalctl -x";
    wantedBy = [ "multi-user.target" ];
    after = [
      "systemd-journal-catalog-update.service"
      "systemd-tmpfiles-resetup.service"
      "systemd-tmpfiles-setup.service"
    ];
    restartTriggers = [
      cfg.package
      # systemd gives the rules of a closed shop to who is logged in when any unit starts, and not before.
      (lib.boolToString cfg.broker.closedShop)
    ];
    serviceConfig = {
      Type = "oneshot";
      RemainAfterExit = true;
      ExecStart = "${config.systemd.package}/bin/journalctl --update-catalog";
    };
  };
in
{
  options.programs.slicer = {
    enable = lib.mkEnableOption "slicer, which runs commands in systemd scopes with leases on GPUs and CPU slots";

    package = mkOption {
      type = types.package;
      default = pkgs.slicer-systemd or (pkgs.callPackage ./package.nix { });
      defaultText = lib.literalExpression "pkgs.slicer-systemd or (pkgs.callPackage ./package.nix { })";
      description = "The slicer to use.";
    };

    settings = mkOption {
      inherit (configuration) type;
      default = { };
      example = lib.literalExpression ''
        {
          default_profile = "heavy";
          slots.cpu = 4;
          profiles.train = {
            inherits = "gpu";
            vram = "20G";
            timeout = "12h";
          };
        }
      '';
      description = ''
        What {file}`/etc/slicer/config.toml` says, in the words of that file. Unset keys keep the value that
        slicer has for them; {command}`slicer profiles show` tells it. Every user's own
        {file}`~/.config/slicer/config.toml` wins over it.
      '';
    };

    checkConfig = mkOption {
      type = types.bool;
      default = pkgs.stdenv.buildPlatform.canExecute pkgs.stdenv.hostPlatform;
      defaultText = lib.literalExpression "pkgs.stdenv.buildPlatform.canExecute pkgs.stdenv.hostPlatform";
      description = ''
        Whether slicer checks its configuration while the system is built, so that no mistake in it gets as far
        as a job.
      '';
    };

    broker = {
      enable = switch ''
        Whether all users of this machine share one ledger, which a broker keeps: jobs of different users exclude each
        other, and what they were given is enforced.
      '';

      policy = mkOption {
        inherit (import ./policy.nix { inherit lib; }) type;
        default = { };
        example = lib.literalExpression ''
          {
            default.max_gpus = 2;
            groups.phd.weight = 2;
            users.alice.max_hold = "24h";
          }
        '';
        description = ''
          What {file}`/etc/slicer/policy.toml` says: what users may have, and whose turn it is. Empty: no caps, and equal
          shares.
        '';
      };

      closedShop = switch ''
        Whether login sessions cannot open NVIDIA's GPUs, so that the only way to them is a lease. It locks out desktops
        and login screens that use such a GPU, and {command}`nvidia-smi` of users.
      '';
    };

    serve = mkOption {
      type = types.listOf types.str;
      default = [ ];
      example = [ "ollama" ];
      description = ''
        Which servers of `settings.serve` systemd starts, each at its first request. One that shares an address with another is
        served with that.
      '';
    };

    web.enable = switch ''
      Whether the live board is at {file}`http://127.0.0.1:8750/`, for all users of this machine. It shows what the broker
      knows.
    '';

    metrics = {
      enable = switch "Whether figures for the textfile collector of Prometheus' node_exporter are written twice a minute.";

      directory = mkOption {
        type = types.path;
        default = "/var/lib/prometheus/node-exporter";
        description = "The directory that the collector reads. It has to exist.";
      };
    };

    userDelegation = switch ''
      Whether the jobs of users may have `io_weight` and `allowed_cpus`, which need the cgroup controllers io
      and cpuset. Users can then pin their jobs to any CPUs that their slice may use. Acts for a user whose
      {command}`systemd --user` starts after this: log out altogether, or reboot.
    '';
  };

  config = mkIf cfg.enable {
    assertions = lib.mapAttrsToList (message: assertion: { inherit assertion message; }) assertions;

    # Completions and manual pages come with it.
    environment.systemPackages = [ cfg.package ];
    environment.etc."slicer/config.toml" = mkIf (settings != { }) {
      source = if cfg.checkConfig then checked else written;
    };

    environment.etc."slicer/policy.toml" = mkIf (policy != { }) {
      source = toml.generate "slicer-policy.toml" policy;
    };

    # gpu.slice and cpu.slice, for the system and for users. They are files of the package, so all that stands
    # here is what was said on top of them.
    systemd.packages = [ cfg.package ];
    systemd.slices =
      lib.mapAttrs (name: _: {
        overrideStrategy = "asDropin";
        sliceConfig = lib.mapAttrs (_: mkDefault) (configuration.sliceConfig cfg.settings.slices.${name});
      }) (lib.intersectAttrs { cpu = null; gpu = null; } (settings.slices or { }))
      // lib.optionalAttrs cfg.broker.closedShop {
        user = {
          overrideStrategy = "asDropin";
          sliceConfig = closed;
        };
      };

    # The broker's units are files of the package, too, and sleep until this.
    systemd.sockets = lib.mkMerge (
      [
        (mkIf cfg.broker.enable { slicer-broker.wantedBy = [ "sockets.target" ]; })
        (mkIf cfg.web.enable { slicer-web.wantedBy = [ "sockets.target" ]; })
      ]
      ++ map (each: each.sockets) serveUnits
    );

    systemd.timers = mkIf cfg.metrics.enable { slicer-metrics.wantedBy = [ "timers.target" ]; };

    systemd.services = lib.mkMerge (map (each: each.services) serveUnits ++ [
      # A switch stops what it restarts, and the socket with it: users would find no broker meanwhile.
      (mkIf cfg.broker.enable { slicer-broker.stopIfChanged = false; })
      # Detached queues go on after a boot: root's, and below those of users.
      { slicer-queues.wantedBy = [ "multi-user.target" ]; }
      (mkIf cfg.metrics.enable {
        slicer-metrics = {
          environment.DIRECTORY = cfg.metrics.directory;
          serviceConfig.ReadWritePaths = [ "-${cfg.metrics.directory}" ];
        };
      })
      (mkIf cfg.userDelegation {
        "user@".serviceConfig.Delegate = mkDefault "cpu cpuset io memory pids";
      })
      # Programs that run what users have ordered, outside of their sessions.
      (mkIf cfg.broker.closedShop (lib.genAttrs jobRunners (_: { serviceConfig = closed; })))
      { inherit slicer-catalog; }
    ]);

    systemd.user.services.slicer-queues.wantedBy = [ "default.target" ];

    # Where users' ledgers are: /run/lock is root's, and logind empties /dev/shm. A file system of its own, because
    # every user may fill it.
    fileSystems."/run/slicer.users" = {
      device = "slicer";
      fsType = "tmpfs";
      options = [
        "mode=1777"
        "size=32m"
        "nr_inodes=64k"
        "nosuid"
        "nodev"
        "noexec"
      ];
    };

    # journalctl looks for explanations in systemd's own package and here. The name is not that of a file that
    # `slicer install` looks after.
    systemd.tmpfiles.settings."10-slicer"."/usr/local/lib/systemd/catalog/nixos-slicer.catalog"."L+".argument =
      "${cfg.package}/lib/systemd/catalog/slicer.catalog";
  };
}
