# Who may connect. The engine's rendezvous has no authentication and listens on all addresses: it is admitted on
# the cable and nowhere else.
{ config, lib, ... }:

let
  cfg = config.services.glm-spark;
  inherit (cfg) settings;
  hosts = import ./hosts.nix { inherit config lib; };

  # NCCL listens on ports the kernel picks: net.ipv4.ip_local_port_range.
  picked = {
    from = 32768;
    to = 60999;
  };

  # With three Sparks NCCL's bootstrap runs over the LAN: the same ports, from the peers alone.
  lanPeers = lib.optionals (lib.length cfg.nodes == 3) (
    lib.filter (address: address != null) (map (node: node.lanAddress) hosts.peers)
  );
  nftables = config.networking.nftables.enable;
in
{
  config = lib.mkIf cfg.enable {
    networking.firewall = {
      allowedTCPPorts = lib.mkIf cfg.openFirewall [ settings.api.port ];

      interfaces = lib.genAttrs hosts.netdevs (_: {
        allowedTCPPorts = [
          settings.control.port
          settings.weights.port
          settings.engine.master_port
        ];
        allowedTCPPortRanges = [ picked ];
        # The path probe, which measures what passes unfragmented, and RoCE v2. The ConnectX-7 takes the latter
        # before the kernel sees it; soft-RoCE does not.
        allowedUDPPorts = [
          settings.control.port
          4791
        ];
      });

      extraInputRules = lib.mkIf (lanPeers != [ ] && nftables) ''
        ip saddr { ${lib.concatStringsSep ", " lanPeers} } tcp dport ${toString picked.from}-${toString picked.to} accept comment "glm-spark: NCCL between Sparks"
      '';
      extraCommands = lib.mkIf (lanPeers != [ ] && !nftables) (
        lib.concatMapStrings (address: ''
          iptables -A nixos-fw -s ${address} -p tcp --dport ${toString picked.from}:${toString picked.to} -j nixos-fw-accept
        '') lanPeers
      );
    };
  };
}
