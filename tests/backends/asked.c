/* A backend that answers with what it was asked, as parameters of the response: `seen` has the request's correlation id,
 * its timeout, and each of its parameters with the number of its type (contract/c_api.md section 2, ParameterType). It
 * gives no outputs. */

#include "check.h"

#define EXPORT __attribute__((visibility("default")))

static size_t describe(TRITONBACKEND_Request* request, char* text, size_t size) {
  uint64_t number = 0, timeout = 0;
  const char* id = "";
  size_t at = 0;
  TRITONSERVER_Error* error = TRITONBACKEND_RequestCorrelationId(request, &number);
  if (error == NULL) {
    at += (size_t)snprintf(text + at, size - at, "id=%llu", (unsigned long long)number);
  } else {
    TRITONSERVER_ErrorDelete(error);
    succeeds(TRITONBACKEND_RequestCorrelationIdString(request, &id));
    at += (size_t)snprintf(text + at, size - at, "id='%s'", id);
  }
  succeeds(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout));
  at += (size_t)snprintf(text + at, size - at, " timeout=%llu", (unsigned long long)timeout);
  uint32_t count = 0;
  succeeds(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t index = 0; index < count && at < size; index++) {
    const char* key;
    TRITONSERVER_ParameterType type;
    const void* value;
    succeeds(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    at += (size_t)snprintf(text + at, size - at, " %s:%d=", key, (int)type);
    if (type == TRITONSERVER_PARAMETER_INT) {
      at += (size_t)snprintf(text + at, size - at, "%lld", (long long)*(const int64_t*)value);
    } else if (type == TRITONSERVER_PARAMETER_DOUBLE) {
      at += (size_t)snprintf(text + at, size - at, "%.17g", *(const double*)value);
    } else if (type == TRITONSERVER_PARAMETER_BOOL) {
      at += (size_t)snprintf(text + at, size - at, "%d", *(const bool*)value);
    } else {
      at += (size_t)snprintf(text + at, size - at, "'%s'", (const char*)value);
    }
  }
  return at;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
    TRITONBACKEND_Request** requests, const uint32_t count) {
  (void)instance;
  for (uint32_t index = 0; index < count; index++) {
    char text[1024];
    expect(describe(requests[index], text, sizeof text) < sizeof text);
    TRITONBACKEND_Response* response;
    succeeds(TRITONBACKEND_ResponseNew(&response, requests[index]));
    succeeds(TRITONBACKEND_ResponseSetStringParameter(response, "seen", text));
    succeeds(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
    succeeds(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
