# The daemon, its command line and the stand-in engine, with the unit tests in the check phase.
{
  lib,
  python3Packages,
  pyverbs ? python3Packages.pyverbs,
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
      ../tests/pytest.ini
      ../tests/unit
      (lib.fileset.maybeMissing ../config.toml.example)
    ];
  };
  sourceRoot = "source/daemon";

  build-system = [ python3Packages.setuptools ];

  # The names of pyproject.toml's dependencies, and pyverbs, which no index has in a form that builds.
  dependencies = [
    pyverbs
  ]
  ++ (with python3Packages; [
    aiohttp
    prometheus-client
    pydantic
    pyroute2
    rich
    sdnotify
    tomli
  ]);

  nativeCheckInputs = with python3Packages; [
    hypothesis
    pytest-asyncio
    pytestCheckHook
  ];
  pytestFlags = [
    "-c"
    "../tests/pytest.ini"
    "../tests/unit"
  ];
  # The tests open sockets on loopback and keep their state below HOME.
  preCheck = ''
    export HOME="$TMPDIR"
  '';
  __darwinAllowLocalNetworking = true;

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
