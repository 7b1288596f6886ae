"""Differential fuzzing: random packets and random table contents, the native slot table against a P4 device.

    Drawer --steps--> Pair --+--> native slot table --+--> the same packets, counters, slots?
       ^                     `--> frames --> device -+     | no
       `---- what the switch sent ----+                     `--> shrink --> a test case to paste

`make fuzz` runs it; `python -m tests.p4.fuzz --help` tells the rest.
"""
