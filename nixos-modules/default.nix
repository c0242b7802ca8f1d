# The appliance as NixOS options, a file a topic.
{
  imports = [
    ./options.nix
    ./settings.nix
    ./service.nix
    ./fabric.nix
    ./runtime.nix
    ./storage.nix
    ./firewall.nix
    ./assertions.nix
  ];
}
