/* Ends or stops its process while it loads a model, in the way that the model's name says: `segfault`, `abort`, `exit`,
 * `hang` (with a child of its own, in a session of its own, whose number is in the file `child` of the model's
 * directory), `late` (crashes when the model is unloaded), `chatty` (writes more than anyone keeps, and crashes). Any
 * other model is loaded. */

#define _DEFAULT_SOURCE

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

#define EXPORT __attribute__((visibility("default")))

static void crash(void) {
  volatile int* volatile nowhere = NULL;
  *nowhere = 1;
}

static void hang(TRITONBACKEND_Model* model) {
  TRITONBACKEND_ArtifactType kind;
  const char* directory = NULL;
  char path[4096], unfinished[4096];
  succeeds(TRITONBACKEND_ModelRepository(model, &kind, &directory));
  snprintf(path, sizeof path, "%s/child", directory);
  snprintf(unfinished, sizeof unfinished, "%s/unfinished", directory);
  if (fork() == 0) {
    setsid();
    FILE* file = fopen(unfinished, "w");
    if (file != NULL) {
      fprintf(file, "%d", (int)getpid());
      fclose(file);
      rename(unfinished, path);
    }
    for (;;) pause();
  }
  for (;;) pause();
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const char* name = NULL;
  succeeds(TRITONBACKEND_ModelName(model, &name));
  printf("ending.c: %s.\n", name);
  fflush(stdout);
  if (strcmp(name, "chatty") == 0) {
    for (int line = 0; line < 100000; line++) printf("ending.c: line %d of many.\n", line);
    fflush(stdout);
    crash();
  }
  if (strcmp(name, "segfault") == 0) crash();
  if (strcmp(name, "abort") == 0) abort();
  if (strcmp(name, "exit") == 0) _exit(0);
  if (strcmp(name, "hang") == 0) hang(model);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  const char* name = NULL;
  succeeds(TRITONBACKEND_ModelName(model, &name));
  if (strcmp(name, "late") == 0) crash();
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  (void)instance, (void)requests, (void)count;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "ending.c: executes nothing");
}
