/* A backend that answers from its own threads, after its requests were released, through response factories. One
 * response for every element of INPUT0 (INT32): OUTPUT0 = that element, shape [1]. Then the end.
 *
 * Request parameter "do" (string) says what it does otherwise:
 *   together   the end comes with the last response;
 *   never      the factory is deleted without an end;
 *   nothing    the same, and without any response;
 *   twice      the end comes twice, and a response behind it;
 *   error      every response is an error UNKNOWN "trouble at <element>";
 *   shape      the output's bytes do not fit its shape;
 *   empty      flags without FINAL between the responses, which say nothing;
 *   cancelled  sends its first response, then waits until the request is cancelled; the end comes after that;
 *   report     reports statistics: success, empty, failure, cancellation in turn, and times out of order, whose three
 *              refusals are sent back as parameters "refusal<i>";
 *   state      sends back what creating a state was refused with;
 *   big        every output has a MiB, its elements all the same. */

#define _POSIX_C_SOURCE 199309L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton/core/tritonbackend.h"

#define EXPORT __attribute__((visibility("default")))

/* Nothing here may fail; if it does, the server is wrong and a test must see it. */
static void expect(TRITONSERVER_Error* error) {
  if (error == NULL) return;
  fprintf(stderr, "later.c: unexpected error: %s\n", TRITONSERVER_ErrorMessage(error));
  abort();
}

typedef struct {
  TRITONBACKEND_ResponseFactory* factory;
  TRITONBACKEND_ModelInstance* instance;
  char what[32];
  char state[256]; /* why there is no state */
  uint64_t count;
  int32_t* values;
} Task;

static bool is(const Task* task, const char* what) { return strcmp(task->what, what) == 0; }

static void pause_ms(long ms) {
  struct timespec time = {ms / 1000, (ms % 1000) * 1000000};
  nanosleep(&time, NULL);
}

static TRITONBACKEND_Response* response_of(Task* task, int32_t value) {
  TRITONBACKEND_Response* response;
  expect(TRITONBACKEND_ResponseNewFromFactory(&response, task->factory));
  const int64_t count = is(task, "big") ? (1 << 18) : 1;
  const int64_t shape[1] = {is(task, "shape") ? count + 6 : count};
  TRITONBACKEND_Output* output;
  expect(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", TRITONSERVER_TYPE_INT32, shape, 1));
  void* buffer;
  TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  expect(TRITONBACKEND_OutputBuffer(output, &buffer, (uint64_t)count * 4, &kind, &id));
  for (int64_t at = 0; at < count; at++) memcpy((char*)buffer + at * 4, &value, 4);
  /* What was just said can be read back. */
  const char* name;
  TRITONSERVER_DataType type;
  const int64_t* dims;
  uint64_t rank;
  expect(TRITONBACKEND_InferenceResponseOutput(response, 0, &name, &type, &dims, &rank));
  if (strcmp(name, "OUTPUT0") != 0 || type != TRITONSERVER_TYPE_INT32 || rank != 1 || dims[0] != shape[0]) abort();
  expect(TRITONBACKEND_InferenceResponseOutputByName(response, "OUTPUT0", &type, &dims, &rank));
  return response;
}

static void send(TRITONBACKEND_Response* response, uint32_t flags, const char* text) {
  TRITONSERVER_Error* error = text == NULL ? NULL : TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNKNOWN, text);
  expect(TRITONBACKEND_ResponseSend(response, flags, error));
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
}

static TRITONSERVER_Error* report(Task* task, uint64_t start, uint64_t output, uint64_t end, int code) {
  TRITONBACKEND_ModelInstanceResponseStatistics* it;
  expect(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&it));
  expect(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(it, task->instance));
  expect(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(it, task->factory));
  expect(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(it, start));
  if (output > 0) expect(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(it, output));
  expect(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(it, end));
  TRITONSERVER_Error* error = code < 0 ? NULL : TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)code, "x");
  expect(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(it, error));
  TRITONSERVER_Error* outcome = TRITONBACKEND_ModelInstanceReportResponseStatistics(it);
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
  expect(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(it));
  return outcome;
}

static void refused(TRITONBACKEND_Response* response, int at, TRITONSERVER_Error* error) {
  char key[16];
  snprintf(key, sizeof key, "refusal%d", at);
  expect(TRITONBACKEND_ResponseSetStringParameter(response, key, error ? TRITONSERVER_ErrorMessage(error) : ""));
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
}

static void* answer(void* given) {
  Task* task = given;
  for (uint64_t at = 0; at < task->count && !is(task, "nothing"); at++) {
    char text[64];
    snprintf(text, sizeof text, "trouble at %d", task->values[at]);
    bool last = is(task, "together") && at + 1 == task->count;
    TRITONBACKEND_Response* response = response_of(task, task->values[at]);
    if (is(task, "report")) {
      expect(report(task, 10, 14, 20, -1));
      expect(report(task, 10, 0, 20, -1));
      expect(report(task, 10, 14, 20, TRITONSERVER_ERROR_UNKNOWN));
      expect(report(task, 10, 0, 20, TRITONSERVER_ERROR_CANCELLED));
      refused(response, 0, report(task, 10, 9, 20, -1));
      refused(response, 1, report(task, 10, 30, 20, -1));
      refused(response, 2, report(task, 30, 0, 20, -1));
    }
    if (task->state[0] != '\0') expect(TRITONBACKEND_ResponseSetStringParameter(response, "state", task->state));
    send(response, last ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, is(task, "error") ? text : NULL);
    if (is(task, "empty")) expect(TRITONBACKEND_ResponseFactorySendFlags(task->factory, 0));
    bool cancelled = false;
    while (is(task, "cancelled") && !cancelled) {
      expect(TRITONBACKEND_ResponseFactoryIsCancelled(task->factory, &cancelled));
      if (!cancelled) pause_ms(1);
    }
    if (cancelled) {
      fprintf(stderr, "later.c: saw the cancellation\n");
      break;
    }
  }
  bool ends = !is(task, "together") && !is(task, "never") && !is(task, "nothing");
  const uint32_t end = TRITONSERVER_RESPONSE_COMPLETE_FINAL;
  if (ends) expect(TRITONBACKEND_ResponseFactorySendFlags(task->factory, end));
  if (is(task, "twice")) {
    send(response_of(task, -1), end, NULL);
    expect(TRITONBACKEND_ResponseFactorySendFlags(task->factory, end));
  }
  expect(TRITONBACKEND_ResponseFactoryDelete(task->factory));
  free(task->values);
  free(task);
  return NULL;
}

static void read_values(Task* task, TRITONBACKEND_Request* request) {
  TRITONBACKEND_Input* input;
  expect(TRITONBACKEND_RequestInput(request, "INPUT0", &input));
  uint64_t bytes, at = 0;
  uint32_t buffers;
  expect(TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, &bytes, &buffers));
  task->count = bytes / 4;
  task->values = malloc(bytes + 4);
  for (uint32_t index = 0; index < buffers; index++) {
    const void* buffer;
    uint64_t size;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    expect(TRITONBACKEND_InputBuffer(input, index, &buffer, &size, &kind, &id));
    memcpy((char*)task->values + at, buffer, size);
    at += size;
  }
}

static void start(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
  Task* task = calloc(1, sizeof *task);
  task->instance = instance;
  uint32_t parameters;
  expect(TRITONBACKEND_RequestParameterCount(request, &parameters));
  for (uint32_t index = 0; index < parameters; index++) {
    const char* key;
    TRITONSERVER_ParameterType type;
    const void* value;
    expect(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    if (strcmp(key, "do") == 0) snprintf(task->what, sizeof task->what, "%s", (const char*)value);
  }
  if (is(task, "state")) {
    TRITONBACKEND_State* state;
    const int64_t shape[1] = {1};
    TRITONSERVER_Error* error = TRITONBACKEND_StateNew(&state, request, "S", TRITONSERVER_TYPE_INT32, shape, 1);
    if (error == NULL) abort();
    snprintf(task->state, sizeof task->state, "%s", TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
  }
  TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_GPU;
  int64_t id = 7;
  expect(TRITONBACKEND_RequestOutputBufferProperties(request, "OUTPUT0", NULL, &kind, &id));
  if (kind != TRITONSERVER_MEMORY_CPU || id != 0) abort();
  read_values(task, request);
  expect(TRITONBACKEND_ResponseFactoryNew(&task->factory, request));
  expect(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  pthread_t thread;
  if (pthread_create(&thread, NULL, answer, task) != 0) abort();
  pthread_detach(thread);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
    TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; index++) start(instance, requests[index]);
  return NULL;
}
