"""One rank of an experiment: `python -m switchagg.experiments.rank CONFIG`, CONFIG being JSON from `lab.py`.

Joins the job, calls the function that the config names with the session and its own part of the config, and
prints what it returned as a line of JSON.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import traceback

from switchagg.errors import SwitchAggError
from switchagg.experiments import rank_api as inside
from switchagg.processor_time import own_seconds


def main(config_text: str) -> int:
    """Run one rank; returns the exit status."""
    config = json.loads(config_text)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    inside.begin(config["switch_pid"])
    try:
        import worker_lib

        function = getattr(importlib.import_module(config["module"]), config["function"])
        with worker_lib.connect(
            config["controller"],
            job=config["job"],
            rank=config["rank"],
            world_size=config["world_size"],
            **config["connect"],
        ) as session:
            result = function(session, config["given"])
        inside.tell({"result": result, "cpu_seconds": own_seconds()})
    except SwitchAggError as error:
        inside.tell({"failed": str(error)})
        return 1
    except Exception as error:
        traceback.print_exc()
        inside.tell({"failed": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
