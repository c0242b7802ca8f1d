# The settings that have an option of their own, the hidden ones too, by their path.
let
  lib = import ./lib.nix;
  inherit ((import ./eval.nix { }) [ ]) options;
  walk =
    prefix: tree:
    lib.concatMap (
      key:
      if (tree.${key}._type or "") == "option" then
        [ "${prefix}${key}" ]
      else
        walk "${prefix}${key}." tree.${key}
    ) (lib.attrNames tree);
in
walk "" options.services.glm-spark.settings.type.options
