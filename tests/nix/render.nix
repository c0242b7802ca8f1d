# A service as the text NixOS would make of it.
lib:

let
  word =
    value:
    if value == true then
      "true"
    else if value == false then
      "false"
    else
      toString value;
  lines =
    section:
    lib.concatMapStrings (
      key:
      let
        value = section.${key};
        values = if builtins.isList value then value else [ value ];
      in
      lib.concatMapStrings (one: "${key}=${word one}\n") values
    ) (lib.attrNames section);
  list = key: values: lib.optionalAttrs (values != [ ]) { ${key} = lib.concatStringsSep " " values; };
  # NixOS writes the triggers to a file and names the file: what counts is that the line changes with them.
  trigger =
    key: values:
    lib.optionalAttrs (values != [ ]) {
      ${key} = builtins.hashString "sha256" (lib.concatMapStrings toString values);
    };
in
service:
"[Unit]\n"
+ lines (
  list "After" service.after
  // list "Wants" service.wants
  // trigger "X-Restart-Triggers" service.restartTriggers
  // trigger "X-Reload-Triggers" service.reloadTriggers
  // {
    Description = service.description;
  }
  // service.unitConfig
)
+ "\n[Service]\n"
+ lib.optionalString (service.path != [ ]) "Environment=\"PATH=${
  lib.concatStringsSep ":" (map (package: "${package}/bin") service.path)
}\"\n"
+ lib.optionalString (!service.restartIfChanged) "X-RestartIfChanged=false\n"
+ lines service.serviceConfig
