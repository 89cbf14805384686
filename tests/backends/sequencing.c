/* A backend that completes its models' configurations: they batch sequences. Each request gets an answer without
 * outputs. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonbackend.h"
#include "triton/core/tritonserver.h"

#define TRY(call)                    \
  do {                               \
    TRITONSERVER_Error* error = call; \
    if (error != NULL) return error; \
  } while (0)

static const char ADDED[] = "{\"sequence_batching\":{},";

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  bool completes = false;
  TRITONSERVER_Message* message = NULL;
  const char* base = NULL;
  size_t size = 0;
  TRY(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
  if (!completes) return NULL;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  if (size == 0 || base[0] != '{') return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "no object");
  char* json = malloc(size + sizeof ADDED);
  if (json == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory");
  const int length = snprintf(json, size + sizeof ADDED, "%s%.*s", ADDED, (int)(size - 1), base + 1);
  TRY(TRITONSERVER_MessageDelete(message));
  TRY(TRITONSERVER_MessageNewFromSerializedJson(&message, json, (size_t)length));
  free(json);
  TRY(TRITONBACKEND_ModelSetConfig(model, 1, message));
  return TRITONSERVER_MessageDelete(message);
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  (void)instance;
  for (uint32_t at = 0; at < count; ++at) {
    TRITONBACKEND_Response* response = NULL;
    TRY(TRITONBACKEND_ResponseNew(&response, requests[at]));
    TRY(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
    TRY(TRITONBACKEND_RequestRelease(requests[at], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
