"""Whole systems in virtual time, from one seed; see docs/verification.md."""
