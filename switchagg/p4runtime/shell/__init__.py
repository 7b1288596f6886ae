"""p4runtime-shell on a running switch (`switchagg shell`), in an environment of its own.

p4runtime-shell holds protobuf below 3.21, so it must not be installed beside anything else of the user's.
"""

from typing import Final

from switchagg.environments import Environment

VERSION: Final = "0.0.6"
ENVIRONMENT: Final = Environment(
    f"p4runtime-shell-{VERSION}", (f"p4runtime-shell=={VERSION}", "p4runtime==1.4.1", "protobuf<3.21")
)
