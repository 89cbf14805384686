/* Answers every request with a text: the smallest backend that can be asked, written against the installed header. */

#include <string.h>

#include "triton/core/tritonbackend.h"

static const char TEXT[] = "\5\0\0\0hello";

static TRITONSERVER_Error* answer(TRITONBACKEND_Response* response) {
  const int64_t shape[] = {1};
  const uint64_t byte_size = sizeof(TEXT) - 1;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  TRITONBACKEND_Output* output = NULL;
  void* buffer = NULL;
  TRITONSERVER_Error* error =
      TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", TRITONSERVER_TYPE_BYTES, shape, 1);
  if (error == NULL) error = TRITONBACKEND_OutputBuffer(output, &buffer, byte_size, &memory_type, &memory_type_id);
  if (error == NULL) memcpy(buffer, TEXT, byte_size);
  return error;
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t request_count) {
  (void)instance;
  for (uint32_t at = 0; at < request_count; ++at) {
    TRITONBACKEND_Response* response = NULL;
    TRITONSERVER_Error* error = TRITONBACKEND_ResponseNew(&response, requests[at]);
    if (error == NULL) {
      TRITONSERVER_Error* failure = answer(response);
      error = TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, failure);
      TRITONSERVER_ErrorDelete(failure);
    }
    TRITONSERVER_ErrorDelete(error);
    TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[at], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
