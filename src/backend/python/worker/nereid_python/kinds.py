"""Numbers of the messages that a worker sends on its own behalf, and what each carries.

The server's half reads these layouts, so they are the contract between the two: every message is one marshalled tuple
whose first elements are the transport's own and whose rest is as told here. `tell` means that nothing is answered,
`ask` that one answer follows (or a refusal: code and text). Numbers below 32 belong to the transport: batches, their
answers, life and death.

Shapes used below:
    data        bytes | (segment, offset, length) | device. What it holds are the tensor's elements in C order; of a
                BYTES tensor, which never lies on a device, one marshalled list (version 2) of bytes and str, in any
                mixture
    device      (handle bytes, offset, length, key, device, lasts bool): where a tensor lies in the memory of a GPU, by
                its number and the handle of an allocation (CUipcMemHandle). The key is the server's, which gets it back
                as it does those of shared memory; below zero it is the worker's, which keeps the memory until it hears
                that it is no longer needed. What the server lends has `lasts` if the allocation is there for as long
                as the server.
    tensor      (name str, datatype int as TRITONSERVER_DataType, shape tuple of int, data)
    parameters  ((name str, bool | int | str | float), ...); floats only from the server
    response    (outputs tuple of tensor, parameters, None | (code int as TRITONSERVER_Error_Code, text str))
"""

# tell (level, file, line, text). Level as TRITONSERVER_LogLevel: 0 info, 1 warning, 2 error, 3 verbose. File is what
# the interpreter calls the caller's source, with its directories.
LOG = 32

# ask (name, description, kind) -> family. Kind as TRITONSERVER_MetricKind: 0 counter, 1 gauge, 2 histogram.
METRIC_FAMILY = 33
# ask (family, labels ((key, value), ...), buckets tuple of float | None) -> metric. Numbers of metrics and families
# are chosen by the server, and never used twice by one worker.
METRIC = 34
# tell (metric, operation, value float). The worker has checked that the metric's kind knows the operation.
METRIC_CHANGE = 35
# ask (metric) -> (value float, changes). `changes` is how many METRIC_CHANGE of this metric were applied so far: the
# asker may use another channel than the changes did, and asks again while changes of its own are missing.
METRIC_VALUE = 36
# tell (metric). May come after its family's end, which is the end of all of its metrics: unknown numbers are ignored.
METRIC_DROPPED = 37
# tell (family).
FAMILY_DROPPED = 38

# Operations of METRIC_CHANGE.
INCREMENT = 0
SET = 1
OBSERVE = 2

# ask (name, config str ("" for none), files ((path str, data), ...)) -> None. Refusals carry the core's text, without
# the words that say what failed: these are added here.
MODEL_LOAD = 40
# ask (name, dependents bool) -> None
MODEL_UNLOAD = 41
# ask (name, version int, -1 for the server's choice) -> bool
MODEL_READY = 42

# tell (call, slot, model, version, id, correlation int | str, flags, timeout_us, parameters, requested outputs tuple of
#       str, inputs tuple of tensor, trace None | token of the request whose child the call is, decoupled bool,
#       preferred memory None | (TRITONSERVER_MemoryType, device)).
# `call` counts up over the worker's life, so a late message about a call that ended means nobody else's. Answers come
# through the slot: (response | None, is_final). A call that is not decoupled gets exactly one, with is_final; a
# decoupled one gets as many as there are, and None stands for an end without a response. All errors are responses.
CALL = 48
# tell (call). The callee may notice; answers go on until the final one.
CALL_CANCEL = 49
# tell (call, count). The caller has taken that many more answers: the server writes at most WINDOW answers of a
# decoupled call ahead of what was taken. A slot may be full before that; then the server keeps what comes until the
# next CALL_TOOK, which a caller sends at the latest before it waits.
CALL_TOOK = 50
# tell (call). Nobody reads its responses any more: the server cancels nothing, throws away what still comes, and once
# the call has ended writes (None, True) as the slot's last message, unless it has written a final one already.
CALL_DROPPED = 51

# Answers of a decoupled call that may wait in its slot.
WINDOW = 16

# tell or ask (token of the request, response | None, flags) -> None. An asked one is answered when the server has
# passed the response on, which is how a fast sender waits for a slow client: every SENDS_BETWEEN_ASKS-th of a sender is
# asked, so this many are on their way at most. Flag 1 ends the request.
SEND = 56

# ask () -> list of numbers. Of what the worker has lent on devices the server needs these no more; their keys were these
# numbers below zero. Outside of executions it says so itself.
LENT = 57

SENDS_BETWEEN_ASKS = 16
# Bytes in shared memory that a response may have which is not asked.
PLACED_BETWEEN_ASKS = 1 << 20
