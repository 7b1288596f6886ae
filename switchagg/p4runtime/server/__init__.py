"""A P4Runtime 1.4 server, in front of the P4 model or the native engine.

    client ─ gRPC ─ service ─┬─ arbitration      election of the primary (no I/O)
                             ├─ entities ─┬─ tables, profiles, replication, counters, value_sets, digests
                             │            └─ codec, schema     messages and ids to values
                             └─ device ─┬─ model_device   the P4 model
                                        └─ native         the native engine

`server` serves a device over gRPC and by interfaces. The package needs the extra `p4runtime`; nothing
outside of it imports it before a switch is to serve.
"""
