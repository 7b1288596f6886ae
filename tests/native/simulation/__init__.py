"""Jobs, switches and a network in one process and in virtual time, all drawn from a seed.

The engines, windows, slot tables and packet loops are the product's own, compiled with a clock that only the
simulation moves. A worker's program is a fiber: it stops where its port would wait.

    seed -> draw.cpp -> Scenario -> run.cpp   undisturbed, then with all faults
                                      |
                                  network.cpp   links, inboxes, faults, timeline, capture
"""
