/* A server of an application's own: its beginning, how it is, and its end.
 *
 * Arguments: a repository whose models serve, one in which a model is broken, a directory for backends. */

#define _POSIX_C_SOURCE 200809L

#include "check.h"
#include "threads.h"

static TRITONSERVER_ServerOptions* options_for(const char* repository, const char* backends) {
  TRITONSERVER_ServerOptions* options = NULL;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  succeeds(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repository));
  succeeds(TRITONSERVER_ServerOptionsSetBackendDirectory(options, backends));
  return options;
}

static void lives_once(const char* repository, const char* backends) {
  TRITONSERVER_ServerOptions* options = options_for(repository, backends);
  TRITONSERVER_Server* server = NULL;
  succeeds(TRITONSERVER_ServerNew(&server, options));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));

  bool is = false;
  succeeds(TRITONSERVER_ServerIsLive(server, &is));
  expect(is);
  is = false;
  succeeds(TRITONSERVER_ServerIsReady(server, &is));
  expect(is);
  is = false;
  succeeds(TRITONSERVER_ServerModelIsReady(server, "echo", -1, &is));
  expect(is);
  succeeds(TRITONSERVER_ServerModelIsReady(server, "echo", 1, &is));
  expect(is);
  /* What is unknown is not ready, and no error. */
  succeeds(TRITONSERVER_ServerModelIsReady(server, "nosuch", -1, &is));
  expect(!is);
  is = true;
  succeeds(TRITONSERVER_ServerModelIsReady(server, "echo", 7, &is));
  expect(!is);
  fails(TRITONSERVER_ServerModelIsReady(server, NULL, -1, &is), TRITONSERVER_ERROR_INVALID_ARG,
        "model_name must not be NULL");

  succeeds(TRITONSERVER_ServerSetExitTimeout(server, 20));
  succeeds(TRITONSERVER_ServerStop(server));
  succeeds(TRITONSERVER_ServerStop(server));
  fails(TRITONSERVER_ServerIsLive(server, &is), TRITONSERVER_ERROR_UNAVAILABLE, "Server exiting");
  fails(TRITONSERVER_ServerIsReady(server, &is), TRITONSERVER_ERROR_UNAVAILABLE, "Server exiting");
  fails(TRITONSERVER_ServerModelIsReady(server, "echo", -1, &is), TRITONSERVER_ERROR_UNAVAILABLE, "Server not ready");
  succeeds(TRITONSERVER_ServerDelete(server));
}

static void models_may_be_broken(const char* repository, const char* backends) {
  TRITONSERVER_ServerOptions* options = options_for(repository, backends);
  TRITONSERVER_Server* server = NULL;
  fails(TRITONSERVER_ServerNew(&server, options), TRITONSERVER_ERROR_INTERNAL, "failed to load all models");
  expect(server == NULL);

  succeeds(TRITONSERVER_ServerOptionsSetExitOnError(options, false));
  succeeds(TRITONSERVER_ServerNew(&server, options));
  bool is = false;
  succeeds(TRITONSERVER_ServerIsLive(server, &is));
  expect(is);
  succeeds(TRITONSERVER_ServerIsReady(server, &is));
  expect(!is);
  succeeds(TRITONSERVER_ServerModelIsReady(server, "echo", -1, &is));
  expect(is);
  succeeds(TRITONSERVER_ServerModelIsReady(server, "broken", -1, &is));
  expect(!is);
  is = true;
  succeeds(TRITONSERVER_ServerModelIsReady(server, "broken", 1, &is));
  expect(!is);
  succeeds(TRITONSERVER_ServerDelete(server));

  succeeds(TRITONSERVER_ServerOptionsSetStrictReadiness(options, false));
  succeeds(TRITONSERVER_ServerNew(&server, options));
  succeeds(TRITONSERVER_ServerIsReady(server, &is));
  expect(is);
  succeeds(TRITONSERVER_ServerDelete(server));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
}

/* Two at once, which know nothing of each other; the end of one is not that of the other. */
static void servers_stand_side_by_side(const char* repository, const char* backends) {
  TRITONSERVER_ServerOptions* options = options_for(repository, backends);
  TRITONSERVER_Server *one = NULL, *other = NULL;
  succeeds(TRITONSERVER_ServerNew(&one, options));
  succeeds(TRITONSERVER_ServerOptionsSetModelControlMode(options, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
  succeeds(TRITONSERVER_ServerNew(&other, options));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
  bool is = false;
  succeeds(TRITONSERVER_ServerModelIsReady(one, "echo", -1, &is));
  expect(is);
  succeeds(TRITONSERVER_ServerModelIsReady(other, "echo", -1, &is));
  expect(!is);
  succeeds(TRITONSERVER_ServerDelete(one));
  is = false;
  succeeds(TRITONSERVER_ServerIsReady(other, &is));
  expect(is);
  /* The backend's library was the first one's, too, and begins again here. */
  succeeds(TRITONSERVER_ServerLoadModel(other, "echo"));
  succeeds(TRITONSERVER_ServerModelIsReady(other, "echo", -1, &is));
  expect(is);
  succeeds(TRITONSERVER_ServerDelete(other));
}

int main(int argc, char** argv) {
  expect(argc == 4);
  const char *repository = argv[1], *broken = argv[2], *backends = argv[3];
  int before = threads();

  fails(TRITONSERVER_ServerOptionsNew(NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_ServerOptionsDelete(NULL), TRITONSERVER_ERROR_INVALID_ARG, "options must not be NULL");
  TRITONSERVER_Server* server = NULL;
  fails(TRITONSERVER_ServerNew(&server, NULL), TRITONSERVER_ERROR_INVALID_ARG, "options must not be NULL");
  TRITONSERVER_ServerOptions* options = NULL;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  fails(TRITONSERVER_ServerNew(NULL, options), TRITONSERVER_ERROR_INVALID_ARG, "server must not be NULL");
  fails(TRITONSERVER_ServerNew(&server, options), TRITONSERVER_ERROR_INVALID_ARG,
        "--model-repository must be specified");
  succeeds(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, "/nonexistent/repository"));
  fails(TRITONSERVER_ServerNew(&server, options), TRITONSERVER_ERROR_INTERNAL, NULL);
  expect(server == NULL);
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
  fails(TRITONSERVER_ServerDelete(NULL), TRITONSERVER_ERROR_INVALID_ARG, "server must not be NULL");
  fails(TRITONSERVER_ServerStop(NULL), TRITONSERVER_ERROR_INVALID_ARG, "server must not be NULL");
  fails(TRITONSERVER_ServerSetExitTimeout(NULL, 1), TRITONSERVER_ERROR_INVALID_ARG, "server must not be NULL");
  fails(TRITONSERVER_ServerIsLive(NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, "server must not be NULL");

  for (int life = 0; life < 3; ++life) {
    lives_once(repository, backends);
    wait_for_threads(before);
  }
  models_may_be_broken(broken, backends);
  servers_stand_side_by_side(repository, backends);
  wait_for_threads(before);
  return 0;
}
