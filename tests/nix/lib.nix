# A stand-in for nixpkgs' lib, for machines that have an evaluator but no nixpkgs. It is not NixOS's module system
# and proves nothing about NixOS: it holds only what nixos-modules/ uses, so that a function or an option that
# nobody declared is an error, and it checks types, merges definitions, and lets the module be evaluated to data.
let
  inherit (builtins)
    all
    any
    attrNames
    attrValues
    concatLists
    concatMap
    concatStringsSep
    elem
    elemAt
    filter
    foldl'
    genList
    hasAttr
    head
    isAttrs
    isBool
    isFunction
    isInt
    isList
    isString
    length
    listToAttrs
    mapAttrs
    removeAttrs
    stringLength
    substring
    tail
    ;

  nameValuePair = name: value: { inherit name value; };
  filterAttrs =
    keep: set:
    listToAttrs (
      concatMap (name: if keep name set.${name} then [ (nameValuePair name set.${name}) ] else [ ]) (
        attrNames set
      )
    );
  unique = foldl' (seen: item: if elem item seen then seen else seen ++ [ item ]) [ ];
  take = count: list: genList (elemAt list) (if count > length list then length list else count);
  drop =
    count: list:
    if count >= length list then
      [ ]
    else
      genList (index: elemAt list (index + count)) (length list - count);
  show = path: concatStringsSep "." path;

  # --- definitions -------------------------------------------------------------------------------------------

  tagged = tag: value: isAttrs value && (value._type or "") == tag;

  # A definition opened up: [ { priority; value; } ], conditions decided.
  discharge =
    priority: value:
    if tagged "if" value then
      if value.condition then discharge priority value.content else [ ]
    else if tagged "merge" value then
      concatMap (discharge priority) value.contents
    else if tagged "override" value then
      discharge value.priority value.content
    else
      [ { inherit priority value; } ];

  strongest =
    definitions:
    let
      best = foldl' (low: d: if d.priority < low then d.priority else low) 10000 definitions;
    in
    map (d: d.value) (filter (d: d.priority == best) definitions);

  # --- types -------------------------------------------------------------------------------------------------

  # A type checks one value and merges several; `nested` types merge definitions, priorities and all.
  leaf = name: check: {
    inherit name check;
    merge =
      path: values:
      if all (value: value == head values) values then
        head values
      else
        throw "The option `${show path}' has conflicting definitions.";
  };

  mergeValue =
    type: path: definitions:
    let
      values = strongest definitions;
      bad = filter (value: !(type.check value)) values;
    in
    if type ? nested then
      type.nested path definitions
    else if bad != [ ] then
      throw "A definition for option `${show path}' is not of type `${type.name}'."
    else
      type.merge path values;

  integer = name: check: leaf name (value: isInt value && check value);

  types = rec {
    str = leaf "string" isString;
    lines = str // {
      name = "lines";
      merge = _: concatStringsSep "\n";
    };
    bool = leaf "boolean" isBool;
    int = integer "signed integer" (_: true);
    port = integer "16 bit unsigned integer" (value: value >= 0 && value <= 65535);
    ints.between = low: high: integer "integer between ${toString low} and ${toString high}" (
      value: value >= low && value <= high
    );
    ints.positive = integer "positive integer" (value: value > 0);
    package = leaf "package" (value: isAttrs value && value ? outPath);
    raw = leaf "raw value" (_: true);
    enum = values: leaf "one of ${builtins.toJSON values}" (value: elem value values);
    nullOr =
      type:
      type
      // {
        name = "null or ${type.name}";
        check = value: value == null || type.check value;
        merge = path: values: if elem null values then null else type.merge path values;
      };
    either = one: other: {
      name = "${one.name} or ${other.name}";
      check = value: one.check value || other.check value;
      merge = path: values: if all one.check values then one.merge path values else other.merge path values;
    };
    listOf = type: {
      name = "list of ${type.name}";
      element = type;
      placeholder = "*";
      check = isList;
      merge =
        path: values:
        let
          items = concatLists values;
        in
        genList (
          index:
          mergeValue type (path ++ [ "[${toString index}]" ]) (discharge 100 (elemAt items index))
        ) (length items);
    };
    attrsOf = type: rec {
      name = "attribute set of ${type.name}";
      element = type;
      placeholder = "<name>";
      check = isAttrs;
      merge =
        path: values:
        nested path (map (value: { priority = 100; inherit value; }) values);
      nested =
        path: definitions:
        let
          sets = strongest definitions;
          bad = filter (value: !(isAttrs value)) sets;
          names = unique (concatMap attrNames sets);
          defined = name: concatMap (set: if set ? ${name} then discharge 100 set.${name} else [ ]) sets;
        in
        if bad != [ ] then
          throw "A definition for option `${show path}' is not of type `${name}'."
        else
          mapAttrs (key: _: mergeValue type (path ++ [ key ]) (defined key)) (
            filterAttrs (key: _: defined key != [ ]) (listToAttrs (map (key: nameValuePair key null) names))
          );
    };
    # Any data, merged by name.
    data =
      let
        self = {
          name = "data";
          check = value: !(isFunction value);
          merge =
            path: values:
            if all isAttrs values && !(any (value: value ? outPath) values) then
              (attrsOf self).merge path values
            else if all isList values then
              concatLists values
            else
              (leaf "data" (_: true)).merge path values;
          nested =
            path: definitions:
            let
              values = strongest definitions;
            in
            if all isAttrs values && !(any (value: value ? outPath) values) then
              (attrsOf self).nested path definitions
            else
              self.merge path values;
        };
      in
      self;
    submodule = module: {
      name = "submodule";
      check = isAttrs;
      options = module.options;
      merge = path: values: (evaluate path module (map (value: { priority = 100; inherit value; }) values));
      nested = path: definitions: evaluate path module definitions;
    };
  };

  # --- options and their values ------------------------------------------------------------------------------

  isOption = tagged "option";

  valueOf =
    path: option: definitions:
    if definitions != [ ] then
      if (option.readOnly or false) && length definitions > 1 then
        throw "The option `${show path}' is read-only, but it is set ${toString (length definitions)} times."
      else
        mergeValue option.type path (
          definitions
          # A submodule's defaults come from its own options; elsewhere a default is the weakest definition.
          ++ (
            if option ? default && !(option.type ? options) then
              [
                {
                  priority = 1500;
                  value = option.default;
                }
              ]
            else
              [ ]
          )
        )
    else if option ? default then
      mergeValue option.type path [
        {
          priority = 1500;
          value = option.default;
        }
      ]
    else
      throw "The option `${show path}' was accessed but has no value defined. Try setting the option.";

  # Definitions of a set opened up to sets, conditions and priorities moved to what is in them: which names are
  # defined must not depend on values.
  open =
    path: value:
    let
      inside = wrap: map (mapAttrs (_: wrap)) (open path value.content or value.contents);
    in
    if tagged "if" value then
      inside (content: value // { inherit content; })
    else if tagged "override" value then
      inside (content: value // { inherit content; })
    else if tagged "merge" value then
      concatMap (open path) value.contents
    else if isAttrs value then
      [ value ]
    else
      throw "A definition for option `${show path}' is not of type `attribute set'.";

  # Values of a tree of options under the definitions given for the whole tree.
  tree =
    path: freeform: options: definitions:
    let
      sets = concatMap (open path) definitions;
      below = name: concatMap (set: if set ? ${name} then [ set.${name} ] else [ ]) sets;
      decided = name: concatMap (discharge 100) (below name);
      declared = mapAttrs (
        name: option:
        if isOption option then
          valueOf (path ++ [ name ]) option (decided name)
        else
          tree (path ++ [ name ]) freeform option (below name)
      ) options;
      strange = filter (name: !(hasAttr name options)) (unique (concatMap attrNames sets));
      extra = listToAttrs (
        concatMap (
          name:
          if decided name == [ ] then
            [ ]
          else
            [ (nameValuePair name (mergeValue freeform (path ++ [ name ]) (decided name))) ]
        ) strange
      );
    in
    if freeform != null then
      declared // extra
    else if strange != [ ] then
      throw "The option `${show (path ++ [ (head strange) ])}' does not exist."
    else
      declared;

  evaluate =
    path: module: definitions:
    tree path (module.freeformType or null) module.options (map (d: d.value) definitions);

  # --- modules -----------------------------------------------------------------------------------------------

  combine =
    path: one: other:
    one
    // mapAttrs (
      name: value:
      if !(one ? ${name}) then
        value
      else if isOption value || isOption one.${name} then
        throw "The option `${show (path ++ [ name ])}' is declared twice."
      else
        combine (path ++ [ name ]) one.${name} value
    ) other;

  evalModules =
    { modules, specialArgs }:
    let
      load =
        module:
        let
          applied = if isFunction module then module (specialArgs // { inherit config options; }) else module;
          body =
            if applied ? options || applied ? config then
              applied
            else
              {
                imports = applied.imports or [ ];
                config = removeAttrs applied [ "imports" ];
              };
          strange = attrNames (
            removeAttrs body [
              "options"
              "config"
              "imports"
            ]
          );
        in
        if builtins.isPath module || isString module then
          load (import module)
        else if strange != [ ] then
          throw "A module has the unknown part ${head strange}."
        else
          [ body ] ++ concatMap load (body.imports or [ ]);
      loaded = concatMap load modules;
      options = foldl' (combine [ ]) { } (map (body: body.options or { }) loaded);
      config = tree [ ] null options (map (body: body.config or { }) loaded);
    in
    {
      inherit config options;
    };

  # A value as it would be written.
  toNix =
    value:
    if isAttrs value then
      "{ "
      + concatStringsSep "" (
        map (
          name:
          "${if builtins.match "[A-Za-z_][A-Za-z0-9_-]*" name == null then builtins.toJSON name else name} = ${
            toNix value.${name}
          }; "
        ) (attrNames value)
      )
      + "}"
    else if isList value then
      if value == [ ] then "[ ]" else "[ ${concatStringsSep " " (map toNix value)} ]"
    else
      builtins.toJSON value;

  mkOption = attributes: { _type = "option"; } // attributes;
  override = priority: content: {
    _type = "override";
    inherit priority content;
  };
in
{
  inherit
    all
    any
    attrNames
    attrValues
    concatMap
    concatStringsSep
    drop
    elem
    evalModules
    filter
    filterAttrs
    foldl'
    head
    length
    mapAttrs
    mkOption
    nameValuePair
    tail
    take
    toNix
    types
    unique
    ;

  mkIf = condition: content: {
    _type = "if";
    inherit condition content;
  };
  mkMerge = contents: {
    _type = "merge";
    inherit contents;
  };
  mkDefault = override 1000;
  mkForce = override 50;
  mkEnableOption =
    what:
    mkOption {
      type = types.bool;
      default = false;
      example = true;
      description = "Whether to enable ${what}.";
    };
  mkPackageOption =
    pkgs: name: _:
    mkOption {
      type = types.package;
      default = pkgs.${name};
      description = "The ${name} package to use.";
    };

  optional = condition: item: if condition then [ item ] else [ ];
  optionals = condition: items: if condition then items else [ ];
  optionalAttrs = condition: set: if condition then set else { };
  optionalString = condition: text: if condition then text else "";
  init = list: take (length list - 1) list;
  last = list: elemAt list (length list - 1);
  min = one: other: if one < other then one else other;
  genAttrs = names: make: listToAttrs (map (name: nameValuePair name (make name)) names);
  mapAttrs' =
    make: set:
    listToAttrs (map (name: make name set.${name}) (attrNames set));
  mapAttrsToList = make: set: map (name: make name set.${name}) (attrNames set);
  concatMapStrings = make: list: concatStringsSep "" (map make list);
  hasPrefix = prefix: text: substring 0 (stringLength prefix) text == prefix;
  splitString =
    separator: text:
    let
      escaped = builtins.replaceStrings [ "." "/" ] [ "\\." "/" ] separator;
    in
    filter isString (builtins.split escaped text);
  toLower =
    let
      letters = text: genList (index: substring index 1 text) (stringLength text);
    in
    builtins.replaceStrings (letters "ABCDEFGHIJKLMNOPQRSTUVWXYZ") (letters "abcdefghijklmnopqrstuvwxyz");
  toIntBase10 =
    text:
    let
      digits = builtins.match "0*([0-9]+)" text;
    in
    builtins.fromJSON (head digits);
  importJSON = path: builtins.fromJSON (builtins.readFile path);
  getExe = package: "${package}/bin/${package.meta.mainProgram}";
}
