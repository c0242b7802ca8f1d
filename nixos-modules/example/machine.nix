# What every NixOS system needs besides: a disk and a boot loader. Yours differs; see the template.
{
  hardware.dgx-spark.enable = true;

  boot.loader.systemd-boot.enable = true;
  boot.loader.efi.canTouchEfiVariables = true;
  fileSystems."/" = {
    device = "/dev/disk/by-label/nixos";
    fsType = "ext4";
  };
  fileSystems."/boot" = {
    device = "/dev/disk/by-label/boot";
    fsType = "vfat";
  };

  services.openssh.enable = true;
  system.stateVersion = "25.11";
}
