"""Signal handling of the test process: SIGINT and SIGHUP act as they do in a foreground shell."""

from __future__ import annotations

import signal

# A shell ignores SIGINT in background jobs, nohup ignores SIGHUP, and children inherit it: processes that the
# tests signal would never notice.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
