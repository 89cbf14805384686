/* A backend that adds up what the requests of a sequence bring, in the three ways in which a model can do so.
 *
 * Model parameter "mode":
 *   "rows"    sums by row, kept by the instance: CONTROL_SEQUENCE_READY says which rows count, CONTROL_SEQUENCE_START
 *             which start anew (inputs READY and START, both INT32);
 *   "states"  sums as implicit state: input BEFORE and output AFTER, both INT32;
 *   "laps"    as "states", and a request is given back until it was executed as often as its INPUT0 says; its answer is
 *             the number of executions;
 *   "stateless"  updates a state that it does not have.
 * Model parameter "sleep": every execution takes so many milliseconds.
 * INPUT0 and OUTPUT0 are INT32 of one element. Response parameters tell what a model sees beside its tensors: "rows"
 * (of the batch), "row", "instance", and "id" (the correlation id: "7", or the text of one). */

#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton/core/tritonbackend.h"

/* What the shared header does not declare. */
enum { TYPE_INT32 = 8, RELEASE_RESCHEDULE = 2 };
typedef struct TRITONSERVER_BufferAttributes TRITONSERVER_BufferAttributes;
typedef struct TRITONBACKEND_State TRITONBACKEND_State;
TRITONSERVER_Error* TRITONSERVER_BufferAttributesByteSize(TRITONSERVER_BufferAttributes* attributes, size_t* byte_size);
TRITONSERVER_Error* TRITONBACKEND_RequestCorrelationId(TRITONBACKEND_Request* request, uint64_t* id);
TRITONSERVER_Error* TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request* request, const char** id);
TRITONSERVER_Error* TRITONBACKEND_StateNew(TRITONBACKEND_State** state, TRITONBACKEND_Request* request,
    const char* name, const TRITONSERVER_DataType datatype, const int64_t* shape, const uint32_t dims_count);
TRITONSERVER_Error* TRITONBACKEND_StateUpdate(TRITONBACKEND_State* state);
TRITONSERVER_Error* TRITONBACKEND_StateBuffer(TRITONBACKEND_State* state, void** buffer,
    const uint64_t buffer_byte_size, TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id);
TRITONSERVER_Error* TRITONBACKEND_StateBufferAttributes(TRITONBACKEND_State* state,
    TRITONSERVER_BufferAttributes** buffer_attributes);

#define EXPORT __attribute__((visibility("default")))
#define ROWS_MAX 64

#define TRY(call)                        \
  do {                                   \
    TRITONSERVER_Error* failed = (call); \
    if (failed != NULL) return failed;   \
  } while (0)

/* What cannot fail unless the server is broken. */
#define MUST(call)                                                              \
  do {                                                                          \
    TRITONSERVER_Error* broken = (call);                                        \
    if (broken != NULL) {                                                       \
      fprintf(stderr, "sequences.c: %s\n", TRITONSERVER_ErrorMessage(broken)); \
      abort();                                                                  \
    }                                                                           \
  } while (0)

enum Mode { ROWS, STATES, LAPS, STATELESS };

struct Model {
  enum Mode mode;
  long sleep_ms;
};

struct Instance {
  int32_t sums[ROWS_MAX];
};

/* The text behind `"<key>":{"string_value":"` in the configuration. */
static const char* parameter(const char* json, const char* key) {
  char start[128];
  snprintf(start, sizeof start, "\"%s\":{\"string_value\":\"", key);
  const char* at = strstr(json, start);
  return at == NULL ? "" : at + strlen(start);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* handle) {
  TRITONSERVER_Message* message = NULL;
  const char* base = NULL;
  size_t length = 0;
  TRY(TRITONBACKEND_ModelConfig(handle, 1, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &base, &length));
  char* json = calloc(1, length + 1);
  struct Model* model = calloc(1, sizeof *model);
  if (json == NULL || model == NULL)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "sequences.c: out of memory");
  memcpy(json, base, length);
  const char* mode = parameter(json, "mode");
  model->mode = strncmp(mode, "states\"", 7) == 0 ? STATES : strncmp(mode, "laps", 4) == 0 ? LAPS
      : strncmp(mode, "stateless", 9) == 0                                             ? STATELESS
                                                                                       : ROWS;
  model->sleep_ms = atol(parameter(json, "sleep"));
  free(json);
  TRY(TRITONSERVER_MessageDelete(message));
  return TRITONBACKEND_ModelSetState(handle, model);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* handle) {
  void* model = NULL;
  TRY(TRITONBACKEND_ModelState(handle, &model));
  free(model);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* handle) {
  return TRITONBACKEND_ModelInstanceSetState(handle, calloc(1, sizeof(struct Instance)));
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* handle) {
  void* instance = NULL;
  TRY(TRITONBACKEND_ModelInstanceState(handle, &instance));
  free(instance);
  return NULL;
}

static TRITONSERVER_Error* number(TRITONBACKEND_Request* request, const char* name, int32_t* value) {
  TRITONBACKEND_Input* input = NULL;
  const void* buffer = NULL;
  uint64_t size = 0;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_RequestInput(request, name, &input));
  TRY(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &memory, &id));
  if (size != sizeof *value) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "sequences.c: a wrong size");
  memcpy(value, buffer, sizeof *value);
  return NULL;
}

static TRITONSERVER_Error* update(TRITONBACKEND_Request* request, int32_t value) {
  TRITONBACKEND_State* state = NULL;
  TRITONSERVER_BufferAttributes* attributes = NULL;
  void* buffer = NULL;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  size_t size = 0;
  const int64_t shape[] = {1, 1};
  TRY(TRITONBACKEND_StateNew(&state, request, "AFTER", (TRITONSERVER_DataType)TYPE_INT32, shape, 2));
  TRY(TRITONBACKEND_StateBuffer(state, &buffer, sizeof value, &memory, &id));
  TRY(TRITONBACKEND_StateBufferAttributes(state, &attributes));
  TRY(TRITONSERVER_BufferAttributesByteSize(attributes, &size));
  if (size != sizeof value) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "sequences.c: a wrong size");
  memcpy(buffer, &value, sizeof value);
  return TRITONBACKEND_StateUpdate(state);
}

/* The request's sequence: its number or its text. */
static void sequence_id(TRITONBACKEND_Request* request, char* text, size_t room) {
  const char* name = NULL;
  uint64_t id = 0;
  TRITONSERVER_Error* failed = TRITONBACKEND_RequestCorrelationId(request, &id);
  if (failed == NULL) {
    snprintf(text, room, "%llu", (unsigned long long)id);
    return;
  }
  TRITONSERVER_ErrorDelete(failed);
  MUST(TRITONBACKEND_RequestCorrelationIdString(request, &name));
  snprintf(text, room, "%s", name);
}

/* What a request adds to; *lap is false once it has been executed often enough. */
static TRITONSERVER_Error* add(const struct Model* model, struct Instance* instance, TRITONBACKEND_Request* request,
    uint32_t row, int32_t* sum, bool* lap) {
  int32_t value = 0, ready = 0, start = 0;
  *lap = false;
  TRY(number(request, "INPUT0", &value));
  if (model->mode == ROWS) {
    TRY(number(request, "READY", &ready));
    TRY(number(request, "START", &start));
    if (row >= ROWS_MAX) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "sequences.c: too many rows");
    if (start != 0) instance->sums[row] = 0;
    if (ready != 0) instance->sums[row] += value;
    *sum = instance->sums[row];
    return NULL;
  }
  if (model->mode == STATELESS) return update(request, value);
  TRY(number(request, "BEFORE", sum));
  *sum += model->mode == LAPS ? 1 : value;
  *lap = model->mode == LAPS && *sum < value;
  return update(request, *sum);
}

static TRITONSERVER_Error* fill(TRITONBACKEND_Response* response, int32_t sum) {
  TRITONBACKEND_Output* output = NULL;
  void* buffer = NULL;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  const int64_t shape[] = {1, 1};
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", (TRITONSERVER_DataType)TYPE_INT32, shape, 2));
  TRY(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof sum, &memory, &id));
  memcpy(buffer, &sum, sizeof sum);
  return NULL;
}

static void answer(TRITONBACKEND_ModelInstance* handle, TRITONBACKEND_Request* request, uint32_t rows, uint32_t row,
    int32_t sum, TRITONSERVER_Error* failed) {
  TRITONBACKEND_Response* response = NULL;
  const char* name = NULL;
  char id[128];
  MUST(TRITONBACKEND_ResponseNew(&response, request));
  MUST(TRITONBACKEND_ModelInstanceName(handle, &name));
  sequence_id(request, id, sizeof id);
  MUST(TRITONBACKEND_ResponseSetIntParameter(response, "rows", (int64_t)rows));
  MUST(TRITONBACKEND_ResponseSetIntParameter(response, "row", (int64_t)row));
  MUST(TRITONBACKEND_ResponseSetStringParameter(response, "instance", name));
  MUST(TRITONBACKEND_ResponseSetStringParameter(response, "id", id));
  if (failed == NULL) failed = fill(response, sum);
  MUST(TRITONBACKEND_ModelInstanceReportStatistics(handle, request, failed == NULL, 1, 2, 3, 4));
  MUST(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, failed));
  if (failed != NULL) TRITONSERVER_ErrorDelete(failed);
  MUST(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* handle,
    TRITONBACKEND_Request** requests, const uint32_t count) {
  TRITONBACKEND_Model* model_handle = NULL;
  void *model = NULL, *instance = NULL;
  MUST(TRITONBACKEND_ModelInstanceModel(handle, &model_handle));
  MUST(TRITONBACKEND_ModelState(model_handle, &model));
  MUST(TRITONBACKEND_ModelInstanceState(handle, &instance));
  long ms = ((struct Model*)model)->sleep_ms;
  struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
  if (ms > 0) nanosleep(&pause, NULL);
  MUST(TRITONBACKEND_ModelInstanceReportBatchStatistics(handle, count, 1, 2, 3, 4));
  for (uint32_t row = 0; row < count; row++) {
    int32_t sum = 0;
    bool lap = false;
    TRITONSERVER_Error* failed = add(model, instance, requests[row], row, &sum, &lap);
    if (failed == NULL && lap) {
      failed = TRITONBACKEND_RequestRelease(requests[row], RELEASE_RESCHEDULE);
      if (failed == NULL) continue;
    }
    answer(handle, requests[row], count, row, sum, failed);
  }
  return NULL;
}
