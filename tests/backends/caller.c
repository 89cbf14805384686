/* A backend whose models ask another model and answer with what it says.
 *
 * Model parameter "callee" names that model. Both have INPUT0 and OUTPUT0, INT32, one dimension. The other model reads
 * the input where this one has it for the host policy of its instance. A response tells in its parameters who answered
 * ("callee"), where each piece of the input lies ("from", `type:id` and a blank for each) and where the output would
 * best be written ("place", as `type:id`, or the error of the question), and whether the request is traced ("traced").
 * A request with the parameter "twice" asks again with the same request object. */

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton/core/tritonbackend.h"
#include "triton/core/tritonserver.h"

#define EXPORT __attribute__((visibility("default")))

#define TRY(call)                        \
  do {                                   \
    TRITONSERVER_Error* failed = (call); \
    if (failed != NULL) return failed;   \
  } while (0)

/* What cannot fail unless the server is broken. */
#define MUST(call)                                                            \
  do {                                                                        \
    TRITONSERVER_Error* broken = (call);                                      \
    if (broken != NULL) {                                                     \
      fprintf(stderr, "caller.c: %s\n", TRITONSERVER_ErrorMessage(broken));   \
      abort();                                                                \
    }                                                                         \
  } while (0)

typedef struct Model {
  TRITONSERVER_Server* server;
  TRITONSERVER_ResponseAllocator* allocator;
  char callee[128];
} Model;

enum { FROM_SIZE = 256, POLICY_SIZE = 64 };

/* One question, and what came of it. */
typedef struct Question {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int answers, releases;
  TRITONSERVER_InferenceResponse* response;
} Question;

static TRITONSERVER_Error* alloc_output(
    TRITONSERVER_ResponseAllocator* allocator, const char* tensor_name, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void* userp, void** buffer, void** buffer_userp,
    TRITONSERVER_MemoryType* actual_memory_type, int64_t* actual_memory_type_id) {
  (void)allocator, (void)tensor_name, (void)memory_type, (void)memory_type_id, (void)userp;
  *buffer = byte_size > 0 ? malloc(byte_size) : NULL;
  *buffer_userp = NULL;
  *actual_memory_type = TRITONSERVER_MEMORY_CPU;
  *actual_memory_type_id = 0;
  return NULL;
}

static TRITONSERVER_Error* free_output(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id) {
  (void)allocator, (void)buffer_userp, (void)byte_size, (void)memory_type, (void)memory_type_id;
  free(buffer);
  return NULL;
}

static void answered(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  Question* question = userp;
  pthread_mutex_lock(&question->lock);
  if (response != NULL) question->response = response;
  if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) ++question->answers;
  pthread_cond_signal(&question->changed);
  pthread_mutex_unlock(&question->lock);
}

static void released(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  (void)request, (void)flags;
  Question* question = userp;
  pthread_mutex_lock(&question->lock);
  ++question->releases;
  pthread_cond_signal(&question->changed);
  pthread_mutex_unlock(&question->lock);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* handle) {
  TRITONSERVER_Message* message = NULL;
  const char* text = NULL;
  size_t size = 0;
  Model* model = calloc(1, sizeof(Model));
  TRY(TRITONBACKEND_ModelServer(handle, &model->server));
  TRY(TRITONSERVER_ResponseAllocatorNew(&model->allocator, alloc_output, free_output, NULL));
  TRY(TRITONBACKEND_ModelConfig(handle, 1, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  const char* at = strstr(text, "\"callee\"");
  at = at == NULL ? NULL : strstr(at, "string_value\":\"");
  if (at != NULL) sscanf(at, "string_value\":\"%127[^\"]", model->callee);
  MUST(TRITONSERVER_MessageDelete(message));
  return TRITONBACKEND_ModelSetState(handle, model);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* handle) {
  void* state = NULL;
  TRY(TRITONBACKEND_ModelState(handle, &state));
  if (state != NULL) MUST(TRITONSERVER_ResponseAllocatorDelete(((Model*)state)->allocator));
  free(state);
  return NULL;
}

/* Sends the question and waits until it is answered and the request is ours again. */
static TRITONSERVER_Error* ask(Model* model, TRITONSERVER_InferenceRequest* inner, TRITONBACKEND_Request* request,
                               Question* question, bool* is_traced) {
  TRITONSERVER_InferenceTrace *trace = NULL, *child = NULL;
  TRY(TRITONBACKEND_RequestTrace(request, &trace));
  *is_traced = trace != NULL;
  if (trace != NULL) TRY(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child));
  TRY(TRITONSERVER_ServerInferAsync(model->server, inner, child));
  pthread_mutex_lock(&question->lock);
  while (question->answers == 0 || question->releases == 0) pthread_cond_wait(&question->changed, &question->lock);
  question->answers = question->releases = 0;
  pthread_mutex_unlock(&question->lock);
  return TRITONSERVER_InferenceResponseError(question->response) == NULL
             ? NULL
             : TRITONSERVER_ErrorNew(
                   TRITONSERVER_ErrorCode(TRITONSERVER_InferenceResponseError(question->response)),
                   TRITONSERVER_ErrorMessage(TRITONSERVER_InferenceResponseError(question->response)));
}

static TRITONSERVER_Error* describe(Model* model, TRITONSERVER_InferenceRequest* inner, TRITONBACKEND_Request* request,
                                    const char* policy, char* from, Question* question) {
  TRITONBACKEND_Input* input = NULL;
  const char* name = NULL;
  const int64_t* shape = NULL;
  TRITONSERVER_DataType datatype;
  uint32_t dims = 0, buffers = 0;
  uint64_t byte_size = 0;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(TRITONBACKEND_InputPropertiesForHostPolicy(
      input, policy, &name, &datatype, &shape, &dims, &byte_size, &buffers));
  TRY(TRITONSERVER_InferenceRequestAddInput(inner, "INPUT0", datatype, shape, dims));
  for (uint32_t at = 0; at < buffers; ++at) {
    const void* buffer = NULL;
    TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
    int64_t memory_type_id = 0;
    TRY(TRITONBACKEND_InputBufferForHostPolicy(
        input, policy, at, &buffer, &byte_size, &memory_type, &memory_type_id));
    size_t length = strlen(from);
    snprintf(from + length, FROM_SIZE - length, "%d:%d ", (int)memory_type, (int)memory_type_id);
    TRY(TRITONSERVER_InferenceRequestAppendInputData(inner, "INPUT0", buffer, byte_size, memory_type, memory_type_id));
  }
  TRY(TRITONSERVER_InferenceRequestSetId(inner, "asked"));
  TRY(TRITONSERVER_InferenceRequestSetReleaseCallback(inner, released, question));
  return TRITONSERVER_InferenceRequestSetResponseCallback(inner, model->allocator, NULL, answered, question);
}

static bool asks_twice(TRITONBACKEND_Request* request) {
  uint32_t count = 0;
  MUST(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t at = 0; at < count; ++at) {
    const char* key = NULL;
    TRITONSERVER_ParameterType type;
    const void* value = NULL;
    MUST(TRITONBACKEND_RequestParameter(request, at, &key, &type, &value));
    if (strcmp(key, "twice") == 0) return true;
  }
  return false;
}

/* Answers `request` with the response of the other model. */
static TRITONSERVER_Error* pass_on(TRITONBACKEND_Response* response, TRITONBACKEND_Request* request,
                                   TRITONSERVER_InferenceResponse* found) {
  const char* name = NULL;
  TRITONSERVER_DataType datatype;
  const int64_t* shape = NULL;
  uint64_t dims = 0;
  const void* base = NULL;
  size_t byte_size = 0;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0, version = 0;
  void* userp = NULL;
  TRY(TRITONSERVER_InferenceResponseOutput(
      found, 0, &name, &datatype, &shape, &dims, &base, &byte_size, &memory_type, &memory_type_id, &userp));
  char place[256];
  size_t wanted = byte_size;
  TRITONSERVER_Error* unknown =
      TRITONBACKEND_RequestOutputBufferProperties(request, "OUTPUT0", &wanted, &memory_type, &memory_type_id);
  if (unknown == NULL) {
    snprintf(place, sizeof(place), "%d:%d", (int)memory_type, (int)memory_type_id);
  } else {
    snprintf(place, sizeof(place), "%s", TRITONSERVER_ErrorMessage(unknown));
    TRITONSERVER_ErrorDelete(unknown);
  }
  TRITONBACKEND_Output* output = NULL;
  void* buffer = NULL;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", datatype, shape, (uint32_t)dims));
  TRY(TRITONBACKEND_OutputBuffer(output, &buffer, byte_size, &memory_type, &memory_type_id));
  if (byte_size > 0) memcpy(buffer, base, byte_size);
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "place", place));
  TRY(TRITONSERVER_InferenceResponseModel(found, &name, &version));
  return TRITONBACKEND_ResponseSetStringParameter(response, "callee", name);
}

static TRITONSERVER_Error* answer(Model* model, const char* policy, TRITONBACKEND_Request* request,
                                  TRITONBACKEND_Response* response) {
  char from[FROM_SIZE] = "";
  Question question = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, NULL};
  TRITONSERVER_InferenceRequest* inner = NULL;
  TRY(TRITONSERVER_InferenceRequestNew(&inner, model->server, model->callee, -1));
  bool is_traced = false;
  TRITONSERVER_Error* error = describe(model, inner, request, policy, from, &question);
  if (error == NULL) error = ask(model, inner, request, &question, &is_traced);
  if (error == NULL && asks_twice(request)) {
    MUST(TRITONSERVER_InferenceResponseDelete(question.response));
    question.response = NULL;
    error = ask(model, inner, request, &question, &is_traced);
  }
  if (error == NULL) error = pass_on(response, request, question.response);
  if (error == NULL) error = TRITONBACKEND_ResponseSetStringParameter(response, "from", from);
  if (error == NULL) error = TRITONBACKEND_ResponseSetBoolParameter(response, "traced", is_traced);
  if (question.response != NULL) MUST(TRITONSERVER_InferenceResponseDelete(question.response));
  MUST(TRITONSERVER_InferenceRequestDelete(inner));
  return error;
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The one key of the document {"<policy>":{...}}. */
static TRITONSERVER_Error* read_policy(TRITONBACKEND_ModelInstance* instance, char* policy) {
  TRITONSERVER_Message* message = NULL;
  const char* text = NULL;
  size_t size = 0;
  TRY(TRITONBACKEND_ModelInstanceHostPolicy(instance, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  return sscanf(text, "{\"%63[^\"]\"", policy) == 1
             ? NULL
             : TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "caller.c: no host policy");
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t request_count) {
  TRITONBACKEND_Model* handle = NULL;
  void* state = NULL;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &handle));
  TRY(TRITONBACKEND_ModelState(handle, &state));
  char policy[POLICY_SIZE] = "";
  TRY(read_policy(instance, policy));
  for (uint32_t at = 0; at < request_count; ++at) {
    TRITONBACKEND_Response* response = NULL;
    const uint64_t start = now_ns();
    MUST(TRITONBACKEND_ResponseNew(&response, requests[at]));
    TRITONSERVER_Error* error = answer(state, policy, requests[at], response);
    MUST(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    const uint64_t end = now_ns();
    MUST(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[at], error == NULL, start, start, end, end));
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
    MUST(TRITONBACKEND_RequestRelease(requests[at], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
