/* Repositories that come and go while a server runs, case by case as Triton's own tests of the interface have them.
 *
 * Argument: a directory with `empty`; `one`, which has `model_0` of version 1; `two`, which has `model_0` of version 2
 * and `model_1` of version 3. It is the working directory, since the texts name repositories as they were given. */

#include "client.h"

#include <unistd.h>

#define INVALID TRITONSERVER_ERROR_INVALID_ARG
#define INTERNAL TRITONSERVER_ERROR_INTERNAL
#define EXISTS TRITONSERVER_ERROR_ALREADY_EXISTS

static const char* const gone = "failed to load 'model_0', failed to poll from model repository";

static TRITONSERVER_Server* start(TRITONSERVER_ModelControlMode mode) {
  TRITONSERVER_ServerOptions* options = NULL;
  TRITONSERVER_Server* server = NULL;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  succeeds(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, "empty"));
  succeeds(TRITONSERVER_ServerOptionsSetModelControlMode(options, mode));
  succeeds(TRITONSERVER_ServerNew(&server, options));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
  bool live = false;
  succeeds(TRITONSERVER_ServerIsLive(server, &live));
  expect(live);
  return server;
}

/* What a registration may say of one repository: pairs of a directory and its name, to a NULL. */
static TRITONSERVER_Error* registration(TRITONSERVER_Server* server, const char* repository, const char* const* names) {
  TRITONSERVER_Parameter* given[4];
  uint32_t count = 0;
  for (; names != NULL && names[2 * count] != NULL; ++count) {
    given[count] = TRITONSERVER_ParameterNew(names[2 * count], TRITONSERVER_PARAMETER_STRING, names[2 * count + 1]);
    expect(given[count] != NULL);
  }
  TRITONSERVER_Error* error = TRITONSERVER_ServerRegisterModelRepository(
      server, repository, (const TRITONSERVER_Parameter**)given, count);
  for (uint32_t at = 0; at < count; ++at) TRITONSERVER_ParameterDelete(given[at]);
  return error;
}

static void registers(TRITONSERVER_Server* server, const char* repository, const char* const* names) {
  succeeds(registration(server, repository, names));
}

static void loads(TRITONSERVER_Server* server, const char* model, int64_t version) {
  succeeds(TRITONSERVER_ServerLoadModel(server, model));
  for (int64_t other = 1; other <= 3; ++other) {
    bool ready = other != version;
    succeeds(TRITONSERVER_ServerModelIsReady(server, model, other, &ready));
    expect(ready == (other == version));
  }
}

static bool is_ready(TRITONSERVER_Server* server, const char* model, int64_t version) {
  bool ready = false;
  succeeds(TRITONSERVER_ServerModelIsReady(server, model, version, &ready));
  return ready;
}

static void index_is(TRITONSERVER_Server* server, uint32_t flags, const char* expected) {
  TRITONSERVER_Message* message = NULL;
  const char* base = NULL;
  size_t byte_size = 0;
  succeeds(TRITONSERVER_ServerModelIndex(server, flags, &message));
  succeeds(TRITONSERVER_MessageSerializeToJson(message, &base, &byte_size));
  if (byte_size != strlen(expected) || memcmp(base, expected, byte_size) != 0)
    check_failed(__FILE__, __LINE__, "index_is", base);
  succeeds(TRITONSERVER_MessageDelete(message));
}

static void one_repository(TRITONSERVER_Server* server) {
  fails(TRITONSERVER_ServerLoadModel(server, "model_0"), INTERNAL, gone);
  fails(TRITONSERVER_ServerRegisterModelRepository(server, "empty", NULL, 0), EXISTS,
        "model repository 'empty' has already been registered");
  fails(TRITONSERVER_ServerRegisterModelRepository(server, "nowhere", NULL, 0), INVALID,
        "failed to register 'nowhere', repository not found");
  fails(TRITONSERVER_ServerUnregisterModelRepository(server, "nowhere"), INVALID,
        "failed to unregister 'nowhere', repository not found");
  for (int round = 0; round < 2; ++round) {
    registers(server, "one", NULL);
    fails(TRITONSERVER_ServerRegisterModelRepository(server, "one", NULL, 0), EXISTS,
          "model repository 'one' has already been registered");
    succeeds(TRITONSERVER_ServerUnregisterModelRepository(server, "one"));
  }
  registers(server, "one", NULL);
  loads(server, "model_0", 1);
  /* A model outlives the registration that it came by, but is not found again. */
  succeeds(TRITONSERVER_ServerUnregisterModelRepository(server, "one"));
  expect(is_ready(server, "model_0", 1));
  fails(TRITONSERVER_ServerLoadModel(server, "model_0"), INTERNAL, gone);
  expect(is_ready(server, "model_0", 1));
  /* The one that the server was started with may go too. */
  succeeds(TRITONSERVER_ServerUnregisterModelRepository(server, "empty"));
  fails(TRITONSERVER_ServerUnregisterModelRepository(server, "empty"), INVALID,
        "failed to unregister 'empty', repository not found");
}

static void other_names(TRITONSERVER_Server* server) {
  static const char* const renamed[] = {"model_0", "name_0", NULL};
  registers(server, "one", renamed);
  index_is(server, 0, "[{\"name\":\"name_0\"}]");
  fails(TRITONSERVER_ServerLoadModel(server, "model_0"), INTERNAL, gone);
  loads(server, "name_0", 1);
  index_is(server, TRITONSERVER_INDEX_FLAG_READY, "[{\"name\":\"name_0\",\"version\":\"1\",\"state\":\"READY\"}]");
  succeeds(TRITONSERVER_ServerUnregisterModelRepository(server, "one"));
}

static void two_names_for_one(TRITONSERVER_Server* server) {
  static const char* const names[] = {"model_0", "name_0", "model_0", "name_1", NULL};
  registers(server, "one", names);
  loads(server, "name_0", 1);
  loads(server, "name_1", 1);
}

static void a_given_name_before_one_that_was_found(TRITONSERVER_Server* server) {
  static const char* const taken[] = {"model_0", "model_1", NULL};
  registers(server, "two", taken);
  loads(server, "model_1", 2);
}

static void one_name_for_two(TRITONSERVER_Server* server) {
  static const char* const names[] = {"model_0", "name_0", "model_1", "name_0", NULL};
  fails(registration(server, "two", names), INVALID,
        "failed to register 'two', there is a conflicting mapping for 'name_0'");
  /* Nothing of it stays. */
  registers(server, "two", NULL);
  loads(server, "model_1", 3);
}

static void found_twice(TRITONSERVER_Server* server) {
  registers(server, "one", NULL);
  registers(server, "two", NULL);
  fails(TRITONSERVER_ServerLoadModel(server, "model_0"), INTERNAL, gone);
  loads(server, "model_1", 3);
  /* Once the other is gone nothing is in doubt. */
  succeeds(TRITONSERVER_ServerUnregisterModelRepository(server, "two"));
  loads(server, "model_0", 1);
  expect(is_ready(server, "model_1", 3));
}

/* A name that is given to itself decides, as any that is given does. */
static void found_twice_and_given_once(TRITONSERVER_Server* server) {
  static const char* const itself[] = {"model_0", "model_0", NULL};
  registers(server, "one", itself);
  registers(server, "two", NULL);
  loads(server, "model_0", 1);
  loads(server, "model_1", 3);
}

static void one_of_two_renamed(TRITONSERVER_Server* server) {
  static const char* const renamed[] = {"model_0", "model_2", NULL};
  registers(server, "one", NULL);
  registers(server, "two", renamed);
  loads(server, "model_0", 1);
  loads(server, "model_1", 3);
  loads(server, "model_2", 2);
}

static void both_renamed(TRITONSERVER_Server* server) {
  static const char* const first[] = {"model_0", "name_0", NULL};
  static const char* const second[] = {"model_0", "name_1", NULL};
  registers(server, "one", first);
  registers(server, "two", second);
  loads(server, "name_0", 1);
  loads(server, "name_1", 2);
  loads(server, "model_1", 3);
  /* A name that another registration has given. */
  succeeds(TRITONSERVER_ServerUnregisterModelRepository(server, "two"));
  fails(registration(server, "two", first), EXISTS, NULL);
}

static void renamed_later(TRITONSERVER_Server* server) {
  static const char* const renamed[] = {"model_0", "name_0", NULL};
  registers(server, "one", NULL);
  loads(server, "model_0", 1);
  succeeds(TRITONSERVER_ServerUnregisterModelRepository(server, "one"));
  registers(server, "one", renamed);
  fails(TRITONSERVER_ServerLoadModel(server, "model_0"), INTERNAL, gone);
  loads(server, "name_0", 1);
  expect(is_ready(server, "model_0", 1));
}

static void in_no_other_mode(TRITONSERVER_ModelControlMode mode) {
  TRITONSERVER_Server* server = start(mode);
  fails(TRITONSERVER_ServerRegisterModelRepository(server, "empty", NULL, 0), TRITONSERVER_ERROR_UNSUPPORTED,
        "repository registration is not allowed if model control mode is not EXPLICIT");
  fails(TRITONSERVER_ServerUnregisterModelRepository(server, "empty"), TRITONSERVER_ERROR_UNSUPPORTED,
        "repository unregistration is not allowed if model control mode is not EXPLICIT");
  succeeds(TRITONSERVER_ServerDelete(server));
}

int main(int argc, char** argv) {
  expect(argc == 2 && chdir(argv[1]) == 0);
  static void (*const cases[])(TRITONSERVER_Server*) = {
      one_repository, other_names, two_names_for_one, a_given_name_before_one_that_was_found, one_name_for_two,
      found_twice, found_twice_and_given_once, one_of_two_renamed, both_renamed, renamed_later};
  for (size_t at = 0; at < sizeof(cases) / sizeof(*cases); ++at) {
    TRITONSERVER_Server* server = start(TRITONSERVER_MODEL_CONTROL_EXPLICIT);
    cases[at](server);
    succeeds(TRITONSERVER_ServerDelete(server));
  }
  in_no_other_mode(TRITONSERVER_MODEL_CONTROL_POLL);
  in_no_other_mode(TRITONSERVER_MODEL_CONTROL_NONE);
  return 0;
}
