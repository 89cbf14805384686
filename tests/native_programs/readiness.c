/* What an application's server says of readiness when a backend's instances have a say (tests/backends/ready.c).
 *
 * Arguments: a repository with the model `asked`, and the directory of backends. */

#include "check.h"

static void say(const char* repository, const char* word) {
  char path[4096];
  snprintf(path, sizeof path, "%s/asked/ready", repository);
  FILE* file = fopen(path, "w");
  expect(file != NULL && fputs(word, file) >= 0 && fclose(file) == 0);
}

static void check(TRITONSERVER_Server* server, bool expected) {
  bool server_ready = !expected, model_ready = !expected;
  succeeds(TRITONSERVER_ServerIsReady(server, &server_ready));
  succeeds(TRITONSERVER_ServerModelIsReady(server, "asked", -1, &model_ready));
  expect(server_ready == expected && model_ready == expected);
}

int main(int count, char** arguments) {
  expect(count == 3);
  TRITONSERVER_ServerOptions* options = NULL;
  TRITONSERVER_Server* server = NULL;
  bool ready = true;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  succeeds(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, arguments[1]));
  succeeds(TRITONSERVER_ServerOptionsSetBackendDirectory(options, arguments[2]));
  succeeds(TRITONSERVER_ServerNew(&server, options));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
  check(server, true);
  say(arguments[1], "no");
  check(server, false);
  say(arguments[1], "yes");
  check(server, true);
  succeeds(TRITONSERVER_ServerModelIsReady(server, "none", -1, &ready));
  expect(!ready);
  succeeds(TRITONSERVER_ServerStop(server));
  fails(TRITONSERVER_ServerIsReady(server, &ready), TRITONSERVER_ERROR_UNAVAILABLE, NULL);
  succeeds(TRITONSERVER_ServerDelete(server));
  return 0;
}
