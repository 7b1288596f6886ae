"""The command line: `main.py`, and a module a command."""
