/* A backend that says how much memory its models and instances hold, and answers every request with an error:
 *
 *   ModelInitialize           64 bytes of GPU 1, and 1000 bytes of CPU 0;
 *   ModelInstanceInitialize   100 bytes of CPU 0, and 7 bytes of pinned memory;
 *   ModelInstanceExecute      the instance now holds 5000 bytes of CPU 0 and nothing else, whatever it said before.
 *
 * The attributes are overwritten and deleted as soon as the server has seen them: it has to have copied them. */

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "triton/core/tritonbackend.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct TRITONSERVER_BufferAttributes TRITONSERVER_BufferAttributes;

TRITONSERVER_Error* TRITONSERVER_BufferAttributesNew(TRITONSERVER_BufferAttributes** attributes);
TRITONSERVER_Error* TRITONSERVER_BufferAttributesDelete(TRITONSERVER_BufferAttributes* attributes);
TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetMemoryType(TRITONSERVER_BufferAttributes* attributes,
    TRITONSERVER_MemoryType memory_type);
TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetMemoryTypeId(TRITONSERVER_BufferAttributes* attributes,
    int64_t memory_type_id);
TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetByteSize(TRITONSERVER_BufferAttributes* attributes,
    size_t byte_size);
TRITONSERVER_Error* TRITONBACKEND_ModelReportMemoryUsage(TRITONBACKEND_Model* model,
    TRITONSERVER_BufferAttributes** usage, uint32_t usage_size);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportMemoryUsage(TRITONBACKEND_ModelInstance* instance,
    TRITONSERVER_BufferAttributes** usage, uint32_t usage_size);

/* Nothing here may fail; if it does, the server is wrong and a test must see it. */
static void expect(TRITONSERVER_Error* error) {
  if (error == NULL) return;
  fprintf(stderr, "memory.c: unexpected error: %s\n", TRITONSERVER_ErrorMessage(error));
  abort();
}

static TRITONSERVER_BufferAttributes* bytes(TRITONSERVER_MemoryType kind, int64_t id, size_t size) {
  TRITONSERVER_BufferAttributes* made;
  expect(TRITONSERVER_BufferAttributesNew(&made));
  expect(TRITONSERVER_BufferAttributesSetMemoryType(made, kind));
  expect(TRITONSERVER_BufferAttributesSetMemoryTypeId(made, id));
  expect(TRITONSERVER_BufferAttributesSetByteSize(made, size));
  return made;
}

static void forget(TRITONSERVER_BufferAttributes** list, uint32_t count) {
  for (uint32_t index = 0; index < count; index++) {
    expect(TRITONSERVER_BufferAttributesSetByteSize(list[index], 123456789));
    expect(TRITONSERVER_BufferAttributesDelete(list[index]));
    list[index] = NULL;
  }
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  TRITONSERVER_BufferAttributes* list[] = {
      bytes(TRITONSERVER_MEMORY_GPU, 1, 64), bytes(TRITONSERVER_MEMORY_CPU, 0, 1000)};
  expect(TRITONBACKEND_ModelReportMemoryUsage(model, list, 2));
  forget(list, 2);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  TRITONSERVER_BufferAttributes* list[] = {
      bytes(TRITONSERVER_MEMORY_CPU, 0, 100), bytes(TRITONSERVER_MEMORY_CPU_PINNED, 0, 7)};
  expect(TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, list, 2));
  forget(list, 2);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
    TRITONBACKEND_Request** requests, const uint32_t count) {
  TRITONSERVER_BufferAttributes* list[] = {bytes(TRITONSERVER_MEMORY_CPU, 0, 5000)};
  expect(TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, list, 1));
  forget(list, 1);
  for (uint32_t index = 0; index < count; index++) {
    TRITONBACKEND_Response* response;
    TRITONSERVER_Error* error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "memory.c answers nothing");
    expect(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[index], false, 0, 0, 0, 0));
    expect(TRITONBACKEND_ResponseNew(&response, requests[index]));
    expect(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    TRITONSERVER_ErrorDelete(error);
    expect(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
