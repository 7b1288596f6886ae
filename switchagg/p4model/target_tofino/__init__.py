"""What a Tofino 1 can do with a program: rules that it must keep, and an estimate of what it costs.

    program ─ flow ─► logical tables, in order, with what each reads and writes
                        ├ registers   each register once a packet, four actions a register       ─► findings
                        ├ salu        what a stateful ALU can compute                             ─► findings
                        └ stages      dependencies and the memory of a stage (memory) ─► stages   ─► report

The rules are the chip's, and a program that breaks one is refused by the vendor's compiler too. The
estimate is ours: the compiler packs fields, splits and merges tables by searching, and knows more of the
chip than is public.
"""
