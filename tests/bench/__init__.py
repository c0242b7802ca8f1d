"""`./dev bench`: how fast the daemon starts, notices, idles and passes on, on this machine."""
