"""The claims, a file each. `switchagg.experiments.experiment` finds them by their `EXPERIMENT`."""
