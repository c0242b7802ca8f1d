# One Spark's module evaluated with the stand-in lib (or with `lib`, where there is the real one), as data.
{
  lib ? import ./lib.nix,
  store ? "/nix/store",
}:

modules:

let
  package = name: mainProgram: {
    type = "derivation";
    name = mainProgram;
    outPath = "${store}/${name}";
    meta = { inherit mainProgram; };
  };
  pkgs = {
    glm-spark = package "glm-spark" "glm-spark";
    coreutils = package "coreutils" "coreutils";
    stdenv = {
      cc = package "cc" "cc";
      hostPlatform.system = "aarch64-linux";
      buildPlatform.canExecute = host: host.system == "aarch64-linux";
    };
    runCommand = name: { written, nativeBuildInputs }: _script: {
      inherit (written) value;
      checkedBy = nativeBuildInputs;
      outPath = "${written}-judged";
    };
    formats.toml = _: {
      type = lib.types.data or (lib.types.attrsOf lib.types.anything);
      generate = name: value: {
        inherit value;
        outPath = "${store}/${builtins.substring 0 32 (builtins.hashString "sha256" (builtins.toJSON value))}-${name}";
      };
    };
  };
  # Quoted as NixOS quotes.
  utils.escapeSystemdExecArgs =
    arguments:
    lib.concatStringsSep " " (
      map (
        argument: builtins.replaceStrings [ "%" "$" ] [ "%%" "$$" ] (builtins.toJSON argument)
      ) arguments
    );
  stubs = {
    systemd.package = "${store}/systemd";
    hardware.nvidia.package.bin = "${store}/nvidia";
    virtualisation.podman.package = "${store}/podman";
    virtualisation.docker.package = "${store}/docker";
  };

  evaluated = lib.evalModules {
    specialArgs = { inherit lib pkgs utils; };
    modules = [
      ./nixos-options.nix
      ../../nixos-modules
      stubs
    ]
    ++ modules;
  };
  inherit (evaluated) config;
in
{
  inherit (evaluated) options;
  inherit config;
  result = {
    refused = map (assertion: assertion.message) (
      lib.filter (assertion: !assertion.assertion) config.assertions
    );
    inherit (config) warnings;
    # What lies in /etc/glm-spark/config.toml, as data.
    settings =
      (config.environment.etc."glm-spark/config.toml" or { source.value = { }; }).source.value;
    units = lib.mapAttrs (_: unit: unit.text) config.systemd.units;
    wantedBy = lib.mapAttrs (_: service: service.wantedBy) config.systemd.services;
    firewall = config.networking.firewall;
    inherit (config.systemd.network) networks;
    networking = {
      inherit (config.networking) useNetworkd;
      inherit (config.networking.networkmanager) unmanaged;
      networkd = config.systemd.network.enable;
      waitOnline = config.systemd.network.wait-online.enable;
    };
    modules = config.boot.kernelModules;
    inherit (config.boot.kernel) sysctl;
    inherit (config) users;
    tmpfiles = config.systemd.tmpfiles.rules;
    podman = config.virtualisation.podman.enable;
    docker = {
      inherit (config.virtualisation.docker) enable;
      compat = config.virtualisation.podman.dockerCompat;
      socket = config.virtualisation.podman.dockerSocket.enable;
    };
  };
}
