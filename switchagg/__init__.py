"""The switch side of switchagg: wire format, emulator, control plane and command line."""

__version__ = "0.1.0"
