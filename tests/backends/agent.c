/* A repository agent that tells what it is asked, and does what its parameters say:
 *
 *   tag=<word>        what its lines begin with
 *   check=            calls every function of the interface, rightly and wrongly
 *   move=<directory>  lets the model be loaded from there
 *   remote=<location> the same, as a location of a repository
 *   copy=<file>       makes a directory of its own with a version 1 that holds the file, and lets the model be loaded
 *                     from there
 *   fail=<action>     answers that action with an error
 *
 * Lines: `~ <tag> <action> <last component of the location>`. */

#include "check.h"

#include <sys/stat.h>

static const char* const ACTIONS[] = {"LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD", "UNLOAD_COMPLETE"};

static int agent_state, model_state;

static void tell(const char* tag, const char* what, const char* more) {
  printf("~ %s %s %s\n", tag, what, more);
  fflush(stdout);
}

/* The value of a parameter, or NULL. */
static const char* value_of(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* wanted) {
  uint32_t count = 0;
  expect(TRITONREPOAGENT_ModelParameterCount(agent, model, &count) == NULL);
  for (uint32_t at = 0; at < count; ++at) {
    const char *name = NULL, *value = NULL;
    expect(TRITONREPOAGENT_ModelParameter(agent, model, at, &name, &value) == NULL);
    if (strcmp(name, wanted) == 0) return value;
  }
  return NULL;
}

static const char* tag_of(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
  const char* tag = value_of(agent, model, "tag");
  return tag == NULL ? "untagged" : tag;
}

static const char* location_of(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
  TRITONREPOAGENT_ArtifactType type;
  const char* location = NULL;
  expect(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &location) == NULL);
  return location;
}

static const char* last_of(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash == NULL ? path : slash + 1;
}

/* What can be asked of an agent at any time. */
static void check_agent(TRITONREPOAGENT_Agent* agent) {
  uint32_t major = 9, minor = 9;
  succeeds(TRITONREPOAGENT_ApiVersion(&major, &minor));
  expect(major == TRITONREPOAGENT_API_VERSION_MAJOR && minor == TRITONREPOAGENT_API_VERSION_MINOR);
  fails(TRITONREPOAGENT_ApiVersion(&major, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  void* state = &state;
  succeeds(TRITONREPOAGENT_State(agent, &state));
  expect(state == &agent_state);
  fails(TRITONREPOAGENT_State(agent, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONREPOAGENT_State(NULL, &state), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONREPOAGENT_SetState(agent, &agent_state));
  fails(TRITONREPOAGENT_SetState(NULL, &agent_state), TRITONSERVER_ERROR_INVALID_ARG, NULL);
}

static void check_model(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
  void* state = &state;
  succeeds(TRITONREPOAGENT_ModelState(model, &state));
  expect(state == NULL);
  fails(TRITONREPOAGENT_ModelState(model, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONREPOAGENT_ModelSetState(model, &model_state));
  fails(TRITONREPOAGENT_ModelSetState(NULL, &model_state), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  expect(TRITONREPOAGENT_ModelState(model, &state) == NULL && state == &model_state);

  uint32_t count = 0;
  const char *name = NULL, *value = NULL;
  succeeds(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
  expect(count == 2);
  fails(TRITONREPOAGENT_ModelParameterCount(agent, NULL, &count), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONREPOAGENT_ModelParameter(agent, model, 0, &name, &value));
  expect(strcmp(name, "check") == 0 || strcmp(name, "tag") == 0);
  fails(TRITONREPOAGENT_ModelParameter(agent, model, 2, &name, &value), TRITONSERVER_ERROR_INVALID_ARG,
        "index out of range for model parameters");
  fails(TRITONREPOAGENT_ModelParameter(agent, model, 0, &name, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);

  TRITONSERVER_Message* message = NULL;
  succeeds(TRITONREPOAGENT_ModelConfig(agent, model, 1, &message));
  const char* base = NULL;
  size_t byte_size = 0;
  succeeds(TRITONSERVER_MessageSerializeToJson(message, &base, &byte_size));
  expect(byte_size > 0 && strstr(base, "\"identity\"") != NULL && strstr(base, "\"MD5\"") == NULL);
  expect(TRITONSERVER_MessageDelete(message) == NULL);
  fails(TRITONREPOAGENT_ModelConfig(agent, model, 2, &message), TRITONSERVER_ERROR_INVALID_ARG,
        "model configuration version 2 not supported, supported versions are: 1");
  fails(TRITONREPOAGENT_ModelConfig(agent, model, 1, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);

  TRITONREPOAGENT_ArtifactType type = TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM;
  const char* location = NULL;
  succeeds(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &location));
  expect(type == TRITONREPOAGENT_ARTIFACT_FILESYSTEM && strcmp(last_of(location), "m") == 0);
  fails(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONREPOAGENT_ModelRepositoryLocation(NULL, model, &type, &location), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, location),
        TRITONSERVER_ERROR_INVALID_ARG,
        "location can only be updated during TRITONREPOAGENT_ACTION_LOAD, current action type is not set");
}

static void check_locations(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
  const char *own = NULL, *again = NULL, *present = location_of(agent, model);
  fails(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, "/x"), TRITONSERVER_ERROR_UNAVAILABLE,
        "No mutable location to be deleted");
  fails(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM, &own),
        TRITONSERVER_ERROR_INVALID_ARG,
        "Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'");
  succeeds(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &own));
  expect(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &again) ==
         NULL);
  expect(strcmp(own, again) == 0);
  struct stat status;
  expect(stat(own, &status) == 0 && S_ISDIR(status.st_mode) && (status.st_mode & 0777) == 0700);
  fails(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, "/x"), TRITONSERVER_ERROR_INVALID_ARG,
        "'/x' is not the location that was acquired");
  succeeds(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, own));
  expect(stat(own, &status) != 0);
  fails(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, NULL),
        TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, (TRITONREPOAGENT_ArtifactType)7, present),
        TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, present));
}

/* A directory of the agent's own: `config.pbtxt` is not needed, the model keeps the one that named the agent. */
static TRITONSERVER_Error* copy_to_own(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* file) {
  const char* own = NULL;
  TRITONSERVER_Error* error =
      TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &own);
  if (error != NULL) return error;
  char path[4096];
  snprintf(path, sizeof path, "%s/1", own);
  expect(mkdir(path, 0700) == 0);
  snprintf(path, sizeof path, "%s/1/%s", own, file);
  FILE* made = fopen(path, "w");
  expect(made != NULL);
  fclose(made);
  tell(tag_of(agent, model), "own", own);
  return TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, own);
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent) {
  tell("agent", "initialize", "");
  return TRITONREPOAGENT_SetState(agent, &agent_state);
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_Finalize(TRITONREPOAGENT_Agent* agent) {
  void* state = NULL;
  expect(TRITONREPOAGENT_State(agent, &state) == NULL && state == &agent_state);
  tell("agent", "finalize", "");
  return NULL;
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
  tell(tag_of(agent, model), "initialize", last_of(location_of(agent, model)));
  const char* fail = value_of(agent, model, "fail");
  if (fail != NULL && strcmp(fail, "initialize") == 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "no such models");
  }
  if (value_of(agent, model, "check") != NULL) {
    check_agent(agent);
    check_model(agent, model);
  }
  return NULL;
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
  tell(tag_of(agent, model), "finalize", last_of(location_of(agent, model)));
  return NULL;
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action) {
  const char* present = location_of(agent, model);
  tell(tag_of(agent, model), ACTIONS[action], last_of(present));
  const char* fail = value_of(agent, model, "fail");
  if (fail != NULL && strcmp(fail, ACTIONS[action]) == 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "failing as it was told");
  }
  if (value_of(agent, model, "check") != NULL) {
    if (action == TRITONREPOAGENT_ACTION_LOAD) check_locations(agent, model);
    if (action == TRITONREPOAGENT_ACTION_LOAD_COMPLETE) {
      fails(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, present),
            TRITONSERVER_ERROR_INVALID_ARG,
            "location can only be updated during TRITONREPOAGENT_ACTION_LOAD, current action type is "
            "TRITONREPOAGENT_ACTION_LOAD_COMPLETE");
    }
  }
  if (action != TRITONREPOAGENT_ACTION_LOAD) return NULL;
  const char* move = value_of(agent, model, "move");
  if (move != NULL) {
    return TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, move);
  }
  const char* remote = value_of(agent, model, "remote");
  if (remote != NULL) {
    return TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM, remote);
  }
  const char* copy = value_of(agent, model, "copy");
  return copy == NULL ? NULL : copy_to_own(agent, model, copy);
}
