# The units of programs.slicer.serve, as `slicer install --serve NAME` writes them (src/slicer/backend/serve_units.py).
{ lib, package }:

let
  inherit (lib) concatMap elem optionalAttrs optionals;

  inherit (import ./values.nix { inherit lib; }) keys;

  listenOf =
    server:
    if server.listen != null then server.listen else keys.listens.${toString server.kind} or [ ];

  isUnix = lib.hasPrefix "unix:";
  stream =
    address:
    if isUnix address then
      lib.removePrefix "unix:" address
    else if lib.hasPrefix "localhost:" address then
      "127.0.0.1:${lib.removePrefix "localhost:" address}"
    else
      address;
  isAnywhere =
    address:
    isUnix address
    || lib.any (start: lib.hasPrefix start address) [
      "localhost:"
      "127."
      "0.0.0.0:"
      "[::1]:"
      "[::]:"
    ];
  isNear =
    server:
    server.public != true
    && (
      server.upstream == null
      || builtins.match "[a-z]+://(localhost|127\\.[0-9.]+|\\[::1])(:[0-9]+)?(/.*)?" server.upstream != null
    );

  orElse = found: default: if found == null then default else toString found;

  sandbox =
    servers:
    let
      commands = concatMap (server: optionals (server.command != null) [ (lib.head server.command) ]) servers;
      kind =
        if lib.any (command: elem (baseNameOf command) keys.containers) commands then
          "container"
        else if commands == [ ] then
          "alone"
        else
          "starting";
      near = [
        "IPAddressDeny"
        "IPAddressAllow"
      ];
    in
    lib.removeAttrs keys.sandboxes.${kind} (optionals (!lib.all isNear servers) near);
in
{
  inherit listenOf;

  # The two units of the servers in ``group``, which are [ { name; value; } … ], the first of them their namesake.
  units =
    group:
    let
      inherit (lib.head group) name;
      servers = map (each: each.value) group;
      names = lib.concatMapStringsSep " " (each: each.name) group;
      streams = lib.unique (concatMap listenOf servers);
    in
    {
      sockets."slicer-serve-${name}" = {
        description = "The address of ${lib.concatMapStringsSep ", " (each: each.name) group}";
        documentation = [ "man:slicer-serve(1)" ];
        wantedBy = [ "sockets.target" ];
        listenStreams = map stream streams;
        socketConfig =
          {
            FileDescriptorName = name;
            RemoveOnStop = true;
            Backlog = 1024;
            TriggerLimitIntervalSec = 0;
          }
          // optionalAttrs (lib.any isUnix streams) {
            SocketMode = "0600";
            DirectoryMode = "0755";
          }
          // optionalAttrs (lib.any (lib.hasPrefix "[") streams) { BindIPv6Only = "ipv6-only"; }
          // optionalAttrs (!lib.all isAnywhere streams) { FreeBind = true; };
      };
      services."slicer-serve-${name}" = {
        description = "slicer serve ${names}: a GPU while it is in use";
        documentation = [ "man:slicer-serve(1)" ];
        after = [
          "slicer-broker.socket"
          "nvidia-persistenced.service"
        ];
        # What is asked of it just now may end first, and the socket stays.
        stopIfChanged = false;
        startLimitIntervalSec = 0;
        # As whoever types `slicer run`: the commands of the system.
        path = [ "/run/current-system/sw" ];
        serviceConfig = {
          Type = "exec";
          ExecStart = "${package}/bin/slicer serve ${names}";
          Restart = "on-failure";
          RestartSec = "10s";
          KillMode = "mixed";
          # systemd adds these up.
          TimeoutStopSec = lib.concatStringsSep " " (
            concatMap (server: [
              (orElse server.drain "30s")
              (orElse server.release_timeout "30s")
            ]) servers
            ++ [ "20s" ]
          );
          MemoryMax = "512M";
          TasksMax = 512;
        }
        // sandbox servers;
      };
    };
}
