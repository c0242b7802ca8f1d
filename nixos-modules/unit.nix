# The unit of the daemon as data: what is set, and why. Keys are those of systemd 252.
#
# There is one truth for two ways of installing. service.nix makes the NixOS unit of it; the files in
# daemon/systemd, for DGX OS without Nix, are written from it with the reasons as comments, and a test
# compares them.
#
# `runtime` is services.glm-spark.settings.engine.runtime. The daemon itself needs no privilege; what a rank is
# run by decides what the unit must leave open:
#   process   a rank is a child of the daemon: an ordinary user, everything shut that CUDA and RDMA allow;
#   podman,   the daemon starts a rootful container: root, and each door that stays open says why.
#   docker
{
  runtime,
  # The command line of `glm-spark run`.
  start,
  # Where the token lies, and the Hub's if there is one; the daemon sees private copies of them.
  tokenFile,
  hubTokenFile ? null,
  # Commands before the start and on reload, with systemd's prefixes.
  startPre ? [ ],
  reload,
  stopPost ? [ ],
  # Directories outside StateDirectory and CacheDirectory that a rank writes to.
  writable ? [ ],
}:

let
  process = runtime == "process";
  container = !process;
  when = condition: entries: if condition then entries else [ ];
in
{
  description = "GLM-5.3-Flash on two or three DGX Sparks";

  # Nothing here waits for the cable: networkd has been told the addresses, and with the peer off there is no
  # carrier to wait for. The daemon watches netlink itself. network-online.target would tie the start to the
  # LAN, which two Sparks do not need.
  after = [
    "network.target"
    "systemd-networkd.service"
    # The device classes of DeviceAllow are resolved when the unit starts: modules first.
    "systemd-modules-load.service"
    "nvidia-persistenced.service"
  ]
  ++ when container [
    # The CDI specification names the driver's files: NixOS and DGX OS call its generator differently.
    "nvidia-container-toolkit-cdi-generator.service"
    "nvidia-cdi-refresh.service"
  ];

  unit = [
    {
      why = "A Spark whose peer is off for a week must still come back by itself: no limit on restarts.";
      set.StartLimitIntervalSec = 0;
    }
  ]
  ++ when (writable != [ ]) [
    {
      why = "Weights and caches may lie on a disk of their own.";
      set.RequiresMountsFor = builtins.concatStringsSep " " writable;
    }
  ];

  service = [
    {
      why = ''
        The leader is ready when the model answered through all ranks, a worker when it is armed. So
        `systemctl start glm-spark` returns when the set is live.'';
      set = {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = start;
      }
      // (if startPre == [ ] then { } else { ExecStartPre = startPre; })
      // (if stopPost == [ ] then { } else { ExecStopPost = stopPost; })
      // {
        ExecReload = reload;
      };
    }
    {
      why = ''
        A load takes minutes and a peer may be off: as long as the daemon is healthy it asks for 60 s more
        every 15 s, at the start and at the stop. These limits only catch one that hangs.'';
      set = {
        TimeoutStartSec = 90;
        TimeoutStopSec = 90;
        WatchdogSec = 30;
      };
    }
    {
      why = ''
        78: this Spark's own configuration cannot be used. 243: a token's file is not there. Starting again
        mends neither.'';
      set = {
        Restart = "on-failure";
        RestartSec = 2;
        RestartPreventExitStatus = "78 243";
      };
    }
    {
      why = "The daemon ends its ranks in order; whatever is left afterwards is killed with it.";
      set = {
        KillMode = "mixed";
        Delegate = true;
      };
    }
    {
      why = "Handed over by systemd, so that the file stays root's and its path is no part of the environment.";
      set.LoadCredential = [
        "glm-spark-token:${tokenFile}"
      ]
      ++ when (hubTokenFile != null) [ "glm-spark-hf-token:${hubTokenFile}" ];
    }
    {
      why = "The control socket is for root and the group glm-spark.";
      set = {
        RuntimeDirectory = "glm-spark";
        RuntimeDirectoryMode = "0750";
        StateDirectory = "glm-spark";
        StateDirectoryMode = "0750";
        CacheDirectory = "glm-spark";
        CacheDirectoryMode = "0750";
        WorkingDirectory = "/var/lib/glm-spark";
        UMask = "0077";
      };
    }
    {
      why = "When memory runs out the supervisor must be the last to go. RDMA pins the memory it registers.";
      set = {
        OOMScoreAdjust = -900;
        LimitMEMLOCK = "infinity";
      };
    }
    {
      why = "Sockets for the peers (INET), the routes (NETLINK), systemd and the control socket (UNIX).";
      set.RestrictAddressFamilies = "AF_INET AF_INET6 AF_NETLINK AF_UNIX";
    }
    {
      why = "What no runtime needs.";
      set = {
        NoNewPrivileges = true;
        LockPersonality = true;
        RestrictRealtime = true;
        SystemCallArchitectures = "native";
        KeyringMode = "private";
      };
    }
  ]
  ++ when process [
    {
      why = "An ordinary user; the kernel's log is read through the journal.";
      set = {
        User = "glm-spark";
        Group = "glm-spark";
        SupplementaryGroups = "systemd-journal";
        CapabilityBoundingSet = "";
        AmbientCapabilities = "";
      };
    }
    {
      why = ''
        The GPU and RDMA, nothing else. PrivateDevices would hide both. rdma_cm has no class of its own, so it
        is named by its path.'';
      set = {
        DevicePolicy = "closed";
        DeviceAllow = [
          "char-nvidia* rw"
          "char-infiniband* rw"
          "/dev/infiniband/rdma_cm rw"
        ];
      };
    }
    {
      why = "It writes to its own directories and nowhere else.";
      set = {
        ProtectSystem = "strict";
        ProtectHome = true;
        PrivateTmp = true;
        RemoveIPC = true;
      }
      // (if writable == [ ] then { } else { ReadWritePaths = writable; });
    }
    {
      set = {
        ProtectClock = true;
        ProtectHostname = true;
        ProtectKernelLogs = true;
        ProtectKernelModules = true;
        ProtectKernelTunables = true;
        RestrictNamespaces = true;
        RestrictSUIDSGID = true;
        SystemCallFilter = [
          "@system-service"
          "~@privileged"
        ];
        SystemCallErrorNumber = "EPERM";
      };
    }
    {
      why = ''
        Left open, each for a reason. MemoryDenyWriteExecute: kernels are compiled at the first start and
        mapped executable. ProtectControlGroups: every rank lives in a control group below the unit's own.
        PrivateUsers: the control socket tells users by their ids. ProtectProc: a shortage of memory names
        the processes that hold it. ProcSubset: /proc/meminfo and /proc/driver/nvidia. PrivateNetwork and
        IPAddressDeny: it serves a network.'';
      set = {
        MemoryDenyWriteExecute = false;
        ProtectControlGroups = false;
        PrivateUsers = false;
        ProtectProc = "default";
        ProcSubset = "all";
      };
    }
  ]
  ++ when container [
    {
      why = ''
        Root, because a container that is given the GPU and RDMA devices is started by root. The group owns
        the control socket's directory.'';
      set = {
        User = "root";
        Group = "glm-spark";
      };
    }
    {
      why = ''
        What starting such a container needs: SYS_ADMIN and SYS_CHROOT (its namespaces and mounts), MKNOD (its
        devices), the ids and file owners of its image (CHOWN, DAC_*, FOWNER, FSETID, SETUID, SETGID, SETPCAP,
        SETFCAP), SYS_RESOURCE (its limits, memlock among them), IPC_LOCK (handed on to the rank), KILL and
        SYS_PTRACE (to end it and to see what it does), AUDIT_WRITE and NET_BIND_SERVICE (part of every
        container's default set). Not NET_ADMIN: a rank uses the host's network as it is.'';
      set.CapabilityBoundingSet = builtins.concatStringsSep " " [
        "CAP_AUDIT_WRITE"
        "CAP_CHOWN"
        "CAP_DAC_OVERRIDE"
        "CAP_DAC_READ_SEARCH"
        "CAP_FOWNER"
        "CAP_FSETID"
        "CAP_IPC_LOCK"
        "CAP_KILL"
        "CAP_MKNOD"
        "CAP_NET_BIND_SERVICE"
        "CAP_SETFCAP"
        "CAP_SETGID"
        "CAP_SETPCAP"
        "CAP_SETUID"
        "CAP_SYS_ADMIN"
        "CAP_SYS_CHROOT"
        "CAP_SYS_PTRACE"
        "CAP_SYS_RESOURCE"
      ];
    }
    {
      why = ''
        A list of what is refused, not of what is allowed: the container brings its own filter, and this one
        reaches into it.'';
      set = {
        SystemCallFilter = "~@clock @cpu-emulation @module @obsolete @raw-io @reboot @swap";
        SystemCallErrorNumber = "EPERM";
      };
    }
    {
      why = ''
        Left open, each for a reason. ProtectSystem, ProtectHome, PrivateTmp, ProtectKernel*, ProtectProc,
        ProtectControlGroups: each gives the daemon a mount namespace of its own, in which the container's
        mounts would be made and where the next life of the daemon, or you with podman, could neither see nor
        remove them. ProtectHostname: a container is given its host name with the call this refuses.
        RestrictNamespaces: a container is made of them. RestrictSUIDSGID: images hold such files.
        DevicePolicy, ProtectClock: the runtime makes the devices that CDI lists, which differ from driver to
        driver. MemoryDenyWriteExecute: kernels are compiled at the first start. PrivateUsers, PrivateNetwork:
        as the names say.'';
      set = {
        ProtectSystem = false;
        RestrictNamespaces = false;
        RestrictSUIDSGID = false;
        MemoryDenyWriteExecute = false;
      };
    }
  ];
}
