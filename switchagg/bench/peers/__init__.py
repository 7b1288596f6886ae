"""The systems that are measured, a file each: the parent's side, `Peer`, and a rank's, `open_endpoint`."""
