"""Numbers of the messages that a worker sends on its own behalf, and their payloads.

The server's half reads these layouts, so they are the contract between the two: every message is one marshalled tuple.
Its first elements belong to the transport, the rest is defined here. `notify` means that no answer follows, `query`
that one answer follows (or a refusal: code and text). Numbers below 32 belong to the transport: batches, their answers,
start and end.

Shapes used below:
    data        bytes | (segment, offset, length) | device. It contains the tensor's elements in C order; of a BYTES
                tensor, which never lies on a device, one marshalled list (version 2) of bytes and str, in any mixture
    device      (handle bytes, offset, length, key, device, lasts bool): the location of a tensor in the memory of a
                GPU, by the GPU's number and the handle of an allocation (CUipcMemHandle). The key is the server's,
                which gets it back as it does those of shared memory; below zero it is the worker's, which keeps the
                memory until the server reports that it no longer needs it. Tensors that the server lends have `lasts`
                if the server keeps the allocation as long as it lives.
    tensor      (name str, datatype int as TRITONSERVER_DataType, shape tuple of int, data)
    parameters  ((name str, bool | int | str | float), ...); floats only from the server
    response    (outputs tuple of tensor, parameters, None | (code int as TRITONSERVER_Error_Code, text str))
"""

# notify (level, file, line, text). Level as TRITONSERVER_LogLevel: 0 info, 1 warning, 2 error, 3 verbose. File is the
# path of the caller's source in the interpreter.
LOG = 32

# query (name, description, kind) -> family. Kind as TRITONSERVER_MetricKind: 0 counter, 1 gauge, 2 histogram.
METRIC_FAMILY = 33
# query (family, labels ((key, value), ...), buckets tuple of float | None) -> metric. The server chooses the numbers of
# metrics and families, and never reuses one for the same worker.
METRIC = 34
# notify (metric, operation, value float). The worker has checked that the metric's kind supports the operation.
METRIC_CHANGE = 35
# query (metric) -> (value float, changes). `changes` is how many METRIC_CHANGE of this metric were applied so far: the
# query may use another channel than the changes did, and is repeated while changes of its own are missing.
METRIC_VALUE = 36
# notify (metric). May follow the drop of its family, which drops all of its metrics: unknown numbers are ignored.
METRIC_DROPPED = 37
# notify (family).
FAMILY_DROPPED = 38

# Operations of METRIC_CHANGE.
INCREMENT = 0
SET = 1
OBSERVE = 2

# query (name, config str ("" for none), files ((path str, data), ...)) -> None. Refusals have the core's text, without
# the name of the failed operation, which is added here.
MODEL_LOAD = 40
# query (name, dependents bool) -> None
MODEL_UNLOAD = 41
# query (name, version int, -1 for the server's choice) -> bool
MODEL_READY = 42

# notify (call, slot, model, version, id, correlation int | str, flags, timeout_us, parameters, requested outputs tuple
#       of str, inputs tuple of tensor, trace None | token of the parent request, decoupled bool, preferred memory None
#       | (TRITONSERVER_MemoryType, device)).
# `call` increases over the worker's life, so a late message about a call that ended cannot concern another call.
# Answers are written to the slot: (response | None, is_final). A call that is not decoupled gets exactly one, with
# is_final; a decoupled one gets any number, and None stands for an end without a response. All errors are responses.
CALL = 48
# notify (call). The callee may check for it; answers continue until the final one.
CALL_CANCEL = 49
# notify (call, count). The caller has taken that many more answers: the server writes at most WINDOW answers of a
# decoupled call ahead of those. A slot may be full before that; then the server keeps further answers until the next
# CALL_TOOK, which a caller sends at the latest before it waits.
CALL_TOOK = 50
# notify (call). Its responses are not read any more: the server does not cancel it, drops further responses, and once
# the call has ended writes (None, True) as the slot's last message, unless it has written a final one already.
CALL_DROPPED = 51

# Answers of a decoupled call that may wait in its slot.
WINDOW = 16

# notify or query (token of the request, response | None, flags) -> None. The server answers a `query` when it has
# passed the response on, which is how a fast sender waits for a slow client: every SENDS_BETWEEN_QUERIES-th send of a
# sender is a `query`, so at most this many are in flight. Flag 1 ends the request.
SEND = 56

# query () -> list of numbers. The lent device tensors that the server no longer needs; their keys were these numbers,
# negated. Outside of executions the server reports them itself.
LENT = 57

SENDS_BETWEEN_QUERIES = 16
# The most bytes in shared memory of a response that is sent by `notify`.
PLACED_BETWEEN_QUERIES = 1 << 20
