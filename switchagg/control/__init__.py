"""The control plane: who may use which slots of the switch, and for how long.

jobs.py        the life cycle of a job, no I/O       allocator.py  slot ranges, no I/O
controller.py  runs the life cycle against a driver  drivers/      how a switch is reached
service.py     the HTTP/JSON face                    client.py     its client, for the command line
embedded.py    switch and controller in one process
"""
