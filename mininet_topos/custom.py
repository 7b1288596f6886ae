"""For `mn --custom`: topologies, switches, hosts and a controller that aggregate.

    sudo mn --custom mininet_topos/custom.py --topo rack,4 --switch native    (`switchagg topo custom` prints
                                                                              where an installed one is)
    sudo mn --custom mininet_topos/custom.py --topo two_level,leaves=4,workers=16 --switch native
    sudo mn --custom mininet_topos/custom.py --topo single,4 --switch bmv2,words=16 --host worker

With no --controller, ours drives the switches. In Mininet's shell, `workers CMD` runs a command on every
worker host:

    mininet> workers switchagg topo check
    mininet> link s1 h1 down
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# `mn` executes this file's text; only the code object knows the name of the file. The folder above is not put
# on `sys.path`: of an installed package it has other packages too, made for another Python than mn's.
_HERE = Path(sys._getframe().f_code.co_filename).resolve()
if "mininet_topos" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("mininet_topos", _HERE.with_name("__init__.py"))
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules["mininet_topos"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["mininet_topos"])

from mininet_topos.controllers import SwitchAggController, controllers  # noqa: E402
from mininet_topos.hosts import hosts  # noqa: E402
from mininet_topos.mininet_cli import install  # noqa: E402
from mininet_topos.switches import switches  # noqa: E402
from mininet_topos.topologies import topos  # noqa: E402

install()


def findController() -> type[SwitchAggController]:
    """Returns the default controller; called by `mn` without --controller."""
    return SwitchAggController


__all__ = ["controllers", "findController", "hosts", "switches", "topos"]
