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
  table = path: lib.concatStringsSep "." (lib.init (lib.splitString "." path));
  # Names of known keys that were probably meant: below it when it is a table, else with the same last part, else
  # in its table with the same beginning, else all of its table.
  near =
    path:
    let
      among = keep: lib.filter keep (lib.attrNames known);
      beginning = builtins.substring 0 3 (last path);
      below = among (lib.hasPrefix "${path}.");
      same = among (name: last name == last path);
      siblings = among (name: table name != "" && table name == table path);
      alike = lib.filter (name: lib.hasPrefix beginning (last name)) siblings;
    in
    builtins.head (
      lib.filter (names: names != [ ]) [
        below
        same
        alike
        siblings
      ]
      ++ [ [ ] ]
    );

  # A table in the place of a value.
  underValue = leaf: known ? ${table leaf.path};

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
  ) (lib.filter (leaf: !(known ? ${leaf.path} || underValue leaf || looksSecret leaf.path)) found);

  illTyped = map (path: "${path}: a value of kind ${known.${path}.kind} is wanted") (
    lib.unique (
      map (leaf: table leaf.path) (lib.filter underValue found)
      ++ map (leaf: leaf.path) (
        lib.filter (leaf: known ? ${leaf.path} && !(anyFits known.${leaf.path} leaf.value)) found
      )
    )
  );
}
