"""What holds for every test."""

from __future__ import annotations

import signal

# A shell starts what it puts in the background with SIGINT ignored, nohup with SIGHUP, and children inherit
# that: whatever the tests signal would never hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
