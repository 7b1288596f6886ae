"""Kills switches in the middle of all-reduces, with real processes; the results must not show it."""
