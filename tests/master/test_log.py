"""What the master's log holds of gRPC's own troubles."""

import logging

import pytest
from ebbtide_master.edge import GRPC_LOG, is_worth_a_line
from grpc._cython import cygrpc


@pytest.mark.parametrize(("error", "is_told"), [(cygrpc.ExecuteBatchError("left"), False), (OSError("broken"), True)])
def test_a_caller_who_leaves_while_the_answer_is_sent_is_no_error(caplog, error, is_told):
    grpcs = logging.getLogger(GRPC_LOG)
    assert cygrpc.__name__ == GRPC_LOG
    grpcs.addFilter(is_worth_a_line)
    try:
        raise error
    except type(error):
        grpcs.exception("raised in core by servicer method [%s]", "/ebbtide.v1.ClientService/WatchNode")
    finally:
        grpcs.removeFilter(is_worth_a_line)
    assert bool([line for line in caplog.records if line.exc_info]) is is_told
