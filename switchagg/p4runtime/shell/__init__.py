"""p4runtime-shell on a running switch, in an environment of its own (`switchagg shell`)."""
