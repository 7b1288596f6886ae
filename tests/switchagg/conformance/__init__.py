"""One suite of packets in and packets out, for every engine."""
