"""The claims, a file each. `switchagg.experiments.catalogue` finds them by their `EXPERIMENT`."""
