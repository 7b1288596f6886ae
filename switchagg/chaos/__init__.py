"""`switchagg chaos`: jobs in real processes on loopback, faults at random moments, and every result checked.

cli/chaos --> run: Chaos ---- starts ----> sites: switch, controller ---- joins, sums ----> worker: ranks
                |   ^                         |                                               |
                |   +------------- lines: results, errors ------------------------------------+
                +--> faults (drawn from the seed) --> signals, socket filters (kernel), full disk
                +--> results: the same at every rank?
"""
