/* A backend that needs a function which nobody has. */

#include "check.h"

TRITONSERVER_Error* TRITONBACKEND_NobodyHasThis(uint32_t count);

__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  (void)instance, (void)requests;
  return TRITONBACKEND_NobodyHasThis(count);
}
