# The one text that both Sparks of a pair share; only networking.hostName differs.
{
  services.glm-spark = {
    enable = true;
    nodes = [
      { name = "spark-1"; }
      {
        name = "spark-2";
        address = "192.168.100.2";
      }
    ];
    tokenFile = "/etc/glm-spark/token";
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
}
