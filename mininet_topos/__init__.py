"""Mininet topologies in which switches aggregate, with a switch of one's choice.

    mn --custom mininet_topos/custom.py --topo rack,4 --switch native

`custom.py` is for `mn --custom`; `topologies`, `switches`, `hosts`, `controllers` and `links` are for
programs that use Mininet's Python interface. Nothing here needs more than Mininet and Python's standard
library: `mn` runs in the system's Python, where switchagg is not installed. Switches and the controller are
child processes (`command`), everything that is made carries a mark (`marks`), by which what a killed run
has left is found and removed.
"""
