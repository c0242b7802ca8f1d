# The module in a whole NixOS system, with a package that is only a name: what it makes of units, firewall and
# network. Nothing is built. Where Nix is, this is the real thing that tests/nix/test_*.py approach without it.
{
  nixpkgs,
  pkgs,
  module,
}:

let
  inherit (nixpkgs) lib;

  system =
    host: more:
    (lib.nixosSystem {
      inherit (pkgs.stdenv.hostPlatform) system;
      modules = [
        module
        ../../nixos-modules/example/pair.nix
        {
          networking.hostName = host;
          services.glm-spark.package = pkgs.writeShellScriptBin "glm-spark" "exit 0" // {
            meta.mainProgram = "glm-spark";
          };
          services.glm-spark.settings.engine.runtime = "process";
          fileSystems."/" = {
            device = "/dev/disk/by-label/nixos";
            fsType = "ext4";
          };
          boot.loader.grub.enable = false;
          system.stateVersion = "25.11";
        }
        more
      ];
    }).config;

  first = system "spark-1" { };
  second = system "spark-2" { };
  stranger = system "laptop" { };
  failed = config: map (one: one.message) (lib.filter (one: !one.assertion) config.assertions);
  unit = first.systemd.services.glm-spark.serviceConfig;
  holds = what: truth: lib.assertMsg truth what;
in
assert holds "both Sparks are fine" (failed first == [ ] && failed second == [ ]);
assert holds "another host is refused by name" (
  lib.any (lib.hasInfix "services.glm-spark.nodes") (failed stranger)
);
assert holds "the unit's Type" (unit.Type == "notify");
assert holds "no target waits for it" (first.systemd.services.glm-spark.wantedBy == [ ]);
assert holds "a switch leaves it alone" (!first.systemd.services.glm-spark.restartIfChanged);
assert holds "the boot starts what starts it" (
  first.systemd.services.glm-spark-boot.wantedBy == [ "multi-user.target" ]
);
assert holds "the rendezvous is closed to other networks" (
  first.networking.firewall.allowedTCPPorts == [ ]
);
assert holds "and open on the cable" (
  lib.elem 29551 first.networking.firewall.interfaces.enp1s0f0np0.allowedTCPPorts
);
assert holds "each Spark has its own address" (
  second.systemd.network.networks."10-glm-spark-enp1s0f0np0".address == [ "192.168.100.2/24" ]
);
pkgs.runCommand "glm-spark-units" { } ''
  touch "$out"
''
