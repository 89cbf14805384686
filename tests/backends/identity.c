/* An identity backend behind Triton's C interface: OUTPUT<i> is INPUT<i>, request by request, with the four response
 * parameters that the built-in identity sends, so that a test can hold the two against each other.
 *
 * Request parameters steer what the built-in one cannot be made to do:
 *   fail   (string) this request is answered with that text as INVALID_ARG, its neighbours are not touched;
 *   refuse (string) the whole call returns that text as UNAVAILABLE and keeps none of its requests;
 *   report (bool)   the response carries what the interface told about request, model, instance and backend.
 * Any other parameter comes back as response parameter "echo_<key>" when report is set.
 *
 * Model parameters steer loading and running, for tests of the life cycle:
 *   fail_load        ModelInitialize fails with that text;
 *   fail_file        a file with a number: while it is positive, ModelInitialize counts it down and fails;
 *   load_delay_ms    ModelInitialize takes that long;
 *   load_journal     a file that gets a line "begin <model> <version>" and one "end ..." for every ModelInitialize,
 *                    "gone ..." for every ModelFinalize and "less ..." for every ModelInstanceFinalize;
 *   load_together    a number: ModelInitialize takes until the journal has so many lines "begin";
 *   load_until       ModelInitialize takes until there is a file of this path;
 *   execute_delay_ms every execution takes that long;
 *   execute_until    every execution takes until there is a file of this path. One that has to wait writes the line
 *                    "identity.c: <model> holds" to the standard error stream. */

#define _POSIX_C_SOURCE 199309L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "triton/core/tritonbackend.h"

#define EXPORT __attribute__((visibility("default")))

/* Leaves the function with the error of `call`, if it has one. */
#define TRY(call)                        \
  do {                                   \
    TRITONSERVER_Error* failed = (call); \
    if (failed != NULL) return failed;   \
  } while (0)

/* For calls that may not fail at this point: says so in the log and goes on. */
#define EXPECT(call)                                                                                \
  do {                                                                                              \
    TRITONSERVER_Error* failed = (call);                                                            \
    if (failed != NULL) {                                                                           \
      note(TRITONSERVER_LOG_ERROR, "unexpected error", TRITONSERVER_ErrorMessage(failed));          \
      TRITONSERVER_ErrorDelete(failed);                                                             \
    }                                                                                               \
  } while (0)

typedef struct {
  uint32_t major, minor;
  char* name;
  char* config;
  int models; /* loaded models; only touched while models load and unload */
} Backend;

typedef struct {
  Backend* backend;
  char* name;
  uint64_t version;
  char* config;
  bool batches;
  uint64_t execute_delay_ms;
} Model;

typedef struct {
  Model* model;
  char* name;
  TRITONSERVER_InstanceGroupKind kind;
  uint64_t calls;
} Instance;

static void note(TRITONSERVER_LogLevel level, const char* what, const char* detail) {
  char line[512];
  snprintf(line, sizeof line, "identity.c: %s: %s", what, detail);
  TRITONSERVER_Error* failed = TRITONSERVER_LogMessage(level, __FILE__, __LINE__, line);
  if (failed != NULL) TRITONSERVER_ErrorDelete(failed);
}

static TRITONSERVER_Error* out_of_memory(void) {
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "identity.c: out of memory");
}

static char* copy_text(const char* base, size_t length) {
  char* text = malloc(length + 1);
  if (text != NULL) {
    memcpy(text, base, length);
    text[length] = '\0';
  }
  return text;
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The JSON of a message as a string of ours; the text inside the message need not end in a NUL. */
static TRITONSERVER_Error* copy_json(TRITONSERVER_Message* message, char** json) {
  const char* base = NULL;
  size_t length = 0;
  TRY(TRITONSERVER_MessageSerializeToJson(message, &base, &length));
  *json = copy_text(base, length);
  return *json == NULL ? out_of_memory() : NULL;
}

/* The text of the string member `key` that follows `from`, or NULL. Enough for the flat members looked for here. */
static char* json_string_after(const char* json, const char* from, const char* key) {
  const char* at = strstr(json, from);
  if (at == NULL) return NULL;
  at = strstr(at, key);
  if (at == NULL) return NULL;
  at += strlen(key);
  while (*at == ' ' || *at == ':') at++;
  if (*at != '"') return NULL;
  const char* end = strchr(++at, '"');
  return end == NULL ? NULL : copy_text(at, (size_t)(end - at));
}

/* The string value of a model parameter, or NULL. */
static char* model_parameter(const Model* model, const char* key) {
  char quoted[64];
  snprintf(quoted, sizeof quoted, "\"%s\"", key);
  return json_string_after(model->config, quoted, "\"string_value\"");
}

static uint64_t number(const Model* model, const char* key) {
  char* text = model_parameter(model, key);
  uint64_t value = text == NULL ? 0 : strtoull(text, NULL, 10);
  free(text);
  return value;
}

static void sleep_ms(uint64_t duration) {
  if (duration == 0) return;
  struct timespec left = {(time_t)(duration / 1000), (long)(duration % 1000) * 1000000};
  while (nanosleep(&left, &left) != 0) {
  }
}

/* One line into the model's journal, in one write, so that lines of several threads do not mix. */
static void record(const Model* model, const char* event) {
  char* path = model_parameter(model, "load_journal");
  FILE* journal = path == NULL ? NULL : fopen(path, "a");
  if (journal != NULL) {
    fprintf(journal, "%s %s %llu\n", event, model->name, (unsigned long long)model->version);
    fclose(journal);
  }
  free(path);
}

/* Whether the model's parameter `key` names no file, or one that is there. */
static bool is_open(const Model* model, const char* key) {
  char* path = model_parameter(model, key);
  bool open = path == NULL || access(path, F_OK) == 0;
  free(path);
  return open;
}

/* The loads that the model's journal has seen begin. */
static uint64_t loads_begun(const Model* model) {
  char* path = model_parameter(model, "load_journal");
  FILE* journal = path == NULL ? NULL : fopen(path, "r");
  char line[512];
  uint64_t begun = 0;
  while (journal != NULL && fgets(line, sizeof line, journal) != NULL)
    if (strncmp(line, "begin ", 6) == 0) begun++;
  if (journal != NULL) fclose(journal);
  free(path);
  return begun;
}

static void hold_load(const Model* model) {
  const uint64_t together = number(model, "load_together");
  while (loads_begun(model) < together) sleep_ms(2);
  while (!is_open(model, "load_until")) sleep_ms(2);
}

static void hold_execution(const Model* model) {
  if (is_open(model, "execute_until")) return;
  fprintf(stderr, "identity.c: %s holds\n", model->name);
  while (!is_open(model, "execute_until")) sleep_ms(2);
}

/* Counts the number in the model's fail_file down; true while it was positive. */
static bool told_to_fail(const Model* model) {
  char* path = model_parameter(model, "fail_file");
  FILE* file = path == NULL ? NULL : fopen(path, "r+");
  long left = 0;
  if (file != NULL) {
    if (fscanf(file, "%ld", &left) != 1) left = 0;
    if (left > 0) {
      rewind(file);
      fprintf(file, "%ld\n", left - 1);
    }
    fclose(file);
  }
  free(path);
  return left > 0;
}

/* ---- life cycle ---- */

EXPORT TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* handle) {
  uint32_t major = 0, minor = 0;
  TRY(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != 1 || minor < 10)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED,
        "identity.c: the server's interface version does not fit");

  const char* name = NULL;
  TRY(TRITONBACKEND_BackendName(handle, &name));
  /* This message stays the server's; a model's configuration, below, becomes ours to delete. */
  TRITONSERVER_Message* message = NULL;
  TRY(TRITONBACKEND_BackendConfig(handle, &message));
  char* config = NULL;
  TRY(copy_json(message, &config));

  Backend* backend = calloc(1, sizeof *backend);
  if (backend != NULL) backend->name = copy_text(name, strlen(name));
  if (backend == NULL || backend->name == NULL) {
    free(backend);
    free(config);
    return out_of_memory();
  }
  backend->major = major;
  backend->minor = minor;
  backend->config = config;
  note(TRITONSERVER_LOG_INFO, "initialize", backend->name);
  return TRITONBACKEND_BackendSetState(handle, backend);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* handle) {
  void* state = NULL;
  TRY(TRITONBACKEND_BackendState(handle, &state));
  Backend* backend = state;
  note(TRITONSERVER_LOG_INFO, "finalize", backend->name);
  free(backend->name);
  free(backend->config);
  free(backend);
  return NULL;
}

static void free_model(Model* model) {
  free(model->name);
  free(model->config);
  free(model);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* handle) {
  TRITONBACKEND_Backend* backend = NULL;
  void* backend_state = NULL;
  const char* name = NULL;
  TRY(TRITONBACKEND_ModelBackend(handle, &backend));
  TRY(TRITONBACKEND_BackendState(backend, &backend_state));
  TRY(TRITONBACKEND_ModelName(handle, &name));

  Model* model = calloc(1, sizeof *model);
  if (model == NULL) return out_of_memory();
  model->backend = backend_state;
  model->name = copy_text(name, strlen(name));
  TRITONSERVER_Message* message = NULL;
  TRITONSERVER_Error* failed = model->name == NULL ? out_of_memory() : TRITONBACKEND_ModelVersion(handle,
      &model->version);
  if (failed == NULL) failed = TRITONBACKEND_ModelConfig(handle, 1, &message);
  if (failed == NULL) failed = copy_json(message, &model->config);
  if (message != NULL) EXPECT(TRITONSERVER_MessageDelete(message));
  if (failed == NULL) {
    const char* batch = strstr(model->config, "\"max_batch_size\":");
    model->batches = batch != NULL && strtol(batch + strlen("\"max_batch_size\":"), NULL, 10) > 0;
    model->execute_delay_ms = number(model, "execute_delay_ms");
    record(model, "begin");
    sleep_ms(number(model, "load_delay_ms"));
    hold_load(model);
    record(model, "end");
    char* wanted = model_parameter(model, "fail_load");
    if (wanted != NULL) failed = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, wanted);
    free(wanted);
    if (failed == NULL && told_to_fail(model))
      failed = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "identity.c: told to fail");
  }
  if (failed == NULL) failed = TRITONBACKEND_ModelSetState(handle, model);
  if (failed != NULL) {
    free_model(model);
    return failed;
  }
  model->backend->models++;
  note(TRITONSERVER_LOG_INFO, "model initialize", model->name);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* handle) {
  void* state = NULL;
  TRY(TRITONBACKEND_ModelState(handle, &state));
  if (state == NULL) return NULL;
  Model* model = state;
  note(TRITONSERVER_LOG_INFO, "model finalize", model->name);
  record(model, "gone");
  model->backend->models--;
  free_model(model);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* handle) {
  TRITONBACKEND_Model* model = NULL;
  void* model_state = NULL;
  const char* name = NULL;
  TRITONSERVER_InstanceGroupKind kind;
  TRY(TRITONBACKEND_ModelInstanceModel(handle, &model));
  TRY(TRITONBACKEND_ModelState(model, &model_state));
  TRY(TRITONBACKEND_ModelInstanceName(handle, &name));
  TRY(TRITONBACKEND_ModelInstanceKind(handle, &kind));
  if (kind != TRITONSERVER_INSTANCEGROUPKIND_CPU)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "'identity' backend only supports CPU instances");

  Instance* instance = calloc(1, sizeof *instance);
  if (instance != NULL) instance->name = copy_text(name, strlen(name));
  if (instance == NULL || instance->name == NULL) {
    free(instance);
    return out_of_memory();
  }
  instance->model = model_state;
  instance->kind = kind;
  note(TRITONSERVER_LOG_INFO, "instance initialize", instance->name);
  return TRITONBACKEND_ModelInstanceSetState(handle, instance);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* handle) {
  void* state = NULL;
  TRY(TRITONBACKEND_ModelInstanceState(handle, &state));
  if (state == NULL) return NULL;
  Instance* instance = state;
  note(TRITONSERVER_LOG_INFO, "instance finalize", instance->name);
  record(instance->model, "less");
  free(instance->name);
  free(instance);
  return NULL;
}

/* ---- execution ---- */

/* The value of string parameter `key`, or NULL when the request has none. */
static TRITONSERVER_Error* string_parameter(TRITONBACKEND_Request* request, const char* key, const char** value) {
  *value = NULL;
  uint32_t count = 0;
  TRY(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t i = 0; i < count; i++) {
    const char* name = NULL;
    const void* found = NULL;
    TRITONSERVER_ParameterType type;
    TRY(TRITONBACKEND_RequestParameter(request, i, &name, &type, &found));
    if (type == TRITONSERVER_PARAMETER_STRING && strcmp(name, key) == 0) *value = found;
  }
  return NULL;
}

static TRITONSERVER_Error* echo_parameters(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  uint32_t count = 0;
  TRY(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t i = 0; i < count; i++) {
    const char* key = NULL;
    const void* value = NULL;
    TRITONSERVER_ParameterType type;
    char name[128];
    TRY(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value));
    if (strcmp(key, "report") == 0) continue;
    snprintf(name, sizeof name, "echo_%s", key);
    switch (type) {
      case TRITONSERVER_PARAMETER_STRING:
        TRY(TRITONBACKEND_ResponseSetStringParameter(response, name, value));
        break;
      case TRITONSERVER_PARAMETER_INT:
        TRY(TRITONBACKEND_ResponseSetIntParameter(response, name, *(const int64_t*)value));
        break;
      case TRITONSERVER_PARAMETER_BOOL:
        TRY(TRITONBACKEND_ResponseSetBoolParameter(response, name, *(const bool*)value));
        break;
      case TRITONSERVER_PARAMETER_DOUBLE:
        TRY(TRITONBACKEND_ResponseSetDoubleParameter(response, name, *(const double*)value));
        break;
      default:
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "identity.c: unknown parameter type");
    }
  }
  return NULL;
}

/* What the interface says about request, model, instance and backend, as response parameters. */
static TRITONSERVER_Error* add_report(Instance* instance, TRITONBACKEND_Request* request,
    TRITONBACKEND_Response* response) {
  Model* model = instance->model;
  const char* id = NULL;
  uint32_t inputs = 0, outputs = 0;
  TRY(TRITONBACKEND_RequestId(request, &id));
  TRY(TRITONBACKEND_RequestInputCount(request, &inputs));
  TRY(TRITONBACKEND_RequestOutputCount(request, &outputs));
  char names[512] = "";
  for (uint32_t i = 0; i < inputs; i++) {
    const char* name = NULL;
    TRITONBACKEND_Input* input = NULL;
    TRITONSERVER_DataType datatype;
    TRY(TRITONBACKEND_RequestInputName(request, i, &name));
    TRY(TRITONBACKEND_RequestInput(request, name, &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, NULL, NULL, NULL, NULL));
    size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%s:%s", i == 0 ? "" : ",", name,
        TRITONSERVER_DataTypeString(datatype));
  }
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "request_id", id));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "inputs", names));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "output_count", outputs));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "backend", model->backend->name));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "backend_config", model->backend->config));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "api_major", model->backend->major));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "model", model->name));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "version", (int64_t)model->version));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "model_config", model->config));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "instance", instance->name));
  TRY(TRITONBACKEND_ResponseSetBoolParameter(response, "is_cpu", instance->kind == TRITONSERVER_INSTANCEGROUPKIND_CPU));
  return echo_parameters(request, response);
}

/* Copies one input, in however many pieces it comes, into the output of the same number. */
static TRITONSERVER_Error* copy_tensor(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response,
    const char* output_name) {
  char input_name[64];
  char text[160];
  if (strncmp(output_name, "OUTPUT", 6) != 0) {
    snprintf(text, sizeof text, "identity.c: unexpected output '%.64s'", output_name);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, text);
  }
  snprintf(input_name, sizeof input_name, "INPUT%s", output_name + 6);

  TRITONBACKEND_Input* input = NULL;
  TRITONSERVER_Error* absent = TRITONBACKEND_RequestInput(request, input_name, &input);
  if (absent != NULL) {
    TRITONSERVER_ErrorDelete(absent);
    snprintf(text, sizeof text, "failed to get input '%s'", input_name);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, text);
  }
  TRITONSERVER_DataType datatype;
  const int64_t* shape = NULL;
  uint32_t dims = 0, pieces = 0;
  uint64_t byte_size = 0;
  TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &dims, &byte_size, &pieces));

  TRITONBACKEND_Output* output = NULL;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, output_name, datatype, shape, dims));
  void* target = NULL;
  TRITONSERVER_MemoryType target_memory = TRITONSERVER_MEMORY_CPU;
  int64_t target_memory_id = 0;
  TRY(TRITONBACKEND_OutputBuffer(output, &target, byte_size, &target_memory, &target_memory_id));
  if (byte_size > 0 && (target == NULL || target_memory == TRITONSERVER_MEMORY_GPU))
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "identity.c: no output buffer in CPU memory");

  uint64_t at = 0;
  for (uint32_t i = 0; i < pieces; i++) {
    const void* piece = NULL;
    uint64_t piece_size = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    TRY(TRITONBACKEND_InputBuffer(input, i, &piece, &piece_size, &memory, &memory_id));
    if (memory == TRITONSERVER_MEMORY_GPU)
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "identity.c: input is not in CPU memory");
    if (piece_size > byte_size - at)
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "identity.c: the pieces of an input exceed its size");
    if (piece_size > 0) memcpy((char*)target + at, piece, piece_size);
    at += piece_size;
  }
  if (at != byte_size) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "identity.c: an input ends early");
  return NULL;
}

/* Fills the response of one request; an error becomes the response's error. */
static TRITONSERVER_Error* answer(Instance* instance, TRITONBACKEND_Request* request,
    TRITONBACKEND_Response* response) {
  const char* fail = NULL;
  TRY(string_parameter(request, "fail", &fail));
  if (fail != NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, fail);

  uint32_t outputs = 0;
  TRY(TRITONBACKEND_RequestOutputCount(request, &outputs));
  for (uint32_t i = 0; i < outputs; i++) {
    const char* name = NULL;
    TRY(TRITONBACKEND_RequestOutputName(request, i, &name));
    TRY(copy_tensor(request, response, name));
  }
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "param0", "an example string parameter"));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "param1", 42));
  TRY(TRITONBACKEND_ResponseSetBoolParameter(response, "param2", false));
  TRY(TRITONBACKEND_ResponseSetDoubleParameter(response, "param3", 123.123));

  uint32_t parameters = 0;
  TRY(TRITONBACKEND_RequestParameterCount(request, &parameters));
  for (uint32_t i = 0; i < parameters; i++) {
    const char* key = NULL;
    const void* value = NULL;
    TRITONSERVER_ParameterType type;
    TRY(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value));
    if (strcmp(key, "report") == 0 && type == TRITONSERVER_PARAMETER_BOOL && *(const bool*)value)
      TRY(add_report(instance, request, response));
  }
  return NULL;
}

/* The first dimension of the first input, which is what a batching model counts. */
static TRITONSERVER_Error* rows_of(TRITONBACKEND_Request* request, uint64_t* rows) {
  const char* name = NULL;
  TRITONBACKEND_Input* input = NULL;
  const int64_t* shape = NULL;
  uint32_t dims = 0;
  TRY(TRITONBACKEND_RequestInputName(request, 0, &name));
  TRY(TRITONBACKEND_RequestInput(request, name, &input));
  TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dims, NULL, NULL));
  if (dims > 0 && shape[0] > 0) *rows += (uint64_t)shape[0];
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* handle, TRITONBACKEND_Request** requests, const uint32_t count) {
  const uint64_t started = now_ns();
  void* state = NULL;
  TRY(TRITONBACKEND_ModelInstanceState(handle, &state));
  Instance* instance = state;
  instance->calls++;

  /* Everything that can refuse the whole call comes first: after it the requests are ours. */
  for (uint32_t i = 0; i < count; i++) {
    const char* refuse = NULL;
    TRY(string_parameter(requests[i], "refuse", &refuse));
    if (refuse != NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, refuse);
  }
  TRITONBACKEND_Response** responses = calloc(count, sizeof *responses);
  TRITONSERVER_Error** errors = calloc(count, sizeof *errors);
  if (responses == NULL || errors == NULL) {
    free(responses);
    free(errors);
    return out_of_memory();
  }
  for (uint32_t i = 0; i < count; i++) {
    TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&responses[i], requests[i]);
    if (failed != NULL) {
      while (i-- > 0) EXPECT(TRITONBACKEND_ResponseDelete(responses[i]));
      free(responses);
      free(errors);
      return failed;
    }
  }

  const uint64_t compute_started = now_ns();
  sleep_ms(instance->model->execute_delay_ms);
  hold_execution(instance->model);
  uint64_t rows = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (instance->model->batches) EXPECT(rows_of(requests[i], &rows));
    errors[i] = answer(instance, requests[i], responses[i]);
  }
  const uint64_t compute_ended = now_ns();
  for (uint32_t i = 0; i < count; i++)
    EXPECT(TRITONBACKEND_ResponseSend(responses[i], TRITONSERVER_RESPONSE_COMPLETE_FINAL, errors[i]));

  const uint64_t ended = now_ns();
  for (uint32_t i = 0; i < count; i++) {
    EXPECT(TRITONBACKEND_ModelInstanceReportStatistics(
        handle, requests[i], errors[i] == NULL, started, compute_started, compute_ended, ended));
    if (errors[i] != NULL) TRITONSERVER_ErrorDelete(errors[i]);
    EXPECT(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  EXPECT(TRITONBACKEND_ModelInstanceReportBatchStatistics(handle, rows, started, compute_started, compute_ended,
      ended));
  free(responses);
  free(errors);
  return NULL;
}
