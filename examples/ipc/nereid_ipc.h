/* A client of the server's shared-memory ring (docs/ipc.md): one header and one source file, C11, Linux.
 *
 * A client belongs to one thread at a time. Messages are those of the gRPC service as protobuf encodes them; any library
 * for protobuf can make them, example.c writes one by hand. Functions return 0 or a negative errno value. */
#ifndef NEREID_IPC_H
#define NEREID_IPC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nereid_ipc nereid_ipc;

enum { NEREID_IPC_ENDS = 1 };

typedef struct {
    uint32_t call;
    /* 0: a message; 1: the end of the call. */
    int is_end;
    /* Of the end: a gRPC status code, 0 is OK. */
    uint32_t code;
    /* The message, or the text of the status; valid until the next call of nereid_ipc_next. */
    const uint8_t *bytes;
    size_t len;
} nereid_ipc_event;

/* Connects to the path that --ipc-path names. After an error the reason is in `error`, which may be NULL. */
int nereid_ipc_connect(const char *path, nereid_ipc **client, char *error, size_t error_len);

/* Ends the connection; calls that are open are cancelled. */
void nereid_ipc_close(nereid_ipc *client);

/* Defines a method, such as "/inference.GRPCInferenceService/ModelInfer". `metadata`: `pairs` names and values in turn.
 * Returns the number of the route, or a negative errno value. */
int nereid_ipc_route(nereid_ipc *client, const char *path, const char *const *metadata, size_t pairs);

/* Begins a call with its first message; NEREID_IPC_ENDS: it is the only one. `timeout_ns`: its deadline, 0: none. */
int nereid_ipc_begin(nereid_ipc *client, int route, const void *message, size_t len, int flags, uint64_t timeout_ns,
                     uint32_t *call);

/* Another message of a call. */
int nereid_ipc_send(nereid_ipc *client, uint32_t call, const void *message, size_t len, int flags);

/* Waits no longer for a call: nereid_ipc_next returns nothing of it any more. */
int nereid_ipc_cancel(nereid_ipc *client, uint32_t call);

/* Not 0: the server has taken the call from the ring, or all of it is over. A call that it has not taken when the
 * connection has ended has not run: it can be repeated elsewhere. */
int nereid_ipc_is_taken(nereid_ipc *client, uint32_t call);

/* Polls for so many nanoseconds before each sleep; 0, the default: not at all. */
void nereid_ipc_spin(nereid_ipc *client, uint64_t spin_ns);

/* What comes next. `timeout_ms`: -1 waits for ever; -ETIMEDOUT: the time is over; -ECONNRESET: the connection is. After
 * any other error, such as -ENOMEM, every further call returns it: a response may be incomplete. */
int nereid_ipc_next(nereid_ipc *client, int timeout_ms, nereid_ipc_event *event);

/* Not 0: the server has ended the connection and emptied the rings and the arena. What was copied out of the arena before
 * this returned 0 is what was written. */
int nereid_ipc_is_emptied(nereid_ipc *client);

/* The memory for tensors, which the caller divides, and its name for the parameter shared_memory_region. */
void *nereid_ipc_arena(nereid_ipc *client, size_t *len);
const char *nereid_ipc_arena_name(nereid_ipc *client);

/* Why the connection has ended, or "". */
const char *nereid_ipc_farewell(nereid_ipc *client);

#ifdef __cplusplus
}
#endif
#endif
