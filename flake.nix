{
  description = "Run commands in systemd scopes under gpu.slice and cpu.slice, with GPU and CPU leases held across the scope";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      forAllSystems =
        make:
        lib.genAttrs [
          "x86_64-linux"
          "aarch64-linux"
        ] (system: make nixpkgs.legacyPackages.${system});
    in
    {
      # Nix before 2.9 does not take a path for a module.
      nixosModules.default.imports = [ ./nix/module.nix ];

      overlays.default = final: _: {
        slicer-systemd = final.callPackage ./nix/package.nix { };
      };

      packages = forAllSystems (pkgs: {
        default = pkgs.callPackage ./nix/package.nix { };
      });

      checks = forAllSystems (pkgs: {
        package = self.packages.${pkgs.stdenv.hostPlatform.system}.default;
        nixos = pkgs.callPackage ./nix/vm-test.nix { };
      });
    };
}
