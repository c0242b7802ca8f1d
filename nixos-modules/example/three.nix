# Three Sparks in a triangle: a cable and two subnets (one a twin) for each pair, port 0 of one Spark to port 1 of
# the next. Experimental.
{
  services.glm-spark = {
    enable = true;
    nodes = [
      {
        name = "spark-1";
        lanAddress = "10.0.0.11";
      }
      {
        name = "spark-2";
        address = "192.168.100.2";
        lanAddress = "10.0.0.12";
      }
      {
        name = "spark-3";
        address = "192.168.104.3";
        lanAddress = "10.0.0.13";
      }
    ];
    tokenFile = "/etc/glm-spark/token";
    fabric.ports = {
      # Port 0: 1 to 2, 2 to 3, 3 to 1.
      enp1s0f0np0.address = {
        spark-1 = "192.168.100.1/24";
        spark-2 = "192.168.102.2/24";
        spark-3 = "192.168.104.3/24";
      };
      enP2p1s0f0np0.address = {
        spark-1 = "192.168.101.1/24";
        spark-2 = "192.168.103.2/24";
        spark-3 = "192.168.105.3/24";
      };
      # Port 1: the other end of the cable from the Spark before.
      enp1s0f1np1.address = {
        spark-1 = "192.168.104.1/24";
        spark-2 = "192.168.100.2/24";
        spark-3 = "192.168.102.3/24";
      };
      enP2p1s0f1np1.address = {
        spark-1 = "192.168.105.1/24";
        spark-2 = "192.168.101.2/24";
        spark-3 = "192.168.103.3/24";
      };
    };
  };
}
