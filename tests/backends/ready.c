/* Says whether its instances are ready, as the file `ready` in the model's directory has it: `no` is no, `hang` waits
 * until the file says something else, and anything else is yes. Every question is told on stdout. Requests are answered
 * with an error, at once. */

#define _POSIX_C_SOURCE 199309L

#include <time.h>

#include "check.h"

#define EXPORT __attribute__((visibility("default")))

static bool word_is(TRITONBACKEND_ModelInstance* instance, const char* expected) {
  TRITONBACKEND_Model* model = NULL;
  TRITONBACKEND_ArtifactType kind;
  const char* directory = NULL;
  char path[4096], word[16] = "";
  succeeds(TRITONBACKEND_ModelInstanceModel(instance, &model));
  succeeds(TRITONBACKEND_ModelRepository(model, &kind, &directory));
  snprintf(path, sizeof path, "%s/ready", directory);
  FILE* file = fopen(path, "r");
  if (file == NULL) return false;
  const bool is_read = fscanf(file, "%15s", word) == 1;
  fclose(file);
  return is_read && strcmp(word, expected) == 0;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  const struct timespec pause = {0, 2000000};
  const char* name = NULL;
  bool is_passive = false;
  succeeds(TRITONBACKEND_ModelInstanceName(instance, &name));
  succeeds(TRITONBACKEND_ModelInstanceIsPassive(instance, &is_passive));
  printf("ready.c: asked %s passive %d.\n", name, is_passive);
  fflush(stdout);
  while (word_is(instance, "hang")) nanosleep(&pause, NULL);
  if (word_is(instance, "no")) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "ready.c: told so");
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  const char* name = NULL;
  succeeds(TRITONBACKEND_ModelInstanceName(instance, &name));
  printf("ready.c: ended %s.\n", name);
  fflush(stdout);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  (void)instance, (void)requests, (void)count;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "ready.c: executes nothing");
}
