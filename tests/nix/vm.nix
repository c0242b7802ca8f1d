# Two or three Sparks as virtual machines with soft-RoCE, the real daemon and the stand-in engine, set up with the
# module as an owner would: they boot one by one, go live, and survive what a table of faults does to them.
{
  pkgs,
  module,
  count,
}:

let
  inherit (pkgs) lib;
  numbers = lib.range 1 count;
  name = number: "spark-${toString number}";

  # The LAN is network 1, where a virtual machine has the number of its name in the alphabet: the client first.
  lan = number: "192.168.1.${toString (number + 1)}";

  # Two Sparks: one cable with both twins, networks 2 and 3. Three: a cable for each pair, a netdev each.
  cables = if count == 2 then [ [ 1 2 ] [ 1 2 ] ] else [ [ 1 2 ] [ 2 3 ] [ 3 1 ] ];
  cable = index: ends: {
    network = index + 2;
    inherit ends;
  };
  of = number: lib.filter (one: lib.elem number one.ends) (lib.imap0 cable cables);
  netdevs = number: lib.imap0 (index: one: one // { netdev = "eth${toString (index + 2)}"; }) (of number);
  address = number: one: "10.99.${toString one.network}.${toString number}";
  towardLeader = number: lib.head (lib.filter (one: lib.elem 1 one.ends) (of number));

  spark =
    number:
    { lib, pkgs, ... }:
    {
      imports = [ module ];

      virtualisation.vlans = [ 1 ] ++ map (one: one.network) (of number);
      virtualisation.memorySize = 1536;
      # The test driver gives every netdev an address of its own; those of the cable are the module's.
      networking.interfaces = lib.listToAttrs (
        map (one: lib.nameValuePair one.netdev { ipv4.addresses = lib.mkForce [ ]; }) (netdevs number)
      );

      boot.kernelModules = [ "rdma_rxe" ];
      systemd.services.soft-roce = {
        wantedBy = [ "multi-user.target" ];
        before = [ "glm-spark.service" ];
        requiredBy = [ "glm-spark.service" ];
        after = [ "systemd-networkd.service" ];
        path = [ pkgs.iproute2 ];
        serviceConfig = {
          Type = "oneshot";
          RemainAfterExit = true;
        };
        script = lib.concatMapStrings (one: ''
          ip link set ${one.netdev} up
          rdma link add rxe-${one.netdev} type rxe netdev ${one.netdev}
        '') (netdevs number);
      };

      environment.etc = {
        "glm-spark/token" = {
          text = "a token for a test, not a secret to anyone";
          mode = "0600";
        };
        "glm-spark/api-keys" = {
          text = "a-key-for-a-test\n";
          mode = "0600";
        };
        "glm-spark/standin.json".text = builtins.toJSON { any_model = true; };
      };
      systemd.tmpfiles.rules = [
        "d /var/lib/glm-spark/model 0755 glm-spark glm-spark -"
        "f /var/lib/glm-spark/model/config.json 0644 glm-spark glm-spark - {}"
      ];
      environment.systemPackages = [
        pkgs.curl
        pkgs.jq
      ];

      services.glm-spark = {
        enable = true;
        nodes = map (
          other:
          {
            name = name other;
            lanAddress = lan other;
          }
          // lib.optionalAttrs (other > 1) { address = address other (towardLeader other); }
        ) numbers;
        tokenFile = "/etc/glm-spark/token";
        apiKeysFile = "/etc/glm-spark/api-keys";
        openFirewall = true;
        fabric.ports = lib.listToAttrs (
          map (
            one:
            lib.nameValuePair one.netdev {
              address = "${address number one}/24";
              mtu = 1500;
            }
          ) (netdevs number)
        );
        settings = {
          api.host = "0.0.0.0";
          engine.runtime = "process";
          engine.command = [ (lib.getExe' pkgs.glm-spark "glm-spark-standin") ];
          engine.environment.TENSORFOLD_STANDIN = "/etc/glm-spark/standin.json";
          model.path = "/var/lib/glm-spark/model";
          memory.want_available_gib = 0.1;
          memory.floor_gib = 0.05;
        };
      };
    };
in
pkgs.testers.runNixOSTest {
  name = "glm-spark-${toString count}";

  nodes = {
    client =
      { pkgs, ... }:
      {
        virtualisation.vlans = [ 1 ];
        environment.systemPackages = [
          pkgs.curl
          pkgs.jq
          pkgs.netcat
        ];
      };
  }
  // lib.listToAttrs (map (number: lib.nameValuePair (name number) (spark number)) numbers);

  testScript = ''
    sparks = [${lib.concatMapStringsSep ", " (number: "spark_${toString number}") numbers}]
    leader, last = sparks[0], sparks[-1]


    def live():
        leader.wait_until_succeeds("curl -fsS http://127.0.0.1:8888/readyz", timeout=300)


    def not_live():
        leader.wait_until_fails("curl -fsS http://127.0.0.1:8888/readyz", timeout=30)


    def generation():
        return int(leader.succeed("glm-spark status --json | jq .generation"))


    with subtest("a boot waits for nobody"):
        leader.start()
        client.start()
        leader.wait_for_unit("multi-user.target", timeout=300)
        assert "ActiveState=activating" in leader.succeed("systemctl show --property=ActiveState glm-spark")

    with subtest("all Sparks there: live"):
        for spark in sparks[1:]:
            spark.start()
        live()
        leader.wait_for_unit("glm-spark.service")
        leader.succeed("journalctl --unit=glm-spark | grep -F 'GLM-5.3-Flash-EXL3 is now LIVE! on port 8888'")

    with subtest("a client with a key gets an answer, one without does not"):
        ask = (
            "curl -fsS -m 60 http://spark-1:8888/v1/chat/completions -H 'Content-Type: application/json' {} -d "
            + "'{{\"model\": \"GLM-5.3-Flash-EXL3\", \"messages\": [{{\"role\": \"user\", \"content\": \"hello\"}}]}}'"
        )
        client.succeed(ask.format("-H 'Authorization: Bearer a-key-for-a-test'") + " | jq -e .choices[0].message.content")
        client.fail(ask.format(""))

    with subtest("the engine and the control port are not there for a client"):
        for port in (29551, 8889, 8899):
            client.fail(f"nc -z -w 3 spark-1 {port}")

    with subtest("a rank killed: all of them start again"):
        before = generation()
        last.succeed("pkill --signal KILL --full 'glm-spark-standin serve'")
        not_live()
        live()
        assert generation() > before

    with subtest("the cable cut and put back"):
        netdevs = last.succeed("ls /sys/class/net").split()
        fabric = [netdev for netdev in netdevs if netdev.startswith("eth") and netdev not in ("eth0", "eth1")]
        for netdev in fabric:
            last.succeed(f"ip link set {netdev} down")
        not_live()
        for netdev in fabric:
            last.succeed(f"ip link set {netdev} up")
        live()

    with subtest("a Spark crashes and comes back"):
        last.crash()
        not_live()
        last.start()
        live()

    with subtest("the leader reboots"):
        leader.shutdown()
        leader.start()
        live()

    with subtest("another token is refused, and said"):
        last.succeed("cp /etc/glm-spark/token /tmp/token")
        last.succeed("echo another token that nobody else in this set has > /etc/glm-spark/token")
        last.succeed("systemctl --no-block restart glm-spark")
        not_live()
        leader.wait_until_succeeds("glm-spark status | grep -i token", timeout=60)
        last.succeed("cp /tmp/token /etc/glm-spark/token; systemctl --no-block restart glm-spark")
        live()

    with subtest("stopped on the leader: no rank is left anywhere"):
        leader.succeed("systemctl stop glm-spark")
        for spark in sparks:
            spark.wait_until_fails("pgrep --full 'glm-spark-standin serve'", timeout=30)
        last.succeed("systemctl is-active glm-spark")
  '';
}
