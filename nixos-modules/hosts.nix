# What follows from the options for this one Spark. Pure; several topics read it.
{ config, lib }:

let
  cfg = config.services.glm-spark;
  hostName = config.networking.hostName;

  short = name: builtins.head (lib.splitString "." name);
  isThis = node: node.name == hostName || short node.name == hostName;
  here = lib.filter isThis cfg.nodes;

  names = if here == [ ] then [ hostName ] else [ (builtins.head here).name ] ++ [ hostName ];

  # This Spark's address on a port, or null.
  addressOn =
    port:
    if builtins.isString port.address then
      port.address
    else
      let
        found = lib.filter (name: port.address ? ${name}) names;
      in
      if found == [ ] then null else port.address.${builtins.head found};

  ownDirectories = [
    "/var/lib/glm-spark"
    "/var/cache/glm-spark"
    "/run/glm-spark"
  ];

  # Settings without an option of their own may be of any kind until assertions.nix has said which is wanted.
  text = value: if builtins.isString value then value else "";
  texts = value: if builtins.isList value then lib.filter builtins.isString value else [ ];

  ports = lib.filterAttrs (_: port: port.address != null) (
    lib.mapAttrs (_: port: {
      inherit (port) mtu;
      address = addressOn port;
    }) cfg.fabric.ports
  );
in
{
  inherit hostName ports;

  # Whether this Spark is the first of `nodes`.
  leads = cfg.nodes != [ ] && isThis (builtins.head cfg.nodes);

  # This Spark's entry of `nodes`, or null.
  self = if here == [ ] then null else builtins.head here;

  peers = lib.filter (node: !(isThis node)) cfg.nodes;

  # Every netdev of the cable: those configured here and those that something else configures.
  netdevs = lib.unique (lib.attrNames ports ++ cfg.fabric.netdevs);

  container = cfg.settings.engine.runtime != "process";

  # Directories a rank writes to that are not below the unit's own.
  writable = lib.unique (
    lib.filter (
      path: path != "" && !(lib.any (own: path == own || lib.hasPrefix "${own}/" path) ownDirectories)
    ) (
      [
        cfg.settings.model.cache
        cfg.settings.engine.kernel_cache
        (text (cfg.settings.engine.spill.directory or ""))
      ]
    )
  );

  # What the process runtime's unit, which has no /home and no /root, could not reach.
  inHomes = lib.filter (path: lib.any (home: lib.hasPrefix home path) [ "/home/" "/root/" "/run/user/" ]) (
    [
      cfg.settings.model.cache
      cfg.settings.engine.kernel_cache
      (text (cfg.settings.model.path or ""))
      (text (cfg.settings.model.drafter_path or ""))
      (text (cfg.settings.engine.spill.directory or ""))
    ]
    ++ texts (cfg.settings.weights.roots or [ ])
    ++ lib.take 1 (texts (cfg.settings.engine.command or [ ]))
    ++ lib.take 1 (texts (cfg.settings.hook.command or [ ]))
  );

  # The daemon's own copy of the keys, renewed by every reload: under the process runtime it may not read the
  # original, which is root's.
  apiKeys = "/run/glm-spark/api-keys";
}
