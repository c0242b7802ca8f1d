# The cable: addresses, MTU and ARP of its netdevs, and the RDMA modules.
{ config, lib, ... }:

let
  cfg = config.services.glm-spark;
  hosts = import ./hosts.nix { inherit config lib; };
  networkManager = config.networking.networkmanager.enable;
  configured = hosts.ports != { };
in
{
  config = lib.mkIf cfg.enable {
    # mlx5_ib for the ConnectX-7, ib_uverbs and rdma_ucm for programs that use it. Device names are nobody's to
    # pin: the same port is mlx5_0 here and rocep1s0f0 on DGX OS.
    boot.kernelModules = lib.mkIf (cfg.settings.fabric.transport == "roce") [
      "mlx5_ib"
      "ib_uverbs"
      "rdma_ucm"
    ];

    # Two netdevs on one wire answer ARP for each other's addresses: ping works, RDMA retransmits without end.
    boot.kernel.sysctl = lib.mkMerge (
      map (netdev: {
        "net.ipv4.conf.${netdev}.arp_ignore" = 1;
        "net.ipv4.conf.${netdev}.arp_announce" = 2;
      }) hosts.netdevs
    );

    systemd.network = lib.mkIf configured {
      enable = true;
      # "10-": before the files that NixOS writes for all Ethernet netdevs, which ask for DHCP.
      networks = lib.mapAttrs' (
        netdev: port:
        lib.nameValuePair "10-glm-spark-${netdev}" {
          matchConfig.Name = netdev;
          address = [ port.address ];
          networkConfig = {
            DHCP = "no";
            IPv6AcceptRA = false;
            # An address of 169.254.x.x changes at every boot.
            LinkLocalAddressing = "no";
            # The address stays while the peer is off and the link is down, so that the daemon finds it.
            ConfigureWithoutCarrier = true;
          };
          linkConfig = {
            MTUBytes = toString port.mtu;
            # A Spark whose peer is off must boot.
            RequiredForOnline = "no";
          };
        }
      ) hosts.ports;
      # NetworkManager has the other netdevs, and networkd nothing to wait for.
      wait-online.enable = lib.mkIf networkManager (lib.mkDefault false);
    };

    # dhcpcd, NixOS's default, takes every netdev it sees, those of networkd too.
    networking.useNetworkd = lib.mkIf (configured && !networkManager) (lib.mkDefault true);
    networking.networkmanager.unmanaged = lib.mkIf (networkManager && configured) (
      map (netdev: "interface-name:${netdev}") (lib.attrNames hosts.ports)
    );
  };
}
