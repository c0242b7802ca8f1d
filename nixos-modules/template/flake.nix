# Two DGX Sparks that serve GLM-5.3-Flash. `nix flake lock` writes down the exact revisions of everything below:
# keep flake.lock with this file, and the same in both Sparks.
{
  inputs = {
    glm-spark.url = "git+file:///etc/nixos/glm-spark";
    dgx-spark.follows = "glm-spark/dgx-spark";
    nixpkgs.follows = "glm-spark/nixpkgs";
  };

  outputs =
    {
      nixpkgs,
      dgx-spark,
      glm-spark,
      ...
    }:
    let
      spark =
        name:
        nixpkgs.lib.nixosSystem {
          system = "aarch64-linux";
          modules = [
            dgx-spark.nixosModules.dgx-spark
            glm-spark.nixosModules.default
            ./sparks.nix
            ./hardware-${name}.nix
            { networking.hostName = name; }
          ];
        };
    in
    {
      nixosConfigurations.spark-1 = spark "spark-1";
      nixosConfigurations.spark-2 = spark "spark-2";
    };
}
