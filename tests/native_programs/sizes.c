/* Bytes that do not fit their shapes, strings in pieces, requests that are released early:
 * case by case as Triton's own tests of the interface have them.
 *
 * Arguments: a repository, a directory for backends. */

/* For anonymous mappings. */
#define _DEFAULT_SOURCE

#include "client.h"

#include <sys/mman.h>

#define INVALID TRITONSERVER_ERROR_INVALID_ARG

static TRITONSERVER_ResponseAllocator* allocator;

/* One string with its length before it. */
static const char text[] = "\x14\0\0\0Example input string";
enum { TEXT_BYTES = 24, LENGTH_BYTES = 4 };

/* The string again, in two pieces of which the first has so many bytes. */
static void append_text(TRITONSERVER_InferenceRequest* request, size_t first) {
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", text, first, TRITONSERVER_MEMORY_CPU, 0));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(
      request, "INPUT0", text + first, TEXT_BYTES - first, TRITONSERVER_MEMORY_CPU, 0));
}

static TRITONSERVER_InferenceRequest* asking_for(
    TRITONSERVER_Server* server, Client* client, const char* model, TRITONSERVER_DataType datatype, int64_t count) {
  TRITONSERVER_InferenceRequest* request = client_request(server, model, allocator, client);
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", datatype, &count, 1));
  return request;
}

static void is_refused(TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request, const char* text) {
  fails(TRITONSERVER_ServerInferAsync(server, request, NULL), INVALID, text);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

static void strings_come_in_pieces(TRITONSERVER_Server* server) {
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = asking_for(server, &client, "text", TRITONSERVER_TYPE_BYTES, 3);
  /* Behind a length, nowhere, in the middle of a string. */
  append_text(request, LENGTH_BYTES);
  append_text(request, TEXT_BYTES);
  append_text(request, LENGTH_BYTES + 10);
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
  client_finish(&client);
  const void* base = NULL;
  size_t byte_size = 0;
  holds(TRITONSERVER_InferenceResponseError, TRITONSERVER_InferenceResponseError(client.responses[0]) == NULL);
  succeeds(TRITONSERVER_InferenceResponseOutput(
      client.responses[0], 0, NULL, NULL, NULL, NULL, &base, &byte_size, NULL, NULL, NULL));
  expect(byte_size == 3 * TEXT_BYTES);
  for (int at = 0; at < 3; ++at) expect(memcmp((const char*)base + at * TEXT_BYTES, text, TEXT_BYTES) == 0);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));

  request = asking_for(server, &client, "text", TRITONSERVER_TYPE_BYTES, 3);
  append_text(request, LENGTH_BYTES);
  append_text(request, TEXT_BYTES);
  is_refused(server, request,
             "[request id: <id_unknown>] expected 3 string elements for inference input 'INPUT0' for model 'text', "
             "got 2");
  request = asking_for(server, &client, "text", TRITONSERVER_TYPE_BYTES, 1);
  append_text(request, LENGTH_BYTES);
  append_text(request, TEXT_BYTES);
  is_refused(server, request,
             "[request id: <id_unknown>] unexpected number of string elements 2 for inference input 'INPUT0' for "
             "model 'text', expecting 1");
  /* A length that is in two pieces itself. */
  request = asking_for(server, &client, "text", TRITONSERVER_TYPE_BYTES, 1);
  append_text(request, 2);
  is_refused(server, request,
             "[request id: <id_unknown>] incomplete string length indicator for inference input 'INPUT0' for model "
             "'text', expecting 4 bytes but only 2 bytes available. Please make sure the string length indicator is in "
             "one buffer.");
  expect(client.releases == 0 && client.count == 0);
}

static void numbers_fit_their_shape(TRITONSERVER_Server* server) {
  static const int32_t values[5] = {1, 2, 3, 4, 5};
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = asking_for(server, &client, "fixed", TRITONSERVER_TYPE_INT32, 4);
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(
      request, "INPUT0", values, sizeof(values), TRITONSERVER_MEMORY_CPU, 0));
  is_refused(server, request,
             "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'fixed'. Expected 16, "
             "got 20");
  /* A batch of more rows than an int has numbers, of memory that nobody may read before it is refused. */
  const size_t rows = (size_t)1 << 31;
  void* vast = mmap(NULL, rows * 4, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  expect(vast != MAP_FAILED);
  request = client_request(server, "echo", allocator, &client);
  const int64_t shape[2] = {(int64_t)rows, 1};
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, shape, 2));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(
      request, "INPUT0", vast, rows * 4, TRITONSERVER_MEMORY_CPU, 0));
  is_refused(server, request,
             "[request id: <id_unknown>] inference request batch-size must be <= 8 for 'echo'");
  expect(munmap(vast, rows * 4) == 0);
}

/* An application may release a request that a model still has, and cancel it then. */
static void is_cancelled_after_its_release(TRITONSERVER_Server* server) {
  static const int32_t values[4] = {1, 2, 3, 4};
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, "slow", allocator, &client);
  TRITONBACKEND_Request* cast = (TRITONBACKEND_Request*)request;
  client_input(request, "INPUT0", values, 4, true);
  check_within(CLIENT_SLOW_MS);
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
  TRITONBACKEND_ResponseFactory* factory = NULL;
  succeeds(TRITONBACKEND_ResponseFactoryNew(&factory, cast));
  succeeds(TRITONBACKEND_RequestRelease(cast, TRITONSERVER_REQUEST_RELEASE_ALL));
  expect(client.releases == 1);
  bool of_request = true, of_factory = true;
  succeeds(TRITONSERVER_InferenceRequestIsCancelled(request, &of_request));
  succeeds(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &of_factory));
  expect(!of_request && !of_factory);
  succeeds(TRITONSERVER_InferenceRequestCancel(request));
  succeeds(TRITONSERVER_InferenceRequestIsCancelled(request, &of_request));
  expect(of_request);
  check_at_leisure();
  client_wait(&client, &client.finals, 1);
  succeeds(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &of_factory));
  expect(of_factory && client.count == 1);
  succeeds(TRITONBACKEND_ResponseFactoryDelete(factory));
  /* The model's own release comes as well. */
  client_wait(&client, &client.releases, 2);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

int main(int argc, char** argv) {
  expect(argc == 3);
  allocator = client_allocator();
  TRITONSERVER_Server* server = client_server(argv[1], argv[2]);
  strings_come_in_pieces(server);
  numbers_fit_their_shape(server);
  is_cancelled_after_its_release(server);
  client_end(server);
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
  return 0;
}
