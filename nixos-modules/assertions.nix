# What cannot work is refused before anything is switched, with the name of the option that mends it.
{
  config,
  lib,
  ...
}:

let
  cfg = config.services.glm-spark;
  inherit (cfg) settings nodes;
  hosts = import ./hosts.nix { inherit config lib; };
  ipv4 = import ./ipv4.nix { inherit lib; };
  known = lib.importJSON ./known-settings.json;
  given = import ./settings-check.nix { inherit lib known settings; };

  names = map (node: node.name) nodes;
  repeated =
    values: lib.unique (lib.filter (value: lib.length (lib.filter (v: v == value) values) > 1) values);
  addresses = field: lib.filter (value: value != null) (map (node: node.${field}) nodes);
  noAddress = lib.filter (value: !(ipv4.isAddress value)) (
    addresses "address" ++ addresses "lanAddress"
  );
  list = lib.concatStringsSep ", ";

  # Files with secrets by the option that names them, those that are set.
  secretFiles = lib.filterAttrs (_: path: path != null && path != "") {
    inherit (cfg) tokenFile apiKeysFile hubTokenFile;
    "settings.api.keys_file" = settings.api.keys_file;
    "settings.weights.token_file" = settings.weights.token_file;
  };
  namesOf = bad: lib.attrNames (lib.filterAttrs (_: bad) secretFiles);
  secretsInStore = namesOf (lib.hasPrefix "${builtins.storeDir}/");
  secretsNowhere = namesOf (path: !(lib.hasPrefix "/" path));

  # A name such as localhost is none; what else is no address the daemon says.
  hostIsAddress = ipv4.isAddress settings.api.host || builtins.match ".*:.*" settings.api.host != null;
  loopback = settings.api.host == "::1" || lib.hasPrefix "127." settings.api.host;
  keys = settings.api.keys_file != "";

  parsed = lib.mapAttrs (_: port: ipv4.parse port.address) hosts.ports;
  unreadable = lib.attrNames (lib.filterAttrs (_: address: address == null) parsed);
  readable = lib.filterAttrs (_: address: address != null) parsed;
  ownAddresses = lib.mapAttrsToList (_: address: address.address) readable;
  # Of all Sparks: what a text that was copied for the next one and not changed has twice.
  givenAddresses = map (text: (ipv4.parse text).address or text) (
    lib.concatMap (
      port: if builtins.isAttrs port.address then lib.attrValues port.address else [ port.address ]
    ) (lib.attrValues cfg.fabric.ports)
  );
  subnets = lib.mapAttrsToList (_: address: address.subnet) readable;
  unknownSparks = lib.unique (
    lib.concatMap (
      port:
      if builtins.isAttrs port.address then
        lib.filter (name: !(lib.elem name names)) (lib.attrNames port.address)
      else
        [ ]
    ) (lib.attrValues cfg.fabric.ports)
  );

  # Workers whose address is on no cable of the leader.
  outOfReach = lib.filter (
    node: ipv4.isAddress node.address && !(lib.any (ipv4.holds node.address) (lib.attrValues readable))
  ) (lib.filter (node: node.address != null) hosts.peers);

  # The address the leader uses for this Spark, or null.
  reached = if hosts.self == null then null else hosts.self.address;

  unmanaged = config.networking.networkmanager.unmanaged;
  managed = lib.filter (netdev: !(lib.elem "interface-name:${netdev}" unmanaged)) (
    lib.attrNames hosts.ports
  );
  elsewhere = netdev: config.networking.interfaces.${netdev} or { };
  withDhcp = lib.filter (netdev: ((elsewhere netdev).useDHCP or null) == true) hosts.netdevs;

  nvidia = lib.elem "nvidia" config.services.xserver.videoDrivers;

  refuse = bad: message: {
    assertion = !bad;
    message = "services.glm-spark${message}";
  };
in
{
  config = lib.mkIf cfg.enable {
    assertions = [
      (refuse (lib.length nodes < 2 || lib.length nodes > 3)
        ".nodes: ${toString (lib.length nodes)} given; two or three Sparks are wanted."
      )
      (refuse (nodes != [ ] && hosts.self == null)
        ".nodes: this host, ${hosts.hostName} (networking.hostName), is not among ${list names}. Add it, or set networking.hostName to its name there."
      )
      (refuse (
        repeated names != [ ]
      ) ".nodes: ${list (repeated names)} is there twice; each Spark needs its own name.")
      (refuse (repeated (addresses "address") != [ ])
        ".nodes: the address ${list (repeated (addresses "address"))} is there twice; each Spark needs its own."
      )
      (refuse (repeated (addresses "lanAddress") != [ ])
        ".nodes: the lanAddress ${list (repeated (addresses "lanAddress"))} is there twice; each Spark needs its own."
      )
      (refuse (noAddress != [ ])
        ".nodes: ${list noAddress}: address and lanAddress want an IPv4 address such as 192.168.100.2, without a prefix length."
      )
      (refuse (nodes != [ ] && lib.any (node: node.address == null) (lib.tail nodes))
        ".nodes: every Spark but the first needs address, its address on the cable; ${
          list (map (node: node.name) (lib.filter (node: node.address == null) (lib.drop 1 nodes)))
        } has none."
      )
      (refuse (
        cfg.tokenFile == null
      ) ".tokenFile: not set; name the file with the secret that all Sparks share (`glm-spark token new`).")
      (refuse (secretsInStore != [ ])
        ".${list secretsInStore}: a file in the store is readable by all; give a path outside it, as a string."
      )
      (refuse (secretsNowhere != [ ])
        ".${list secretsNowhere}: an absolute path is wanted, such as /etc/glm-spark/token."
      )
      (refuse (given.secret != [ ])
        ".settings: ${list given.secret} looks like a secret; the configuration is readable by all. Use services.glm-spark.tokenFile, services.glm-spark.apiKeysFile or services.glm-spark.hubTokenFile."
      )
      (refuse (!hosts.container && hosts.inHomes != [ ])
        ".settings: ${list hosts.inHomes}: with engine.runtime = \"process\" the daemon sees no /home, /root or /run/user; use a path elsewhere."
      )
      (refuse (!hosts.container && settings.gpu.clock_limit_mhz > 0)
        ".settings.gpu.clock_limit_mhz: with engine.runtime = \"process\" the daemon may not set it; use services.glm-spark.gpu.clockLimitMHz."
      )
      (refuse (given.unknown != [ ]) ".settings: ${list given.unknown}")
      (refuse (given.illTyped != [ ]) ".settings: ${list given.illTyped}")
      (refuse
        (
          settings.model.drafter == "mtp"
          && settings.engine.parallel != "auto"
          && settings.engine.parallel > 1
        )
        ".settings.engine.parallel: ${toString settings.engine.parallel} needs settings.model.drafter = \"dflash2\"; with \"mtp\" it is 1 or \"auto\"."
      )
      (refuse (settings.model.drafter == "dflash2" && !settings.model.accept_noncommercial)
        ".settings.model.accept_noncommercial: dflash2 is licensed CC BY-NC-ND 4.0 (non-commercial); set it to true to accept that, or use settings.model.drafter = \"mtp\"."
      )
      (refuse (!hostIsAddress)
        ".settings.api.host: \"${settings.api.host}\" is not an IP address; \"127.0.0.1\" serves this Spark, \"0.0.0.0\" every network."
      )
      (refuse (hostIsAddress && !loopback && !keys && !settings.api.open)
        ".settings.api.host: ${settings.api.host} is reachable from a network; set services.glm-spark.apiKeysFile, or settings.api.open = true to serve it without keys."
      )
      (refuse (cfg.openFirewall && loopback)
        ".openFirewall: the endpoint listens on ${settings.api.host} only; set settings.api.host, to \"0.0.0.0\" for one."
      )
      (refuse
        (
          hosts.container
          && builtins.match "localhost/.+|(.+@)?sha256:[0-9a-f]{64}" settings.engine.image == null
        )
        ".settings.engine.image: ${settings.engine.image} is not pinned; end it with @sha256: and the digest."
      )
      (refuse (hosts.container && !config.hardware.nvidia-container-toolkit.enable)
        ".settings.engine.runtime: ${settings.engine.runtime} reaches the GPU through CDI; set hardware.nvidia-container-toolkit.enable (hardware.dgx-spark.enable does)."
      )
      (refuse (nvidia && config.hardware.nvidia.open != true)
        ": the GB10 needs NVIDIA's open kernel modules; set hardware.nvidia.open = true (hardware.dgx-spark.enable does)."
      )
      (refuse (unreadable != [ ])
        ".fabric.ports.${list unreadable}.address: an IPv4 address with its prefix length is wanted, such as 192.168.100.1/24."
      )
      (refuse (unknownSparks != [ ])
        ".fabric.ports.<netdev>.address: ${list unknownSparks} is not among services.glm-spark.nodes (${list names})."
      )
      (refuse (repeated givenAddresses != [ ])
        ".fabric.ports.<netdev>.address: ${list (repeated givenAddresses)} is there twice; each netdev of each Spark needs its own."
      )
      (refuse
        (
          hosts.ports != { }
          && reached != null
          && noAddress == [ ]
          && unreadable == [ ]
          && cfg.fabric.netdevs == [ ]
          && !(lib.elem reached ownAddresses)
        )
        ".fabric.ports: none of this Spark's addresses (${list ownAddresses}) is the one the leader will use, ${toString reached} (services.glm-spark.nodes)."
      )
      (refuse (config.networking.networkmanager.enable && managed != [ ])
        ".fabric.ports: NetworkManager would own ${list managed}; list it in networking.networkmanager.unmanaged as \"interface-name:${
          list (lib.take 1 managed)
        }\"."
      )
      (refuse (withDhcp != [ ])
        ".fabric.ports: networking.interfaces.${list withDhcp}.useDHCP is true, but the cable has no DHCP server; remove it."
      )
    ];

    warnings =
      lib.optional settings.api.open
        "services.glm-spark.settings.api.open: whoever reaches port ${toString settings.api.port} of the leader may use the model, without a key."
      ++ lib.optional (!config.networking.firewall.enable)
        "services.glm-spark: networking.firewall.enable is false. The engine's port ${toString settings.engine.master_port} has no authentication and listens on all addresses: nothing keeps a network from it."
      ++ lib.optional (lib.elem settings.engine.master_port config.networking.firewall.allowedTCPPorts)
        "services.glm-spark: networking.firewall.allowedTCPPorts opens ${toString settings.engine.master_port}, the engine's rendezvous without authentication, to every network."
      ++ lib.optional (hosts.netdevs == [ ])
        "services.glm-spark.fabric.ports: empty, so the firewall admits no peer; give the cable's netdevs there or in services.glm-spark.fabric.netdevs."
      ++
        lib.optional (hosts.leads && hosts.ports != { } && cfg.fabric.netdevs == [ ] && outOfReach != [ ])
          "services.glm-spark.nodes: ${
            list (map (node: "${node.name} at ${node.address}") outOfReach)
          } is in no subnet of services.glm-spark.fabric.ports of this Spark; only a route of your own leads there."
      ++
        lib.optional
          (lib.length nodes == 3 && lib.any (node: node.lanAddress == null) nodes && config.networking.firewall.enable)
          "services.glm-spark.nodes: with three Sparks the ranks meet over the LAN; without every lanAddress the firewall drops them."
      ++
        lib.optional (repeated subnets != [ ])
          "services.glm-spark.fabric.ports: two netdevs of this Spark share a subnet; give each pair of twins its own, or replies leave on the wrong one."
      ++ lib.optional (
        lib.any ipv4.isLinkLocal ownAddresses
      ) "services.glm-spark.fabric.ports: addresses of 169.254.0.0/16 change at reboots elsewhere; use a private subnet.";
  };
}
