"""What `switchagg topo` and `mininet_topos` are made of besides Mininet: links that fail, captures, the
check, pictures."""
