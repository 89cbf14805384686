/* A language model that costs nothing, for measuring what a server spends on each piece of a stream: it says one piece
 * of text N times, as fast as the server takes it.
 *
 * N is `max_tokens` (INT32) or that of `sampling_parameters` (JSON), else 16. With `stream` (BOOL) each piece is a
 * response, the last with FINAL; without, all pieces are the text of one response. Outputs: text_output, and
 * finish_reason, num_input_tokens, num_output_tokens (UINT32) where an input return_<name> is true. Shapes are [1],
 * with max_batch_size [1,1]; requests are not batched. Which inputs a model takes is what its configuration declares
 * (that of tests/python_models/openai_mock fits). Parameters of the configuration, without escapes in their values:
 *
 *   piece      the text of a token (" token")
 *   pause_us   microseconds before each token; each request then has a thread of its own, and all of them go on
 *              together (0: the tokens are sent within the execution)
 *   final      "alone": FINAL comes behind the last response, without one
 *
 * A request that was cancelled ends with the error CANCELLED at the next token. */

#define _POSIX_C_SOURCE 199309L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton/core/tritonbackend.h"

#define EXPORT __attribute__((visibility("default")))

enum { PIECE_BYTES_MAX = 4096, TOKENS_OTHERWISE = 16 };

/* Nothing here may fail; if it does, the server is wrong and a measurement must not go on. */
static void expect(TRITONSERVER_Error* error) {
  if (error == NULL) return;
  fprintf(stderr, "tokens.c: unexpected error: %s\n", TRITONSERVER_ErrorMessage(error));
  abort();
}

typedef struct {
  char piece[PIECE_BYTES_MAX];
  uint32_t piece_bytes;
  long pause_us;
  bool has_final_alone;
  uint32_t rank;
} Model;

typedef struct {
  const Model* model;
  TRITONBACKEND_ResponseFactory* factory;
  uint32_t tokens;
  uint32_t prompt_tokens;
  bool streams;
  bool wants_reason;
  bool wants_prompt_tokens;
  bool wants_tokens;
} Task;

/* The text behind `"<name>":` and `{"string_value":` in a configuration, up to the quotation mark; false: none. */
static bool parameter(const char* json, const char* name, char* to, size_t size) {
  char key[64];
  snprintf(key, sizeof key, "\"%s\":{\"string_value\":\"", name);
  const char* found = strstr(json, key);
  if (found == NULL) return false;
  found += strlen(key);
  const size_t length = strcspn(found, "\"");
  if (length >= size) abort();
  memcpy(to, found, length);
  to[length] = '\0';
  return true;
}

static long member(const char* json, const char* name, long otherwise) {
  const char* found = strstr(json, name);
  if (found == NULL) return otherwise;
  found += strlen(name);
  return strtol(found + strspn(found, "\": "), NULL, 10);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* message;
  const char* base;
  size_t size;
  expect(TRITONBACKEND_ModelConfig(model, 1, &message));
  expect(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  char* json = malloc(size + 1);
  Model* state = calloc(1, sizeof *state);
  if (json == NULL || state == NULL) abort();
  memcpy(json, base, size);
  json[size] = '\0';
  expect(TRITONSERVER_MessageDelete(message));
  char value[64];
  if (!parameter(json, "piece", state->piece, sizeof state->piece)) strcpy(state->piece, " token");
  state->piece_bytes = (uint32_t)strlen(state->piece);
  if (parameter(json, "pause_us", value, sizeof value)) state->pause_us = strtol(value, NULL, 10);
  state->has_final_alone = parameter(json, "final", value, sizeof value) && strcmp(value, "alone") == 0;
  state->rank = member(json, "\"max_batch_size\"", 0) > 0 ? 2 : 1;
  free(json);
  return TRITONBACKEND_ModelSetState(model, state);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  void* state;
  expect(TRITONBACKEND_ModelState(model, &state));
  free(state);
  return NULL;
}

static void* output(const Task* task, TRITONBACKEND_Response* response, const char* name, TRITONSERVER_DataType type,
    uint64_t bytes) {
  const int64_t shape[2] = {1, 1};
  TRITONBACKEND_Output* made;
  void* buffer;
  TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  expect(TRITONBACKEND_ResponseOutput(response, &made, name, type, shape, task->model->rank));
  expect(TRITONBACKEND_OutputBuffer(made, &buffer, bytes, &kind, &id));
  return buffer;
}

static void put_count(const Task* task, TRITONBACKEND_Response* response, const char* name, uint32_t count) {
  memcpy(output(task, response, name, TRITONSERVER_TYPE_UINT32, sizeof count), &count, sizeof count);
}

static void put_reason(const Task* task, TRITONBACKEND_Response* response, const char* reason) {
  const uint32_t length = (uint32_t)strlen(reason);
  char* to = output(task, response, "finish_reason", TRITONSERVER_TYPE_BYTES, sizeof length + length);
  memcpy(to, &length, sizeof length);
  memcpy(to + sizeof length, reason, length);
}

/* A response of `tokens` pieces. */
static void send(const Task* task, uint32_t tokens, bool is_last) {
  const Model* model = task->model;
  TRITONBACKEND_Response* response;
  expect(TRITONBACKEND_ResponseNewFromFactory(&response, task->factory));
  const uint32_t length = tokens * model->piece_bytes;
  char* to = output(task, response, "text_output", TRITONSERVER_TYPE_BYTES, sizeof length + (uint64_t)length);
  memcpy(to, &length, sizeof length);
  to += sizeof length;
  for (uint32_t at = 0; at < tokens; at++, to += model->piece_bytes) memcpy(to, model->piece, model->piece_bytes);
  if (task->wants_reason) put_reason(task, response, is_last ? "length" : "None");
  if (task->wants_prompt_tokens) put_count(task, response, "num_input_tokens", task->prompt_tokens);
  if (task->wants_tokens) put_count(task, response, "num_output_tokens", tokens);
  const bool is_final = is_last && !model->has_final_alone;
  expect(TRITONBACKEND_ResponseSend(response, is_final ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, NULL));
  if (is_last && !is_final) {
    expect(TRITONBACKEND_ResponseFactorySendFlags(task->factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL));
  }
}

static void end_cancelled(const Task* task) {
  TRITONBACKEND_Response* response;
  TRITONSERVER_Error* error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_CANCELLED, "Request was cancelled");
  expect(TRITONBACKEND_ResponseNewFromFactory(&response, task->factory));
  expect(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
  TRITONSERVER_ErrorDelete(error);
}

static void* answer(void* given) {
  Task* task = given;
  const struct timespec pause = {task->model->pause_us / 1000000, (task->model->pause_us % 1000000) * 1000};
  const uint32_t steps = task->tokens > 0 ? task->tokens : 1;
  bool cancelled = false;
  for (uint32_t at = 0; at < steps && !cancelled; at++) {
    if (task->model->pause_us > 0) nanosleep(&pause, NULL);
    expect(TRITONBACKEND_ResponseFactoryIsCancelled(task->factory, &cancelled));
    const bool is_last = at + 1 == steps;
    if (cancelled) {
      end_cancelled(task);
    } else if (task->streams) {
      send(task, task->tokens > 0 ? 1 : 0, is_last);
    } else if (is_last) {
      send(task, task->tokens, true);
    }
  }
  expect(TRITONBACKEND_ResponseFactoryDelete(task->factory));
  free(task);
  return NULL;
}

/* The bytes of an input in one piece, with a NUL behind them; freed by the caller. */
static char* contents(TRITONBACKEND_Input* input, uint64_t bytes, uint32_t buffers) {
  char* all = malloc(bytes + 1);
  if (all == NULL) abort();
  uint64_t at = 0;
  for (uint32_t index = 0; index < buffers; index++) {
    const void* buffer;
    uint64_t size;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    expect(TRITONBACKEND_InputBuffer(input, index, &buffer, &size, &kind, &id));
    memcpy(all + at, buffer, size);
    at += size;
  }
  all[at] = '\0';
  return all;
}

static uint32_t words(const char* text) {
  uint32_t count = 0;
  for (text += strspn(text, " \n"); *text != '\0'; text += strspn(text, " \n")) {
    count++;
    text += strcspn(text, " \n");
  }
  return count;
}

static void read_input(Task* task, TRITONBACKEND_Input* input) {
  const char* name;
  uint64_t bytes;
  uint32_t buffers;
  expect(TRITONBACKEND_InputProperties(input, &name, NULL, NULL, NULL, &bytes, &buffers));
  char* data = contents(input, bytes, buffers);
  const bool is_text = strcmp(name, "text_input") == 0 || strcmp(name, "sampling_parameters") == 0;
  const bool is_true = bytes > 0 && data[0] != 0;
  if (is_text && bytes < 4) abort();
  if (strcmp(name, "text_input") == 0) task->prompt_tokens = words(data + 4);
  if (strcmp(name, "sampling_parameters") == 0) {
    task->tokens = (uint32_t)member(data + 4, "\"max_tokens\"", TOKENS_OTHERWISE);
  }
  if (strcmp(name, "max_tokens") == 0 && bytes == 4) memcpy(&task->tokens, data, 4);
  if (strcmp(name, "stream") == 0) task->streams = is_true;
  if (strcmp(name, "return_finish_reason") == 0) task->wants_reason = is_true;
  if (strcmp(name, "return_num_input_tokens") == 0) task->wants_prompt_tokens = is_true;
  if (strcmp(name, "return_num_output_tokens") == 0) task->wants_tokens = is_true;
  free(data);
}

static void start(const Model* model, TRITONBACKEND_Request* request) {
  Task* task = calloc(1, sizeof *task);
  if (task == NULL) abort();
  task->model = model;
  task->tokens = TOKENS_OTHERWISE;
  uint32_t inputs;
  expect(TRITONBACKEND_RequestInputCount(request, &inputs));
  for (uint32_t index = 0; index < inputs; index++) {
    TRITONBACKEND_Input* input;
    expect(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    read_input(task, input);
  }
  expect(TRITONBACKEND_ResponseFactoryNew(&task->factory, request));
  expect(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  if (model->pause_us == 0) {
    answer(task);
    return;
  }
  pthread_t thread;
  if (pthread_create(&thread, NULL, answer, task) != 0) abort();
  pthread_detach(thread);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
    TRITONBACKEND_Request** requests, const uint32_t count) {
  TRITONBACKEND_Model* model;
  void* state;
  expect(TRITONBACKEND_ModelInstanceModel(instance, &model));
  expect(TRITONBACKEND_ModelState(model, &state));
  for (uint32_t index = 0; index < count; index++) start(state, requests[index]);
  return NULL;
}
