# pyverbs, the Python binding of libibverbs. nixpkgs builds rdma-core without it.
#
# It is a package of its own, not an override of rdma-core: an override would rebuild everything that
# depends on rdma-core and lose the binary cache for all of it. It takes rdma-core's own source and version,
# because the binding and the provider libraries are compiled against one private ABI version; the libraries
# it needs lie below its own $out, so that the two can never come from different releases.
{
  lib,
  toPythonModule,
  stdenv,
  python,
  cython,
  rdma-core,
  # From pkgs, not from the Python scope: there these names are the wheels of the same name, without the
  # set-up hooks a build needs.
  cmake,
  ninja,
  pkg-config,
  libnl,
  udev,
}:

toPythonModule (
  stdenv.mkDerivation {
    pname = "pyverbs";
    inherit (rdma-core) version src;

    strictDeps = true;

    nativeBuildInputs = [
      cmake
      ninja
      pkg-config
    ];

    buildInputs = [
      libnl
      python
      udev
    ];

    cmakeFlags = [
      (lib.cmakeBool "NO_PYVERBS" false)
      (lib.cmakeBool "NO_MAN_PAGES" true)
      # The build asks this interpreter for Cython and, finding none, leaves pyverbs out without a word.
      (lib.cmakeFeature "PYTHON_EXECUTABLE" (python.withPackages (_: [ cython ])).interpreter)
      (lib.cmakeFeature "CMAKE_INSTALL_RPATH" "${placeholder "out"}/lib")
      (lib.cmakeFeature "CMAKE_INSTALL_PYTHON_ARCH_LIB" "${placeholder "out"}/${python.sitePackages}")
      (lib.cmakeFeature "CMAKE_INSTALL_RUNDIR" "/run")
      (lib.cmakeFeature "CMAKE_INSTALL_SHAREDSTATEDIR" "/var/lib")
      (lib.cmakeFeature "SYSUSERS_DIR" "${placeholder "out"}/lib/sysusers.d")
    ];

    # The binding, the libraries and their providers stay; the daemons and tools that come with them do not,
    # they are rdma-core's to install.
    postInstall = ''
      rm -rf "$out"/{bin,sbin,libexec,share,include}
      rm -rf "$out"/lib/{ibacm,rsocket,pkgconfig,systemd,udev,sysusers.d}
      find "$out/etc" -mindepth 1 -maxdepth 1 ! -name libibverbs.d -exec rm -rf {} +
    '';

    # A module that does not import is what this package must never become.
    doInstallCheck = true;
    installCheckPhase = ''
      runHook preInstallCheck
      PYTHONPATH="$out/${python.sitePackages}" ${python.interpreter} -c \
        'import pyverbs.device, pyverbs.pd, pyverbs.mr, pyverbs.cq, pyverbs.qp'
      runHook postInstallCheck
    '';

    meta = {
      description = "Python binding of libibverbs";
      homepage = "https://github.com/linux-rdma/rdma-core";
      license = [
        lib.licenses.gpl2Only
        lib.licenses.bsd2
      ];
      platforms = lib.platforms.linux;
    };
  }
)
