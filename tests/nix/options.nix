# Our options as data, for docs/options.md.
let
  lib = import ./lib.nix;
  inherit ((import ./eval.nix { }) [ ]) options;

  text = value: if value ? outPath then "pkgs.glm-spark" else lib.toNix value;

  describe =
    name: option:
    [
      (
        {
          inherit name;
          inherit (option) description;
          type = option.type.name;
        }
        // lib.optionalAttrs (option ? default) { default = text option.default; }
        // lib.optionalAttrs (option ? example) { example = text option.example; }
      )
    ]
    ++ below name option.type;

  below =
    name: type:
    if type ? options then
      walk name type.options
    else if type ? element then
      below "${name}.${type.placeholder}" type.element
    else
      [ ];

  walk =
    name: tree:
    lib.concatMap (
      key:
      let
        value = tree.${key};
        here = "${name}.${key}";
      in
      if (value._type or "") != "option" then
        walk here value
      else if value.internal or false then
        [ ]
      else
        describe here value
    ) (lib.attrNames tree);
in
walk "services.glm-spark" options.services.glm-spark
