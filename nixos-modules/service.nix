# The units: the daemon's, and the small one that starts it.
{
  config,
  lib,
  pkgs,
  utils,
  ...
}:

let
  cfg = config.services.glm-spark;
  hosts = import ./hosts.nix { inherit config lib; };
  inherit (hosts) container;

  systemctl = "${config.systemd.package}/bin/systemctl";
  install = "${pkgs.coreutils}/bin/install";
  user = if container then "root" else "glm-spark";

  # "-": keys that are not there are the daemon's to report, with the name of the option. "+": as root.
  copyKeys = lib.optional (cfg.apiKeysFile != null) (
    "-+"
    + utils.escapeSystemdExecArgs [
      install
      "-m"
      "0600"
      "-o"
      user
      "-g"
      "glm-spark"
      cfg.apiKeysFile
      hosts.apiKeys
    ]
  );

  # The daemon limits the GPU's clock before each start of the set (settings.gpu.clock_limit_mhz). Only root may: as
  # an ordinary user it leaves that to its unit. A GPU that refuses still serves: "-". Whoever set the limit, the
  # unit takes it back.
  nvidiaSmi = "${config.hardware.nvidia.package.bin}/bin/nvidia-smi";
  limited = cfg.gpu.clockLimitMHz != null;

  plan = import ./unit.nix {
    inherit (cfg.settings.engine) runtime;
    start = utils.escapeSystemdExecArgs [
      (lib.getExe cfg.package)
      "run"
      "--config"
      "/etc/glm-spark/config.toml"
    ];
    tokenFile = if cfg.tokenFile == null then "/etc/glm-spark/token" else cfg.tokenFile;
    # The leader alone fetches from the Hub; a worker need not have the file.
    hubTokenFile = if hosts.leads then cfg.hubTokenFile else null;
    startPre =
      copyKeys
      ++ lib.optional (limited && !container) "-+${nvidiaSmi} --lock-gpu-clocks=0,${toString cfg.gpu.clockLimitMHz}";
    # A daemon that was killed may have left a container: docker's are not below the unit.
    stopPost = [
      ("-" + utils.escapeSystemdExecArgs [
        (lib.getExe cfg.package)
        "sweep"
        "--config"
        "/etc/glm-spark/config.toml"
      ])
    ]
    ++ lib.optional limited "-+${nvidiaSmi} --reset-gpu-clocks";
    reload = copyKeys ++ [ "${pkgs.coreutils}/bin/kill -HUP $MAINPID" ];
    writable = hosts.writable;
  };

  # The daemon judges its configuration when the system is built: what it would refuse at its start never gets
  # as far as a switch. A machine that builds for another kind of machine cannot ask it.
  written = (pkgs.formats.toml { }).generate "glm-spark-config.toml" cfg.settings;
  judged =
    pkgs.runCommand "glm-spark-config.toml"
      {
        nativeBuildInputs = [ cfg.package ];
        inherit written;
      }
      ''
        glm-spark config --config "$written" || {
          echo "services.glm-spark.settings: refused, for the reasons above" >&2
          exit 1
        }
        cp "$written" "$out"
      '';
  platforms = pkgs.stdenv;
  configuration =
    if platforms.buildPlatform.canExecute platforms.hostPlatform then judged else written;

  together = lib.foldl' (all: entry: all // entry.set) { };
in
{
  config = lib.mkIf cfg.enable {
    environment.systemPackages = [ cfg.package ];

    environment.etc."glm-spark/config.toml".source = configuration;

    # Members may use the local verbs of `glm-spark`.
    users.groups.glm-spark = { };
    users.users.glm-spark = lib.mkIf (!container) {
      isSystemUser = true;
      group = "glm-spark";
      home = "/var/lib/glm-spark";
      description = "GLM-5.3-Flash on DGX Sparks";
    };

    systemd.services.glm-spark = {
      inherit (plan) description after;
      unitConfig = together plan.unit;
      serviceConfig = together plan.service;
      # A switch must not touch this unit: see below.
      restartIfChanged = false;
    };

    # `systemctl start glm-spark` by hand waits until the set is live, which is what one wants by hand. A boot
    # and a switch must not: Spark 1 is switched while Spark 2 is off, and then live never comes. A unit of
    # Type=notify is "activating" until it says READY, and both multi-user.target and switch-to-configuration
    # wait for whatever they start, restart or reload themselves.
    #
    # So nothing that waits ever has a job on glm-spark.service. It is wanted by no target and exempt from the
    # switch (restartIfChanged above, and no reload triggers). This unit stands in for it. It is done as soon as
    # it has queued the job, and the switch does with it what it would have done with the daemon:
    #   boot, or the first switch with the service enabled   start   -> queue a start
    #   the daemon's unit changed, the package for one        restart -> queue a restart
    #   only config.toml changed                              reload  -> SIGHUP
    # The signal, not `systemctl reload`: on a unit that still starts, that waits for the start as well (seen with
    # systemd 252). The daemon stopped by hand stays stopped while nothing changes. A switch that disables the
    # service stops the daemon like any other.
    #
    # Until READY `systemctl is-system-running` says "starting", because a job is queued; nothing depends on it.
    systemd.services.glm-spark-boot = {
      description = "Start glm-spark without waiting for the other Sparks";
      wantedBy = [ "multi-user.target" ];
      restartTriggers = [ config.systemd.units."glm-spark.service".text ];
      reloadTriggers = [ configuration ];
      serviceConfig = {
        Type = "oneshot";
        RemainAfterExit = true;
        ExecStart = "${systemctl} --no-block restart glm-spark.service";
        ExecReload = "-${systemctl} kill --kill-whom=main --signal=HUP glm-spark.service";
      };
    };
  };
}
