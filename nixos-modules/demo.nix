# `nix run .#demo`: the same as `./dev demo`. The demo finds the daemon in .venv/bin beside its own source and notes
# there what runs, so that its verbs (kill-rank, cut, ...) find it: a folder of the user's stands in for a checkout.
{
  lib,
  writeShellApplication,
  python3,
  glm-spark,
  iproute2,
  util-linux,
  coreutils,
}:

let
  python = python3.withPackages (_: [ (python3.pkgs.toPythonModule glm-spark) ]);
  source = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [
      ../tests/demo
      ../tests/enclosure
      ../tests/sparks
    ];
  };
in
writeShellApplication {
  name = "glm-spark-demo";
  runtimeInputs = [
    coreutils
    glm-spark
    iproute2
    python
    util-linux
  ];
  text = ''
    folder="''${XDG_CACHE_HOME:-$HOME/.cache}/glm-spark-demo"
    mkdir -p "$folder/.venv/bin"
    cp -rT --no-preserve=mode ${source} "$folder"
    ln -sfn ${lib.getExe glm-spark} "$folder/.venv/bin/glm-spark"
    ln -sfn ${lib.getExe' glm-spark "glm-spark-standin"} "$folder/.venv/bin/glm-spark-standin"
    cd "$folder"
    PYTHONPATH="$folder" exec python3 -m tests.demo "$@"
  '';
}
