"""Drivers: `base.SwitchDriver` is the interface, with one file per kind of switch."""
