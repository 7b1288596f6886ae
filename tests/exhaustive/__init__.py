"""Every schedule of slots, windows, changes of membership and failovers, for a few workers and slots.

    search.py        breadth-first search over states, with the shortest way to one that is wrong
    programs.py      the reference programs, each distinct step run once; and with a mistake put in
    one_switch.py    workers and one switch
    tree.py          workers, leaves and a root
    mistakes.py      mistakes in the rules, each of which must be found

    membership.py    workers, one switch and a controller, while workers are lost, leave and come back
    controller.py    the controller's book of jobs and members' state machines, each distinct call made once
    generations.py   the slots of one generation
    member.py        the state of a member
    engine_rules.py  the engine's part in a change of membership
    change_mistakes.py  mistakes in changes of membership

    failover.py      workers, switches and a controller, while switches die and come back
    failover_rules.py  the engine's part in a failover
    failover_mistakes.py  mistakes in failovers

    tla.py           docs/protocol.tla, and mistakes in it, with TLC: `make tla`
    __main__.py      all configurations: `make exhaustive`

The network is the set of all packets ever sent: each may arrive at any time, again and again, in any order,
or never. That is loss, duplication and reordering without a bound, and a retransmission adds nothing to it.
What a worker has sent follows from how far it is, so the set needs no room in a state.
"""
