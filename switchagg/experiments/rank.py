"""A rank of an experiment: `python -m switchagg.experiments.rank CONFIG`, CONFIG being JSON from `runner.py`.

It joins the job, calls the function that the config names with the session and its own part of the config,
and prints the result as a line of JSON. The function may call `say` and `switch_cpu_seconds`.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import traceback
from typing import Any

from switchagg.errors import SwitchAggError
from switchagg.processor_time import own_seconds, process_seconds

_config: dict[str, Any] = {}


def say(text: str) -> None:
    """Sends a line to the user who watches the experiment."""
    _send({"say": text})


def switch_cpu_seconds() -> float:
    """Processor time so far of the process that holds switch and controller, in steps of 10 ms."""
    return process_seconds(_config["switch_pid"])


def to_builtin(value: Any) -> Any:
    """NumPy's scalars and arrays as Python's, for `json.dumps`.

    Raises:
        TypeError: it is neither.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}, which JSON cannot carry")


def _send(message: dict[str, Any]) -> None:
    print(json.dumps(message, default=to_builtin), flush=True)


def main(config_text: str) -> int:
    """Runs one rank; returns the exit status."""
    _config.update(json.loads(config_text))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        import worker_lib

        function = getattr(importlib.import_module(_config["module"]), _config["function"])
        with worker_lib.connect(
            _config["controller"],
            job=_config["job"],
            rank=_config["rank"],
            world_size=_config["world_size"],
            **_config["connect"],
        ) as session:
            result = function(session, _config["given"])
        _send({"result": result, "cpu_seconds": own_seconds()})
    except SwitchAggError as error:
        _send({"failed": str(error)})
        return 1
    except Exception as error:
        traceback.print_exc()
        _send({"failed": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    # By its name, so that the experiment's function, which imports this module, sees the same config.
    sys.exit(importlib.import_module("switchagg.experiments.rank").main(sys.argv[1]))
