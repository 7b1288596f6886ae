"""Networks of `switchagg topo`: building and removing, faulty links, captures, the check, pictures."""
