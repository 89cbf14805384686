/* A backend that tells where its buffers are: OUT is a copy of IN, and the parameters `input` and `output` of the
 * response are the addresses of both. `hold` (a number) is how often it waits for 10 ms, while it has IN, for the first
 * byte to become 1; OUT then has what is there at the end. */

#define _POSIX_C_SOURCE 199309L

#include <time.h>

#include "check.h"

#define EXPORT __attribute__((visibility("default")))

static int64_t patience(TRITONBACKEND_Request* request) {
  uint32_t count = 0;
  succeeds(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t index = 0; index < count; index++) {
    const char* key;
    TRITONSERVER_ParameterType type;
    const void* value;
    succeeds(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    if (strcmp(key, "hold") == 0) return *(const int64_t*)value;
  }
  return 0;
}

static void answer(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Input* input = NULL;
  succeeds(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  const int64_t* shape = NULL;
  uint32_t dims_count = 0, buffer_count = 0;
  uint64_t byte_size = 0, piece_size = 0;
  succeeds(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dims_count, &byte_size, &buffer_count));
  expect(buffer_count == 1);
  const void* from = NULL;
  TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  succeeds(TRITONBACKEND_InputBuffer(input, 0, &from, &piece_size, &kind, &id));
  const volatile uint8_t* first = from;
  const struct timespec pause = {0, 10 * 1000 * 1000};
  for (int64_t left = patience(request); left > 0 && *first != 1; left--) nanosleep(&pause, NULL);

  TRITONBACKEND_Response* response = NULL;
  TRITONBACKEND_Output* output = NULL;
  void* to = NULL;
  succeeds(TRITONBACKEND_ResponseNew(&response, request));
  succeeds(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TRITONSERVER_TYPE_UINT8, shape, dims_count));
  TRITONSERVER_Error* error = TRITONBACKEND_OutputBuffer(output, &to, byte_size, &kind, &id);
  if (error == NULL) {
    memcpy(to, from, byte_size);
    succeeds(TRITONBACKEND_ResponseSetIntParameter(response, "input", (int64_t)(intptr_t)from));
    succeeds(TRITONBACKEND_ResponseSetIntParameter(response, "output", (int64_t)(intptr_t)to));
  }
  succeeds(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
  succeeds(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
    TRITONBACKEND_Request** requests, const uint32_t count) {
  (void)instance;
  for (uint32_t index = 0; index < count; index++) answer(requests[index]);
  return NULL;
}
