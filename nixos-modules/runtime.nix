# What a rank is run by.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  cfg = config.services.glm-spark;
  inherit (cfg.settings.engine) runtime;
in
{
  config = lib.mkIf cfg.enable (
    lib.mkMerge [
      {
        # What the daemon itself starts: journalctl, where the kernel's lines are not to be had directly, and what
        # limits the clock.
        systemd.services.glm-spark.path = [
          config.systemd.package
        ]
        ++ lib.optional (cfg.settings.gpu.clock_limit_mhz > 0) config.hardware.nvidia.package.bin;
      }
      (lib.mkIf (runtime == "podman") {
        virtualisation.podman.enable = lib.mkDefault true;
        systemd.services.glm-spark.path = [ config.virtualisation.podman.package ];
      })
      (lib.mkIf (runtime == "docker") {
        virtualisation.docker.enable = lib.mkDefault true;
        systemd.services.glm-spark = {
          path = [ config.virtualisation.docker.package ];
          after = [ "docker.service" ];
          wants = [ "docker.service" ];
        };
      })
      (lib.mkIf (runtime == "process") {
        # `settings.engine.command` names the engine; kernels are compiled at its first start.
        systemd.services.glm-spark.path = [ pkgs.stdenv.cc ];
      })
    ]
  );
}
