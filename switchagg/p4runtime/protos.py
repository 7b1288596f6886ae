"""P4Runtime's messages and gRPC stub, for current protobuf.

The `p4runtime` package on the Python index holds protobuf below 3.21; finsy ships the same messages for
current releases. This is the only module that says where they come from.
"""

from finsy.proto import p4d as p4data_pb2
from finsy.proto import p4i as p4info_pb2
from finsy.proto import p4r as p4runtime_pb2
from finsy.proto import p4r_grpc as p4runtime_pb2_grpc
from finsy.proto import rpc_code as code_pb2
from finsy.proto import rpc_status as status_pb2

__all__ = ["code_pb2", "p4data_pb2", "p4info_pb2", "p4runtime_pb2", "p4runtime_pb2_grpc", "status_pb2"]
