/* Wants a newer interface than there is, and says so. */

#include "check.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  (void)backend;
  uint32_t major = 0, minor = 0;
  succeeds(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major == TRITONBACKEND_API_VERSION_MAJOR && minor >= 1000) return NULL;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "old.c: needs version 1.1000 of the interface");
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  (void)backend;
  puts("old.c: finalised without being initialised");
  fflush(stdout);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  (void)instance, (void)requests, (void)count;
  return NULL;
}
