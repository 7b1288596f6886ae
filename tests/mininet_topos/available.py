"""The reason why networks of Mininet cannot be built here, if there is one."""

from __future__ import annotations

import functools

from switchagg.errors import UsageError
from switchagg.topo import mininet_module
from tests.switchagg.control.drivers.rack import has_namespaces


@functools.cache
def why_no_networks() -> str:
    """Returns the reason to skip a test that needs one; empty if they can be built."""
    if not has_namespaces():
        return "no network namespaces with bridges here (unshare, nsenter, ip, ethtool)"
    try:
        mininet_module.load()
    except UsageError as error:
        return str(error)
    return ""
