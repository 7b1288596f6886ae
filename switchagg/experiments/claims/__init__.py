"""The claims, a file each. `switchagg.experiments.catalog` finds them by their `EXPERIMENT`."""
