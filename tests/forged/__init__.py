"""Packets that another process forges while a job runs: nothing changes, and each is counted."""
