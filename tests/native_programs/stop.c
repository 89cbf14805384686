/* The end of a server that something holds up: it is told after the exit timeout, and the rest ends later.
 *
 * Arguments: a repository with the model `guest`, the directory of its backend, the file that it waits for. */

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>

#include "check.h"
#include "threads.h"

static void* load(void* server) {
  TRITONSERVER_Error* error = TRITONSERVER_ServerLoadModel(server, "guest");
  /* The server ends: the model came too late. */
  expect(error != NULL);
  TRITONSERVER_ErrorDelete(error);
  return NULL;
}

static void wait_for_load(TRITONSERVER_Server* server) {
  for (bool is_loading = false; !is_loading;) {
    TRITONSERVER_Message* index = NULL;
    const char* base = NULL;
    size_t size = 0;
    succeeds(TRITONSERVER_ServerModelIndex(server, 0, &index));
    succeeds(TRITONSERVER_MessageSerializeToJson(index, &base, &size));
    is_loading = strstr(base, "\"LOADING\"") != NULL;
    succeeds(TRITONSERVER_MessageDelete(index));
    nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
  }
}

int main(int argc, char** argv) {
  expect(argc == 4);
  expect(setenv("GUEST_WAITS_FOR", argv[3], 1) == 0);
  int before = threads();
  TRITONSERVER_ServerOptions* options = NULL;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  succeeds(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, argv[1]));
  succeeds(TRITONSERVER_ServerOptionsSetBackendDirectory(options, argv[2]));
  succeeds(TRITONSERVER_ServerOptionsSetModelControlMode(options, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
  succeeds(TRITONSERVER_ServerOptionsSetExitTimeout(options, 600));
  TRITONSERVER_Server* server = NULL;
  succeeds(TRITONSERVER_ServerNew(&server, options));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));

  pthread_t loader;
  expect(pthread_create(&loader, NULL, load, server) == 0);
  wait_for_load(server);
  succeeds(TRITONSERVER_ServerSetExitTimeout(server, 0));
  fails(TRITONSERVER_ServerDelete(server), TRITONSERVER_ERROR_INTERNAL, "Exit timeout expired. Exiting immediately.");
  bool live = false;
  fails(TRITONSERVER_ServerIsLive(server, &live), TRITONSERVER_ERROR_UNAVAILABLE, "Server exiting");
  succeeds(TRITONSERVER_ServerStop(server));

  FILE* file = fopen(argv[3], "w");
  expect(file != NULL && fclose(file) == 0);
  expect(pthread_join(loader, NULL) == 0);
  succeeds(TRITONSERVER_ServerDelete(server));
  wait_for_threads(before);
  return 0;
}
