"""Mininet topologies with switches that aggregate.

    mn --custom mininet_topos/custom.py --topo rack,4 --switch native

`custom.py` is for `mn --custom`; `topologies`, `switches`, `hosts`, `controllers` and `links` are for
programs that use Mininet's Python interface. They need nothing but Mininet and Python's standard library,
since `mn` runs in the system's Python, where switchagg is not installed. Switches and the controller are
child processes (`programs`). Every interface, process and folder carries a mark (`marks`), by which the
remains of a killed run are found and removed.
"""
