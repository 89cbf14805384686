/* The smallest backend that answers: what the bench holds against the same in Rust behind the trait. */

#include <string.h>

#include "triton/core/tritonbackend.h"
#include "triton/core/tritonserver.h"

#define TRY(call)                              \
  do {                                         \
    TRITONSERVER_Error* error = call;          \
    if (error != NULL) return error;           \
  } while (0)

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t at = 0; at < count; ++at) {
    TRITONBACKEND_Input* input = NULL;
    TRITONBACKEND_Response* response = NULL;
    TRITONBACKEND_Output* output = NULL;
    TRITONSERVER_DataType datatype;
    const int64_t* shape = NULL;
    uint32_t dims = 0, pieces = 0;
    uint64_t size = 0;
    const void* from = NULL;
    void* to = NULL;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    TRY(TRITONBACKEND_RequestInputByIndex(requests[at], 0, &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &dims, &size, &pieces));
    TRY(TRITONBACKEND_InputBuffer(input, 0, &from, &size, &type, &id));
    TRY(TRITONBACKEND_ResponseNew(&response, requests[at]));
    TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", datatype, shape, dims));
    TRY(TRITONBACKEND_OutputBuffer(output, &to, size, &type, &id));
    memcpy(to, from, size);
    TRY(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[at], true, 1, 2, 3, 4));
    TRY(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
    TRY(TRITONBACKEND_RequestRelease(requests[at], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  TRY(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, 1, 2, 3, 4));
  return NULL;
}
