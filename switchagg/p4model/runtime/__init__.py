"""Runs typed P4 programs: each is translated once to Python functions, which then take packets.

    ir.Program ─► emit.Module                  one Python module a program
                    header_classes             headers and structs as classes with slots
                    blocks, expressions        parsers, controls, tables, statements, expressions as functions
                    extern_calls               calls of externs: what architectures share
                    tables                     tables and value sets, filled with the source's entries
                  switch                       the switch; v1model, tna: an architecture's, for one packet
                  open                         opens a program's switch
                    values                     packets, header stacks, numbers in translated code
                    v1model_externs, tna_externs, hashes    an architecture's externs: objects and calls

    stf      p4c's test format
    pcap     packets of a capture

Tables, counters and groups are in `p4entities`. `open.open_switch` is the place to begin.
"""
