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
