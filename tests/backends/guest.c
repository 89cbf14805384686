/* A backend that looks at the server that it runs in, which is not its own to end.
 *
 * What it may and may not do is checked when a model is initialised, that is before the server is ready. With
 * GUEST_WAITS_FOR in the environment that takes until there is a file of this name. */

#define _POSIX_C_SOURCE 200809L

#include "check.h"

#include <time.h>
#include <unistd.h>

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  TRITONSERVER_Server* server = NULL;
  succeeds(TRITONBACKEND_ModelServer(model, &server));
  const char* wait = getenv("GUEST_WAITS_FOR");
  if (wait != NULL) {
    while (access(wait, F_OK) != 0) nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    return NULL;
  }
  const char* refused = "this server belongs to its own program, which alone may end it";
  bool is = true;
  succeeds(TRITONSERVER_ServerIsLive(server, &is));
  expect(!is);
  succeeds(TRITONSERVER_ServerIsReady(server, &is));
  expect(!is);
  is = true;
  succeeds(TRITONSERVER_ServerModelIsReady(server, "guest", -1, &is));
  expect(!is);
  fails(TRITONSERVER_ServerStop(server), TRITONSERVER_ERROR_UNSUPPORTED, refused);
  fails(TRITONSERVER_ServerDelete(server), TRITONSERVER_ERROR_UNSUPPORTED, refused);
  fails(TRITONSERVER_ServerSetExitTimeout(server, 1), TRITONSERVER_ERROR_UNSUPPORTED, refused);
  NEREID_Frontend* frontend = NULL;
  fails(NEREID_FrontendNew(&frontend, server, NEREID_FRONTEND_HTTP), TRITONSERVER_ERROR_UNSUPPORTED,
        "this server belongs to its own program, whose flags open its ports");
  TRITONSERVER_Message* metadata = NULL;
  fails(TRITONSERVER_ServerMetadata(server, &metadata), TRITONSERVER_ERROR_UNAVAILABLE, "Server not ready");
  return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t request_count) {
  (void)instance, (void)requests, (void)request_count;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "this backend answers nothing");
}
