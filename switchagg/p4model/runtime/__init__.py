"""Runs typed P4 programs: each is translated once to Python functions, which then take packets.

    ir.Program ─► emit.Module                    one Python module a program
                    layouts                      headers and structs as classes with slots
                    expressions, bit_strings, lvalues, calls, statements
                    blocks, parsers, table_code  controls, parsers and tables as functions
                    lowering_*                   how calls of externs are written
                  v1model, tna                   the switch round them (and *_target: externs)
                    tables, profiles, externs, replication, hashes    state, as the control plane sees it

    stf, stf_run                                 p4c's test format

`switch.open_switch` is where to begin.
"""
