# The project's packages. pyverbs joins every Python's scope; rdma-core stays as it is.
final: prev: {
  pythonPackagesExtensions = prev.pythonPackagesExtensions ++ [
    (pythonFinal: _: {
      pyverbs = pythonFinal.callPackage ../daemon/pyverbs.nix {
        inherit (final)
          cmake
          libnl
          ninja
          pkg-config
          rdma-core
          udev
          ;
      };
    })
  ];

  glm-spark = final.callPackage ../daemon/package.nix { };
  glm-spark-demo = final.callPackage ./demo.nix { };
}
