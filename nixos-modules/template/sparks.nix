# The same text on both Sparks.
{
  hardware.dgx-spark.enable = true;

  services.glm-spark = {
    enable = true;
    nodes = [
      { name = "spark-1"; }
      {
        name = "spark-2";
        address = "192.168.100.2";
      }
    ];
    # `glm-spark token new --output /etc/glm-spark/token` on one, the same file on the other.
    tokenFile = "/etc/glm-spark/token";
    # The two netdevs of the QSFP port that is cabled: `ip -br link` shows their names, the cabled ones are UP.
    fabric.ports = {
      enp1s0f0np0.address = {
        spark-1 = "192.168.100.1/24";
        spark-2 = "192.168.100.2/24";
      };
      enP2p1s0f0np0.address = {
        spark-1 = "192.168.101.1/24";
        spark-2 = "192.168.101.2/24";
      };
    };
  };

  # Yours: users, keys, time zone. A new user has no password: without a key nobody logs in as `owner`.
  users.users.owner = {
    isNormalUser = true;
    extraGroups = [
      "wheel"
      "glm-spark"
    ];
    # openssh.authorizedKeys.keys = [ "ssh-ed25519 ..." ];
  };
  services.openssh.enable = true;
  # Nix reads this folder through it.
  programs.git.enable = true;
  nix.settings.experimental-features = [
    "nix-command"
    "flakes"
  ];
  boot.loader.systemd-boot.enable = true;
  boot.loader.efi.canTouchEfiVariables = true;
  system.stateVersion = "25.11";
}
