# The daemon, its command line and the stand-in engine, with the unit tests in the check phase.
{
  lib,
  python3Packages,
  gitMinimal,
  procps,
  util-linux,
}:

let
  project = (lib.importTOML ./pyproject.toml).project;
in
python3Packages.buildPythonApplication {
  pname = project.name;
  inherit (project) version;
  pyproject = true;

  src = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [
      ./pyproject.toml
      ./glm_spark
      ../config.toml.example
      ../tests
    ];
  };
  sourceRoot = "source/daemon";

  build-system = [ python3Packages.setuptools ];
  dependencies = import ./requires.nix python3Packages;

  nativeCheckInputs = [
    python3Packages.hypothesis
    python3Packages.pytest-asyncio
    python3Packages.pytestCheckHook
    gitMinimal
    procps
    util-linux
  ];
  pytestFlags = [
    "-c"
    "../tests/pytest.ini"
  ];
  enabledTestPaths = [ "../tests/unit" ];
  # Network namespaces are not there in a build, and the documents are no part of `src`.
  disabledTestMarks = [ "namespaces" ];
  disabledTestPaths = [
    "../tests/unit/demo"
    "../tests/unit/docs"
    "../tests/unit/sparks"
  ];
  # The tests find the programs where a checkout has them, and keep their state below HOME.
  preCheck = ''
    export HOME="$TMPDIR"
    mkdir -p ../.venv
    ln -s "$out/bin" ../.venv/bin
  '';

  pythonImportsCheck = [
    "glm_spark"
    "pyverbs.device"
  ];

  meta = {
    inherit (project) description;
    license = lib.licenses.asl20;
    mainProgram = "glm-spark";
    platforms = [
      "aarch64-linux"
      "x86_64-linux"
    ];
  };
}
