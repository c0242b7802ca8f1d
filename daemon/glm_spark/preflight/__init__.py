"""Checks before a start, one file each; they read and probe, and change nothing."""
