"""How the controller reaches a switch: one interface, one file per way."""
