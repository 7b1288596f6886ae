"""P4Runtime's messages and gRPC stub, for current protobuf.

The `p4runtime` package on the Python index holds protobuf below 3.21; finsy ships the same messages for
current releases, and holds protobuf below 7. Where finsy is not installed, but protobuf and gRPC are, their
files come from an environment that finsy has for itself, and work with the protobuf that is here, 6.33 to 7.
This is the only module that says where they come from.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Final

from switchagg.environments import Environment

__all__ = ["code_pb2", "p4data_pb2", "p4info_pb2", "p4runtime_pb2", "p4runtime_pb2_grpc", "status_pb2"]

FINSY: Final = Environment("finsy-0.30.0", ("finsy==0.30.0",))
_NAME: Final = "switchagg.p4runtime.messages"  # of the package, where it comes from there


def _from_environment() -> Any:
    """Loads finsy's messages from its environment, and nothing else of it: they import protobuf and gRPC."""
    import google.protobuf  # noqa: F401  (first, so that the error names the extra where they are missing)
    import grpc  # noqa: F401

    FINSY.make("switchagg")
    folder = FINSY.packages / "finsy" / "proto"
    spec = importlib.util.spec_from_file_location(
        _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_NAME]
        raise
    return module


if TYPE_CHECKING or importlib.util.find_spec("finsy") is not None:
    from finsy.proto import p4d as p4data_pb2
    from finsy.proto import p4i as p4info_pb2
    from finsy.proto import p4r as p4runtime_pb2
    from finsy.proto import p4r_grpc as p4runtime_pb2_grpc
    from finsy.proto import rpc_code as code_pb2
    from finsy.proto import rpc_status as status_pb2
else:
    _messages = _from_environment()
    p4data_pb2, p4info_pb2 = _messages.p4d, _messages.p4i
    p4runtime_pb2, p4runtime_pb2_grpc = _messages.p4r, _messages.p4r_grpc
    code_pb2, status_pb2 = _messages.rpc_code, _messages.rpc_status
