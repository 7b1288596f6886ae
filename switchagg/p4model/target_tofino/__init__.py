"""Rules of a Tofino 1 that a program must keep, and an estimate of the resources that it takes.

    program ─ logical_tables ─► logical tables, in order, with the fields that each reads and writes
                ├ registers   one access a packet, four actions, the operations of an ALU    ─► findings
                └ stages      dependencies, and the memory of a stage (resources) ─► stages  ─► report

The rules are the chip's, and the vendor's compiler refuses a program that breaks one. The estimate is ours:
the compiler packs fields, splits and merges tables by searching, and knows more of the chip than is public.
"""
