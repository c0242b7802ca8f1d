# The unit for systems without Nix, from the same data as the NixOS unit: paths of DGX OS, see docs/install-dgx-os.md.
runtime:
import ../../nixos-modules/unit.nix {
  inherit runtime;
  start = "/opt/glm-spark/bin/glm-spark run --config /etc/glm-spark/config.toml";
  tokenFile = "/etc/glm-spark/token";
  stopPost = [ "-/opt/glm-spark/bin/glm-spark sweep --config /etc/glm-spark/config.toml" ];
  reload = [ "/bin/kill -HUP $MAINPID" ];
}
