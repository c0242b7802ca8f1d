# Which settings the daemon would refuse. Pure: names and kinds come from known-settings.json, which is written
# from the daemon's model. Values, and how they depend on each other, are the daemon's to judge.
{
  lib,
  known,
  settings,
}:

let
  # Tables whose keys are the owner's: everything below is a value.
  free = path: (known.${path} or { }).kind or "" == "table";

  # { path; value; } of every value, tables opened up.
  leaves =
    prefix: value:
    if builtins.isAttrs value && !(free prefix) then
      lib.concatMap (name: leaves (if prefix == "" then name else "${prefix}.${name}") value.${name}) (
        lib.attrNames value
      )
    else
      [
        {
          path = prefix;
          inherit value;
        }
      ];

  found = lib.filter (leaf: leaf.path != "node") (leaves "" settings);

  fits =
    kind: value:
    {
      string = builtins.isString value;
      boolean = builtins.isBool value;
      integer = builtins.isInt value;
      number = builtins.isInt value || builtins.isFloat value;
      array = builtins.isList value;
      table = builtins.isAttrs value;
    }
    .${kind};
  anyFits = entry: value: lib.any (kind: fits kind value) (lib.splitString " or " entry.kind);

  last = path: lib.last (lib.splitString "." path);
  # Names of known keys with the same last part, or in the same table: what was probably meant.
  near =
    path:
    let
      same = lib.filter (name: last name == last path) (lib.attrNames known);
      table = lib.concatStringsSep "." (lib.init (lib.splitString "." path));
      siblings = lib.filter (name: table != "" && lib.hasPrefix "${table}." name) (lib.attrNames known);
    in
    if same != [ ] then same else siblings;

  looksSecret =
    path:
    let
      name = lib.toLower (last path);
    in
    builtins.match "(.*[_-])?(token|secret|password|passphrase|credential|api_?keys?|keys?)" name != null;

  deepNames =
    prefix: value:
    if builtins.isAttrs value then
      lib.concatMap (
        name:
        let
          path = if prefix == "" then name else "${prefix}.${name}";
        in
        [ path ] ++ deepNames path value.${name}
      ) (lib.attrNames value)
    else
      [ ];
in
rec {
  # Paths below settings, at any depth.
  secret = lib.filter (path: looksSecret path && !(known ? ${path})) (deepNames "" settings);

  # Sentences.
  unknown = map (
    leaf:
    "${leaf.path} is not a setting"
    + (
      let
        meant = near leaf.path;
      in
      lib.optionalString (meant != [ ]) " (known: ${lib.concatStringsSep ", " meant})"
    )
  ) (lib.filter (leaf: !(known ? ${leaf.path}) && !(looksSecret leaf.path)) found);

  illTyped = map (leaf: "${leaf.path}: a value of kind ${known.${leaf.path}.kind} is wanted") (
    lib.filter (leaf: known ? ${leaf.path} && !(anyFits known.${leaf.path} leaf.value)) found
  );
}
