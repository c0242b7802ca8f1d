"""Virtual Sparks: QEMU machines with soft-RoCE on both twins, joined by virtual QSFP cables.

Read README.md beside this file for the commands, the timings and the traps.
"""
