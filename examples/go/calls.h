/* The C half of the example: functions that C calls, which Go cannot be given the address of. */

#include "triton/core/tritonserver.h"

/* An allocator that takes memory from malloc, and gives it back. */
TRITONSERVER_Error* new_allocator(TRITONSERVER_ResponseAllocator** allocator);

/* Sends a request whose callbacks go to Go with the number `call`. */
TRITONSERVER_Error* send_request(
    TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request, TRITONSERVER_ResponseAllocator* allocator,
    uintptr_t call);
