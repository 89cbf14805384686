/* What every backend in C does in the same way: pass errors on, read inputs, write outputs, answer requests.
 *
 * Copy this file beside your backend and change it as you like. It needs the headers of include/triton/core only, and
 * it is included before anything else. */

#ifndef EXAMPLE_BACKEND_H
#define EXAMPLE_BACKEND_H

#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton/core/tritonbackend.h"

#define MAYBE_UNUSED __attribute__((unused))

/* Ends the calling function with the error of a call that failed. Whoever gets an error owns it. */
#define TRY(call)                                      \
  do {                                                 \
    TRITONSERVER_Error* try_error = (call);            \
    if (try_error != NULL) return try_error;           \
  } while (0)

/* For places from which no error can be passed on: it is logged and deleted. */
#define TELL(call) tell((call), __FILE__, __LINE__)

MAYBE_UNUSED static void tell(TRITONSERVER_Error* error, const char* file, int line) {
  if (error == NULL) return;
  const char* text = TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_Error* lost = TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, file, line, text);
  if (lost != NULL) TRITONSERVER_ErrorDelete(lost);
  TRITONSERVER_ErrorDelete(error);
}

/* A new error with a text as of printf. The server copies the text. */
__attribute__((format(printf, 2, 3), unused)) static TRITONSERVER_Error* failure(
    TRITONSERVER_Error_Code code, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return TRITONSERVER_ErrorNew(code, text);
}

MAYBE_UNUSED static TRITONSERVER_Error* no_memory(void) {
  return failure(TRITONSERVER_ERROR_UNAVAILABLE, "out of memory");
}

/* Statistics are told in nanoseconds of the monotonic clock. */
MAYBE_UNUSED static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* To be asked in TRITONBACKEND_Initialize: whether the server offers what this was compiled against. */
MAYBE_UNUSED static TRITONSERVER_Error* check_version(const char* backend) {
  uint32_t major, minor;
  TRY(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major == TRITONBACKEND_API_VERSION_MAJOR && minor >= TRITONBACKEND_API_VERSION_MINOR) return NULL;
  return failure(TRITONSERVER_ERROR_UNSUPPORTED,
      "backend '%s' needs version %d.%d of the backend interface or a later minor one, and the server offers %" PRIu32
      ".%" PRIu32, backend, TRITONBACKEND_API_VERSION_MAJOR, TRITONBACKEND_API_VERSION_MINOR, major, minor);
}

/* The text of a model's configuration as JSON, to be freed. */
MAYBE_UNUSED static TRITONSERVER_Error* config_of(TRITONBACKEND_Model* model, char** text) {
  TRITONSERVER_Message* message;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
  const char* base;
  size_t size;
  TRITONSERVER_Error* error = TRITONSERVER_MessageSerializeToJson(message, &base, &size);
  if (error == NULL) {
    *text = malloc(size + 1);
    if (*text == NULL) {
      error = no_memory();
    } else {
      memcpy(*text, base, size);
      (*text)[size] = '\0';
    }
  }
  TELL(TRITONSERVER_MessageDelete(message));
  return error;
}

/* `max_batch_size` of a model: 0 where its tensors have no dimension for batches.
 *
 * A backend with more questions about its configuration should use a parser of JSON. This one number can be found
 * without: servers write the object's keys in the order of the schema, in which no other key of this name comes first,
 * and within a text the quotes would be escaped. */
MAYBE_UNUSED static TRITONSERVER_Error* max_batch_size_of(TRITONBACKEND_Model* model, int64_t* max_batch_size) {
  char* text = NULL;
  TRY(config_of(model, &text));
  const char* key = "\"max_batch_size\":";
  const char* at = strstr(text, key);
  *max_batch_size = at == NULL ? 0 : strtoll(at + strlen(key), NULL, 10);
  free(text);
  return NULL;
}

/* An input as the client gave it. Everything that is pointed to lives until the request is released. */
typedef struct {
  TRITONBACKEND_Input* input;
  const char* name;
  TRITONSERVER_DataType datatype;
  const int64_t* shape;
  uint32_t rank;
  uint64_t bytes;
  /* The bytes may lie in several pieces. */
  uint32_t buffers;
} Tensor;

MAYBE_UNUSED static TRITONSERVER_Error* describe(TRITONBACKEND_Input* input, Tensor* tensor) {
  tensor->input = input;
  return TRITONBACKEND_InputProperties(
      input, &tensor->name, &tensor->datatype, &tensor->shape, &tensor->rank, &tensor->bytes, &tensor->buffers);
}

MAYBE_UNUSED static TRITONSERVER_Error* input_of(TRITONBACKEND_Request* request, const char* name, Tensor* tensor) {
  TRITONBACKEND_Input* input;
  TRY(TRITONBACKEND_RequestInput(request, name, &input));
  return describe(input, tensor);
}

MAYBE_UNUSED static bool is_host_memory(TRITONSERVER_MemoryType type) {
  return type == TRITONSERVER_MEMORY_CPU || type == TRITONSERVER_MEMORY_CPU_PINNED;
}

/* One piece of an input. What is asked for is memory of the host; what comes may be memory of a device all the same,
 * and is then refused. A backend for GPUs would copy it. */
MAYBE_UNUSED static TRITONSERVER_Error* piece_of(
    const Tensor* tensor, uint32_t index, const void** buffer, uint64_t* bytes) {
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_InputBuffer(tensor->input, index, buffer, bytes, &type, &id));
  if (is_host_memory(type)) return NULL;
  return failure(TRITONSERVER_ERROR_UNSUPPORTED, "input '%s' lies in %s memory, which this backend cannot read",
      tensor->name, TRITONSERVER_MemoryTypeString(type));
}

/* Copies all pieces of an input to `to`, which has room for exactly `room` bytes. */
MAYBE_UNUSED static TRITONSERVER_Error* read_input(const Tensor* tensor, void* to, uint64_t room) {
  uint64_t copied = 0;
  for (uint32_t index = 0; index < tensor->buffers; index++) {
    const void* buffer;
    uint64_t bytes;
    TRY(piece_of(tensor, index, &buffer, &bytes));
    if (bytes > room - copied) {
      return failure(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' has more than %" PRIu64 " bytes", tensor->name, room);
    }
    if (bytes > 0) memcpy((char*)to + copied, buffer, bytes);
    copied += bytes;
  }
  if (copied == room) return NULL;
  return failure(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' has %" PRIu64 " bytes instead of %" PRIu64, tensor->name,
      copied, room);
}

/* Adds an output to a response and gets its memory: `buffer` is NULL for 0 bytes. */
MAYBE_UNUSED static TRITONSERVER_Error* new_output(TRITONBACKEND_Response* response, const char* name,
    TRITONSERVER_DataType datatype, const int64_t* shape, uint32_t rank, uint64_t bytes, void** buffer) {
  TRITONBACKEND_Output* output;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, name, datatype, shape, rank));
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_OutputBuffer(output, buffer, bytes, &type, &id));
  if (bytes == 0 || is_host_memory(type)) return NULL;
  return failure(TRITONSERVER_ERROR_UNSUPPORTED, "output '%s' must be written to %s memory, which this backend cannot",
      name, TRITONSERVER_MemoryTypeString(type));
}

/* Whether the client has lost its interest. To be asked before work begins, and again while long work goes on. */
MAYBE_UNUSED static TRITONSERVER_Error* check_cancelled(TRITONBACKEND_Request* request) {
  bool is_cancelled = false;
  TRY(TRITONBACKEND_RequestIsCancelled(request, &is_cancelled));
  return is_cancelled ? failure(TRITONSERVER_ERROR_CANCELLED, "the request was cancelled") : NULL;
}

/* One request of an execution, and what becomes of it. Each stands for itself: an error in one spoils no other. */
typedef struct {
  TRITONBACKEND_Request* request;
  TRITONBACKEND_Response* response;
  TRITONSERVER_Error* error;
  /* How many items of a batch it brought. */
  uint64_t rows;
} Turn;

/* Counts the items of a request: with batches the first dimension of every input says how many there are. */
MAYBE_UNUSED static TRITONSERVER_Error* count_rows(Turn* turn, int64_t max_batch_size) {
  TRITONBACKEND_Input* first;
  Tensor input;
  if (max_batch_size == 0) return NULL;
  TRY(TRITONBACKEND_RequestInputByIndex(turn->request, 0, &first));
  TRY(describe(first, &input));
  if (input.rank > 0 && input.shape[0] > 0) turn->rows = (uint64_t)input.shape[0];
  return NULL;
}

/* The times of an execution: begin, inputs there, outputs there. The end is when it is told. */
typedef struct {
  uint64_t exec_start_ns, compute_start_ns, compute_end_ns;
} Times;

/* A turn for each request, to be freed by `finish`; NULL without memory for it. */
MAYBE_UNUSED static Turn* turns_of(TRITONBACKEND_Request** requests, uint32_t count) {
  Turn* turns = calloc(count == 0 ? 1 : count, sizeof *turns);
  for (uint32_t index = 0; turns != NULL && index < count; index++) {
    Turn* turn = &turns[index];
    turn->request = requests[index];
    turn->rows = 1;
    turn->error = TRITONBACKEND_ResponseNew(&turn->response, turn->request);
    if (turn->error != NULL) turn->response = NULL;
    if (turn->error == NULL) turn->error = check_cancelled(turn->request);
  }
  return turns;
}

/* Tells the statistics, sends every answer and gives every request back.
 *
 * The statistics come first: who has the answer then also sees it counted, and the request must still be ours. A
 * request without a response object cannot be answered any more, and is only given back. */
MAYBE_UNUSED static void finish(
    TRITONBACKEND_ModelInstance* instance, Turn* turns, uint32_t count, const Times* times) {
  uint64_t rows = 0, end_ns = now_ns();
  for (uint32_t index = 0; index < count; index++) {
    bool success = turns[index].error == NULL;
    if (success) rows += turns[index].rows;
    TELL(TRITONBACKEND_ModelInstanceReportStatistics(instance, turns[index].request, success, times->exec_start_ns,
        times->compute_start_ns, times->compute_end_ns, end_ns));
  }
  if (rows > 0) {
    TELL(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        instance, rows, times->exec_start_ns, times->compute_start_ns, times->compute_end_ns, end_ns));
  }
  for (uint32_t index = 0; index < count; index++) {
    Turn* turn = &turns[index];
    if (turn->response != NULL) {
      /* The response is given up, whatever comes of it; the error stays ours. */
      TELL(TRITONBACKEND_ResponseSend(turn->response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, turn->error));
      if (turn->error != NULL) TRITONSERVER_ErrorDelete(turn->error);
    } else {
      TELL(turn->error);
    }
    TELL(TRITONBACKEND_RequestRelease(turn->request, TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  free(turns);
}

#endif
