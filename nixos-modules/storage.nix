# Where weights and compiled kernels lie, when that is not below the service's own directories.
{ config, lib, ... }:

let
  cfg = config.services.glm-spark;
  hosts = import ./hosts.nix { inherit config lib; };
  user = if hosts.container then "root" else "glm-spark";
in
{
  config = lib.mkIf cfg.enable {
    # Made when missing. What is already there keeps its owner, that is what ":" says: weights may be shared with
    # other programs.
    systemd.tmpfiles.rules = map (
      directory: "d ${directory} :0750 :${user} :glm-spark -"
    ) hosts.writable;
  };
}
