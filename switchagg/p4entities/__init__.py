"""State of a P4 switch that its control plane writes: without packets, without P4 sources, without P4Runtime.

    matches        key fields, matches, parameters of actions, value sets of parsers
    tables         actions, entries, action profiles, match-action tables
    counters       counters, meters, registers
    replication    multicast groups and clone sessions

The P4 model looks packets up here; the P4Runtime server writes and reads here, also in front of the native
engine.
"""
