# IPv4 addresses with a prefix length, as much of them as the checks need. Pure.
{ lib }:

let
  octets =
    text:
    let
      found = builtins.match "([0-9]{1,3})\\.([0-9]{1,3})\\.([0-9]{1,3})\\.([0-9]{1,3})" text;
      numbers = map lib.toIntBase10 found;
    in
    if found == null || !(lib.all (number: number <= 255) numbers) then null else numbers;

  toNumber = lib.foldl' (sum: octet: sum * 256 + octet) 0;

  power = exponent: if exponent == 0 then 1 else 2 * power (exponent - 1);

  split = builtins.match "([0-9.]+)/([0-9]{1,2})";
in
rec {
  isAddress = text: octets text != null;

  # "192.168.100.1/24" -> { address; length; subnet }, or null when it is not one.
  parse =
    text:
    let
      parts = split text;
      address = builtins.elemAt parts 0;
      length = lib.toIntBase10 (builtins.elemAt parts 1);
    in
    if parts == null || !(isAddress address) || length < 1 || length > 32 then
      null
    else
      {
        inherit address length;
        subnet = "${toString (toNumber (octets address) / power (32 - length))}/${toString length}";
      };

  # Whether an address lies in the subnet of what `parse` gave.
  holds =
    address: network:
    network.subnet == (parse "${address}/${toString network.length}").subnet;

  isLinkLocal = text: lib.hasPrefix "169.254." text;
}
