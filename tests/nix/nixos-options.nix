# The NixOS options that nixos-modules/ sets or reads, as much of their types as matters here. An option that is
# not declared is an error, so that a misspelt name does not pass.
{ config, lib, ... }:

let
  inherit (lib) mkOption types;
  data = types.data or types.anything;
  of = type: default: mkOption { inherit type default; };
  lists = of (types.listOf types.str) [ ];
  ports = of (types.listOf types.port) [ ];
  flag = of types.bool;
  render = import ./render.nix lib;

  rules = {
    allowedTCPPorts = ports;
    allowedUDPPorts = ports;
    allowedTCPPortRanges = of (types.listOf data) [ ];
    allowedUDPPortRanges = of (types.listOf data) [ ];
  };
in
{
  options = {
    assertions = of (types.listOf data) [ ];
    warnings = lists;

    boot.kernelModules = lists;
    boot.kernel.sysctl = of (types.attrsOf data) { };

    environment.systemPackages = of (types.listOf data) [ ];
    environment.etc = of (types.attrsOf (types.submodule { options.source = mkOption { type = types.raw; }; })) { };

    hardware.nvidia.open = of (types.nullOr types.bool) null;
    hardware.nvidia.package = of types.raw { bin = "/nix/store/nvidia"; };
    hardware.nvidia-container-toolkit.enable = flag false;
    services.xserver.videoDrivers = lists;

    networking = {
      hostName = of types.str "nixos";
      useNetworkd = flag false;
      nftables.enable = flag false;
      networkmanager.enable = flag false;
      networkmanager.unmanaged = lists;
      interfaces = of (types.attrsOf (
        types.submodule { options.useDHCP = of (types.nullOr types.bool) null; }
      )) { };
      firewall = rules // {
        enable = flag true;
        interfaces = of (types.attrsOf (types.submodule { options = rules; })) { };
        extraInputRules = of types.lines "";
        extraCommands = of types.lines "";
      };
    };

    systemd = {
      package = of types.raw "/nix/store/systemd";
      tmpfiles.rules = lists;
      network = {
        enable = flag false;
        wait-online.enable = flag true;
        networks = of (types.attrsOf (
          types.submodule {
            options = {
              matchConfig = of (types.attrsOf data) { };
              networkConfig = of (types.attrsOf data) { };
              linkConfig = of (types.attrsOf data) { };
              address = lists;
            };
          }
        )) { };
      };
      services = of (types.attrsOf (
        types.submodule {
          options = {
            description = of types.str "";
            after = lists;
            wants = lists;
            wantedBy = lists;
            path = of (types.listOf data) [ ];
            restartTriggers = of (types.listOf data) [ ];
            reloadTriggers = of (types.listOf data) [ ];
            restartIfChanged = flag true;
            unitConfig = of (types.attrsOf data) { };
            serviceConfig = of (types.attrsOf data) { };
          };
        }
      )) { };
      units = of (types.attrsOf (types.submodule { options.text = mkOption { type = types.str; }; })) { };
    };

    users.groups = of (types.attrsOf (types.submodule { options = { }; })) { };
    users.users = of (types.attrsOf (
      types.submodule {
        options = {
          isSystemUser = flag false;
          group = of types.str "";
          home = of types.str "/var/empty";
          description = of types.str "";
        };
      }
    )) { };

    virtualisation.podman.enable = flag false;
    virtualisation.podman.dockerCompat = flag false;
    virtualisation.podman.dockerSocket.enable = flag false;
    virtualisation.podman.package = of types.raw "/nix/store/podman";
    virtualisation.docker.enable = flag false;
    virtualisation.docker.package = of types.raw "/nix/store/docker";
  };

  config.systemd.units = lib.mapAttrs' (
    name: service: lib.nameValuePair "${name}.service" { text = render service; }
  ) config.systemd.services;
}
