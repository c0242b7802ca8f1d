# services.glm-spark.settings: config.toml as Nix. Any key of the daemon may be set; named here are only those
# that the module itself reads. Names and kinds of all of them come from known-settings.json, which is written
# from the daemon's own model.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  inherit (lib) mkOption types;
  cfg = config.services.glm-spark;
  hosts = import ./hosts.nix { inherit config lib; };

  named = type: default: description: mkOption { inherit type default description; };

  mtus = lib.mapAttrsToList (_: port: port.mtu) cfg.fabric.ports;
in
{
  options.services.glm-spark.settings = mkOption {
    default = { };
    example = {
      api.host = "0.0.0.0";
      timeouts.silence_seconds = 900;
    };
    description = ''
      The daemon's configuration, /etc/glm-spark/config.toml. Every key of the table below may be set, those
      that are not named as options too; `engine.pull` is true here. No secrets: the store is readable by all.
    '';
    type = types.submodule {
      freeformType = (pkgs.formats.toml { }).type;
      options = {
        node = mkOption {
          type = types.listOf (types.attrsOf types.str);
          readOnly = true;
          internal = true;
          description = "From `services.glm-spark.nodes`.";
        };
        fabric.transport = named (types.enum [
          "roce"
          "socket"
        ]) "roce" "roce: RDMA over the cable; socket: NCCL over TCP, about half the speed.";
        fabric.mtu = named (types.ints.between 1280 65535) 9000 "The MTU wanted on both ends.";
        control.port =
          named types.port 8899
            "The control API on loopback and the session between Sparks on the cable.";
        api.host =
          named types.str "127.0.0.1"
            "Where the endpoint listens. Wider than loopback needs `apiKeysFile`, or `settings.api.open`.";
        api.port = named types.port 8888 "The OpenAI-compatible endpoint.";
        api.open = named types.bool false "true serves a network without keys.";
        api.keys_file = mkOption {
          type = types.str;
          default = "";
          internal = true;
          description = "From `services.glm-spark.apiKeysFile`.";
        };
        cluster.token_file = mkOption {
          type = types.str;
          default = "/etc/glm-spark/token";
          internal = true;
          description = "From `services.glm-spark.tokenFile`.";
        };
        model.cache =
          named types.str "/var/lib/glm-spark/huggingface"
            "The Hugging Face cache that holds the weights, about 176 GB.";
        model.drafter = named (types.enum [
          "mtp"
          "dflash2"
        ]) "mtp" "mtp: the checkpoint's own head; dflash2: faster, non-commercial licence.";
        model.accept_noncommercial = named types.bool false "true accepts DFlash2's licence, CC BY-NC-ND 4.0.";
        engine.runtime = named (types.enum [
          "podman"
          "docker"
          "process"
        ]) "podman" "How a rank is run. It decides how far the unit can be shut.";
        engine.image =
          named types.str
            "ghcr.io/miaai-lab/glm-5.3-flash-exl3-2x-dgx-sparks-tensorfold@sha256:bc34d7d63f978cf601f42863b284bc95a567c50c10e9adb0866a635be568bf5f"
            "The container image, pinned by digest.";
        engine.pull = mkOption {
          type = types.bool;
          default = false;
          internal = true;
          description = "Whether a missing image is fetched.";
        };
        engine.gpu_options = mkOption {
          type = types.listOf types.str;
          default = [ ];
          internal = true;
          description = "How a container is given the GPU.";
        };
        engine.http_port = named types.port 8889 "Where rank 0 serves on 127.0.0.1.";
        engine.master_port =
          named types.port 29551
            "The ranks' rendezvous. It has no authentication: the firewall admits it on the cable only.";
        engine.parallel = named (types.either (types.ints.between 1 8) (
          types.enum [ "auto" ]
        )) "auto" "Requests that decode together. Above 1 needs the dflash2 drafter.";
        weights.port =
          named types.port 8898
            "Where a worker takes the weights from the leader, on the cable.";
        weights.token_file = mkOption {
          type = types.str;
          default = "";
          internal = true;
          description = "From `services.glm-spark.hubTokenFile`.";
        };
        gpu.clock_limit_mhz = mkOption {
          type = types.ints.between 0 100000;
          default = 0;
          internal = true;
          description = "From `services.glm-spark.gpu.clockLimitMHz`.";
        };
        engine.kernel_cache = named types.str "/var/cache/glm-spark/kernels" "Compiled kernels, a folder an image.";
      };
    };
  };

  config = lib.mkIf cfg.enable {
    services.glm-spark.settings = {
      node = map (
        node:
        {
          inherit (node) name;
        }
        // lib.optionalAttrs (node.address != null) { inherit (node) address; }
        // lib.optionalAttrs (node.lanAddress != null) { lan_address = node.lanAddress; }
      ) cfg.nodes;
      # The daemon compares both ends with this; the smallest, because that is what a rail will carry.
      fabric.mtu = lib.mkIf (mtus != [ ]) (lib.mkDefault (lib.foldl' lib.min 65535 mtus));
      cluster.token_file = lib.mkIf (cfg.tokenFile != null) cfg.tokenFile;
      # After a switch it serves: what is missing comes by itself.
      engine.pull = lib.mkDefault true;
      weights.token_file = lib.mkIf (cfg.hubTokenFile != null) cfg.hubTokenFile;
      gpu.clock_limit_mhz = lib.mkIf (
        cfg.gpu.clockLimitMHz != null && hosts.container
      ) cfg.gpu.clockLimitMHz;
      # NixOS sets Docker up for CDI and not for the older --gpus.
      engine.gpu_options = lib.mkIf (cfg.settings.engine.runtime == "docker") (
        lib.mkDefault [ "--device=nvidia.com/gpu=all" ]
      );
      api.keys_file = lib.mkIf (cfg.apiKeysFile != null) hosts.apiKeys;
    };
  };
}
