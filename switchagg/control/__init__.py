"""The control plane: the jobs of some switches, and the tenants that may order them.

jobs/            the life cycle of jobs on switches, without I/O
controller.py    runs it against drivers, for tenants and members; queries.py answers read-only questions
agent.py         a thread a switch, which calls its driver (drivers/)
store.py         the state that survives a restart; journal.py writes it, and has effects carried out then
service.py       the server of the HTTP API (http/) and of heartbeats; client.py is its client
embedded.py      a switch and its controller in one process
"""
