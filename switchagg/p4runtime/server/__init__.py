"""A P4Runtime 1.4 server in front of the P4 model.

    client ─ gRPC ─ service ─┬─ arbitration      who is primary (no I/O)
                             ├─ pipeline         a program, its P4Info and its switch
                             ├─ entities ─┬─ tables, profiles, replication, counters, value_sets, digests
                             │            └─ values           numbers as byte strings
                             └─ device ─── packet_io          packet-in and packet-out headers

It needs the extra `p4runtime`; nothing outside of this package imports it before a switch is asked to serve.
"""
