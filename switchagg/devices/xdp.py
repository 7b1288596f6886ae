"""Explains why AF_XDP does not work. The sockets themselves are in `switchagg/native/shared/xdp_device.h`."""

from __future__ import annotations

import errno
from typing import Final

_HINTS: Final = {
    errno.EPERM: "it needs root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF",
    errno.EACCES: "it needs root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF",
    errno.EAFNOSUPPORT: "it takes an Ethernet interface, and a kernel with CONFIG_XDP_SOCKETS",
    errno.EBUSY: "one process at a time has an interface; `ip link` shows its program (prog/xdp)",
    errno.EMSGSIZE: "give the interface a smaller MTU, or the job fewer words a packet",
    errno.EADDRNOTAVAIL: "name the address of one interface",
    errno.ENOBUFS: "raise the limit of locked memory (ulimit -l)",
}


def xdp_refusal(error: OSError) -> str:
    """Returns what the kernel refused and, where that is known, what to do about it."""
    hint = _HINTS.get(error.errno or 0)
    return f"{error.strerror}; {hint}" if hint else str(error.strerror)
