# There is no flake.lock in the repository: it is made by Nix, with network, and the first `nix flake lock` (or any
# build) makes it. Until then nothing is left to chance either: the one input is pinned to an exact revision here,
# and nixpkgs is the one of that input's own lock file. Commit the lock when it is there.
{
  description = "GLM-5.3-Flash on two or three NVIDIA DGX Sparks as one OpenAI-compatible endpoint";

  inputs = {
    # The hardware: kernel 6.17, NVIDIA's open driver, CDI. Its kernel configuration is generated against its own
    # nixpkgs, so ours has to be the same.
    dgx-spark.url = "github:graham33/nixos-dgx-spark/f1ebf94a047a16d40f3ff811961574b92d9c4e1e";
    nixpkgs.follows = "dgx-spark/nixpkgs";
  };

  outputs =
    {
      self,
      nixpkgs,
      dgx-spark,
    }:
    let
      inherit (nixpkgs) lib;

      # A Spark, and the machine one works at.
      systems = [
        "aarch64-linux"
        "x86_64-linux"
      ];
      # Without CUDA and without overlays of others: nothing of ours needs them, and all else comes from the cache.
      forEachSystem =
        make:
        lib.genAttrs systems (
          system:
          make (
            import nixpkgs {
              inherit system;
              overlays = [ self.overlays.default ];
            }
          )
        );

      host =
        example: name:
        lib.nixosSystem {
          system = "aarch64-linux";
          modules = [
            self.nixosModules.default
            dgx-spark.nixosModules.dgx-spark
            example
            ./nixos-modules/example/machine.nix
            { networking.hostName = name; }
          ];
        };
    in
    {
      overlays.default = import ./nixos-modules/overlay.nix;

      # The package is built with the flake's own nixpkgs, not with the system's: a Spark's system has CUDA
      # switched on for everything, and with that no cache to take things from.
      nixosModules.default =
        { lib, pkgs, ... }:
        {
          imports = [ ./nixos-modules ];
          services.glm-spark.package =
            lib.mkDefault
              self.packages.${pkgs.stdenv.hostPlatform.system}.glm-spark;
        };

      packages = forEachSystem (pkgs: {
        default = pkgs.glm-spark;
        inherit (pkgs) glm-spark glm-spark-demo;
        # The stand-in engine is part of the package; this is only its name.
        glm-spark-standin = pkgs.glm-spark // {
          meta = pkgs.glm-spark.meta // {
            mainProgram = "glm-spark-standin";
          };
        };
        inherit (pkgs.python3Packages) pyverbs;
      });

      apps = forEachSystem (pkgs: rec {
        default = demo;
        demo = {
          type = "app";
          program = lib.getExe pkgs.glm-spark-demo;
          meta.description = "Two Sparks on this machine, live, with a stand-in engine";
        };
      });

      # A pair and a trio, each from one text; only the host name differs.
      nixosConfigurations = {
        spark-1 = host ./nixos-modules/example/pair.nix "spark-1";
        spark-2 = host ./nixos-modules/example/pair.nix "spark-2";
        three-spark-1 = host ./nixos-modules/example/three.nix "spark-1";
        three-spark-2 = host ./nixos-modules/example/three.nix "spark-2";
        three-spark-3 = host ./nixos-modules/example/three.nix "spark-3";
      };

      templates.default = {
        path = ./nixos-modules/template;
        description = "Two DGX Sparks that serve GLM-5.3-Flash";
        welcomeText = ''
          Set the names, the addresses and your user in sparks.nix; what else there is to do, step by step, is in
          docs/install-nixos.md of glm-spark.
        '';
      };

      checks = forEachSystem (
        pkgs:
        {
          # With the Python tests in its check phase.
          inherit (pkgs) glm-spark;
          units = import ./tests/nix/units-check.nix {
            inherit nixpkgs pkgs;
            module = ./nixos-modules;
          };
          two-sparks = import ./tests/nix/vm.nix {
            inherit pkgs;
            module = self.nixosModules.default;
            count = 2;
          };
          three-sparks = import ./tests/nix/vm.nix {
            inherit pkgs;
            module = self.nixosModules.default;
            count = 3;
          };
        }
        // lib.optionalAttrs (pkgs.stdenv.hostPlatform.system == "aarch64-linux") {
          # Evaluated to the last option, kernel and driver included; nothing of it is built.
          hosts = pkgs.writeText "hosts" (
            lib.concatMapStringsSep "\n" (
              configuration: builtins.unsafeDiscardStringContext configuration.config.system.build.toplevel.drvPath
            ) (lib.attrValues self.nixosConfigurations)
          );
        }
      );

      devShells = forEachSystem (pkgs: {
        default = pkgs.mkShell {
          packages = [
            (pkgs.python3.withPackages (
              python:
              import ./daemon/requires.nix python
              ++ [
                python.hypothesis
                python.mypy
                python.pytest
                python.pytest-asyncio
              ]
            ))
            pkgs.iproute2
            pkgs.nixfmt-tree
            pkgs.ruff
            pkgs.util-linux
          ];
          shellHook = ''
            export PYTHONPATH="$PWD/daemon:$PWD''${PYTHONPATH:+:$PYTHONPATH}"
          '';
        };
      });

      formatter = forEachSystem (pkgs: pkgs.nixfmt-tree);
    };
}
