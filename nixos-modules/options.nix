# What a Spark's owner writes. Everything else has a default, here or in the daemon.
{ lib, pkgs, ... }:

let
  inherit (lib) mkOption types;

  node = types.submodule {
    options = {
      name = mkOption {
        type = types.str;
        example = "spark-1";
        description = "The Spark's host name.";
      };
      address = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "192.168.100.2";
        description = ''
          Its IPv4 address on the cable, as the leader reaches it. Every Spark but the first needs one.
        '';
      };
      lanAddress = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "10.0.0.12";
        description = ''
          Its IPv4 address on the LAN. With three Sparks the ranks find each other over the LAN before they
          use the cables: the firewall then admits the peers by these addresses.
        '';
      };
    };
  };

  port = types.submodule {
    options = {
      address = mkOption {
        type = types.either types.str (types.attrsOf types.str);
        example = {
          spark-1 = "192.168.100.1/24";
          spark-2 = "192.168.100.2/24";
        };
        description = ''
          The netdev's IPv4 address with its prefix length: for each Spark by its name, so that one text
          serves all of them, or one string for this Spark alone. A Spark that is not named leaves the netdev
          as it is.
        '';
      };
      mtu = mkOption {
        type = types.ints.between 1280 65535;
        default = 9000;
        description = "Bytes. 9000 lets RoCE use its largest MTU, 4096. Both ends need the same.";
      };
    };
  };
in
{
  options.services.glm-spark = {
    enable = lib.mkEnableOption "serving GLM-5.3-Flash from two or three DGX Sparks";

    package = lib.mkPackageOption pkgs "glm-spark" { };

    nodes = mkOption {
      type = types.listOf node;
      default = [ ];
      example = [
        { name = "spark-1"; }
        {
          name = "spark-2";
          address = "192.168.100.2";
        }
      ];
      description = ''
        The Sparks in the order of their ranks; the first leads and serves the endpoint. The same list on all
        of them: a Spark finds its own entry by `networking.hostName`.
      '';
    };

    tokenFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "/etc/glm-spark/token";
      description = ''
        Where the secret lies that all Sparks share, at least 32 bytes, for root alone. `glm-spark token new`
        makes one. A path as a string, never a file of the configuration: the store is readable by all.
      '';
    };

    apiKeysFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "/etc/glm-spark/api-keys";
      description = ''
        Where the endpoint's keys lie, one a line, for root alone. After a change of the file:
        `systemctl reload glm-spark`, which ends no request. A path as a string, as for `tokenFile`.
      '';
    };

    hubTokenFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "/etc/glm-spark/hub-token";
      description = ''
        Where a read token of the Hugging Face Hub lies, for root alone. Needed on the leader, and only when
        `settings.model.repository` is one that is not open to all. A path as a string, as for `tokenFile`.
      '';
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = ''
        Open the endpoint's port (`settings.api.port`) on all netdevs. It also has to listen there:
        `settings.api.host`.
      '';
    };

    fabric.ports = mkOption {
      type = types.attrsOf port;
      default = { };
      example = {
        enp1s0f0np0.address = {
          spark-1 = "192.168.100.1/24";
          spark-2 = "192.168.100.2/24";
        };
        enP2p1s0f0np0.address = {
          spark-1 = "192.168.101.1/24";
          spark-2 = "192.168.101.2/24";
        };
      };
      description = ''
        The netdevs of the cabled QSFP ports, by name. One port is two netdevs, the twins; both carry traffic
        when both have an address, each pair in a subnet of its own. systemd-networkd configures them. Leave
        this empty to configure the network in your own way: the ports in `services.glm-spark.fabric.netdevs`
        are still fenced.
      '';
    };

    fabric.netdevs = mkOption {
      type = types.listOf types.str;
      default = [ ];
      example = [ "enp1s0f0np0" ];
      description = ''
        Further netdevs of the cable, which something else configures. The firewall admits the peers on them.
      '';
    };

    gpu.clockLimitMHz = mkOption {
      type = types.nullOr types.ints.positive;
      default = null;
      example = 2200;
      description = ''
        Upper limit of the GPU's clock while the service runs. The published figures were measured at 2200.
        null: no limit.
      '';
    };
  };
}
