"""The native modules under address and undefined-behaviour sanitizers, in Python's processes."""
