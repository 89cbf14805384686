/* An application that runs a server of its own and asks it: what programs about inference share.
 *
 * One `Client` is what one request comes back to: it counts what it is told, keeps the responses, and can be waited
 * on. Its allocator gives memory from malloc, each block as large as asked for and marked at both ends. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#ifndef CLIENT_H
#define CLIENT_H

#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* For so long at least the model "slow" is busy with a request. */
enum { CLIENT_SLOW_MS = 1500 };

enum { CLIENT_RESPONSES_MAX = 64 };

typedef struct Client {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int starts, allocations, frees, releases, finals, nulls, count;
  TRITONSERVER_InferenceResponse* responses[CLIENT_RESPONSES_MAX];
  /* The release came when so many responses were there. */
  int released_after;
  /* The buffer that was given last. */
  void* last_buffer;
  TRITONSERVER_MemoryType last_type;
  /* Deletes the request when it is released. */
  bool deletes;
} Client;

CHECK_MAYBE_UNUSED static void client_init(Client* client) {
  memset(client, 0, sizeof(*client));
  pthread_mutex_init(&client->lock, NULL);
  pthread_cond_init(&client->changed, NULL);
}

CHECK_MAYBE_UNUSED static void client_changed(Client* client, int* counter) {
  pthread_mutex_lock(&client->lock);
  ++*counter;
  pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->lock);
}

/* Waits until a counter has that value; five minutes are for ever. */
CHECK_MAYBE_UNUSED static void client_wait(Client* client, const int* counter, int value) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 300;
  pthread_mutex_lock(&client->lock);
  while (*counter < value) expect(pthread_cond_timedwait(&client->changed, &client->lock, &until) == 0);
  expect(*counter == value);
  pthread_mutex_unlock(&client->lock);
}

CHECK_MAYBE_UNUSED static TRITONSERVER_Error* client_alloc(
    TRITONSERVER_ResponseAllocator* allocator, const char* tensor_name, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void* userp, void** buffer, void** buffer_userp,
    TRITONSERVER_MemoryType* actual_memory_type, int64_t* actual_memory_type_id) {
  Client* client = userp;
  expect(allocator != NULL && tensor_name != NULL && tensor_name[0] != 0);
  expect(memory_type <= TRITONSERVER_MEMORY_GPU && memory_type_id == 0);
  *buffer = NULL;
  *buffer_userp = client;
  *actual_memory_type = TRITONSERVER_MEMORY_CPU;
  *actual_memory_type_id = 0;
  if (byte_size > 0) {
    char* block = malloc(byte_size + 32);
    memset(block, 0x5a, byte_size + 32);
    *buffer = block + 16;
  }
  client->last_buffer = *buffer;
  client_changed(client, &client->allocations);
  return NULL;
}

/* Has nothing to give. */
CHECK_MAYBE_UNUSED static TRITONSERVER_Error* client_alloc_nothing(
    TRITONSERVER_ResponseAllocator* allocator, const char* tensor_name, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void* userp, void** buffer, void** buffer_userp,
    TRITONSERVER_MemoryType* actual_memory_type, int64_t* actual_memory_type_id) {
  (void)allocator, (void)tensor_name, (void)byte_size, (void)memory_type, (void)memory_type_id, (void)userp;
  (void)buffer, (void)buffer_userp, (void)actual_memory_type, (void)actual_memory_type_id;
  client_changed(userp, &((Client*)userp)->allocations);
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory today");
}

CHECK_MAYBE_UNUSED static TRITONSERVER_Error* client_free(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id) {
  Client* client = buffer_userp;
  expect(allocator != NULL && buffer != NULL && memory_type_id == 0);
  client->last_type = memory_type;
  char* block = (char*)buffer - 16;
  for (int i = 0; i < 16; ++i) expect(block[i] == 0x5a && block[16 + byte_size + i] == 0x5a);
  free(block);
  client_changed(client, &client->frees);
  return NULL;
}

CHECK_MAYBE_UNUSED static TRITONSERVER_Error* client_start(TRITONSERVER_ResponseAllocator* allocator, void* userp) {
  expect(allocator != NULL);
  Client* client = userp;
  client_changed(client, &client->starts);
  return NULL;
}

CHECK_MAYBE_UNUSED static void client_complete(
    TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  Client* client = userp;
  pthread_mutex_lock(&client->lock);
  expect(client->finals == 0);
  if (response == NULL) {
    expect(flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL);
    ++client->nulls;
  } else {
    expect(client->count < CLIENT_RESPONSES_MAX);
    client->responses[client->count++] = response;
  }
  if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) ++client->finals;
  pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->lock);
}

CHECK_MAYBE_UNUSED static void client_release(
    TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  Client* client = userp;
  expect(request != NULL && flags == TRITONSERVER_REQUEST_RELEASE_ALL);
  if (client->deletes) succeeds(TRITONSERVER_InferenceRequestDelete(request));
  pthread_mutex_lock(&client->lock);
  client->released_after = client->count;
  ++client->releases;
  pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->lock);
}

/* Waits for the end of one inference, and for its release. */
CHECK_MAYBE_UNUSED static void client_finish(Client* client) {
  client_wait(client, &client->finals, 1);
  client_wait(client, &client->releases, 1);
}

/* Deletes the responses; all that was given must have come back. */
CHECK_MAYBE_UNUSED static void client_clear(Client* client) {
  int given = 0;
  for (int i = 0; i < client->count; ++i) {
    uint32_t outputs = 0;
    succeeds(TRITONSERVER_InferenceResponseOutputCount(client->responses[i], &outputs));
    for (uint32_t at = 0; at < outputs; ++at) {
      const void* base = NULL;
      succeeds(TRITONSERVER_InferenceResponseOutput(
          client->responses[i], at, NULL, NULL, NULL, NULL, &base, NULL, NULL, NULL, NULL));
      given += base != NULL;
    }
    int before = client->frees;
    succeeds(TRITONSERVER_InferenceResponseDelete(client->responses[i]));
    expect(client->frees >= before);
  }
  expect(client->frees >= given);
  bool deletes = client->deletes;
  pthread_cond_destroy(&client->changed);
  pthread_mutex_destroy(&client->lock);
  client_init(client);
  client->deletes = deletes;
}

CHECK_MAYBE_UNUSED static TRITONSERVER_ResponseAllocator* client_allocator(void) {
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  succeeds(TRITONSERVER_ResponseAllocatorNew(&allocator, client_alloc, client_free, client_start));
  return allocator;
}

/* A request whose answers and release come to `client`. */
CHECK_MAYBE_UNUSED static TRITONSERVER_InferenceRequest* client_request(
    TRITONSERVER_Server* server, const char* model, TRITONSERVER_ResponseAllocator* allocator, Client* client) {
  TRITONSERVER_InferenceRequest* request = NULL;
  succeeds(TRITONSERVER_InferenceRequestNew(&request, server, model, -1));
  succeeds(TRITONSERVER_InferenceRequestSetReleaseCallback(request, client_release, client));
  succeeds(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, client, client_complete, client));
  return request;
}

/* An INT32 input of one dimension, or of two with a batch dimension of 1 before. */
CHECK_MAYBE_UNUSED static void client_input(
    TRITONSERVER_InferenceRequest* request, const char* name, const int32_t* values, int64_t count, bool batched) {
  int64_t shape[2] = {1, count};
  succeeds(TRITONSERVER_InferenceRequestAddInput(
      request, name, TRITONSERVER_TYPE_INT32, batched ? shape : shape + 1, batched ? 2 : 1));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(
      request, name, values, (size_t)count * sizeof(*values), TRITONSERVER_MEMORY_CPU, 0));
}

/* What inputs hold unless it matters. */
CHECK_MAYBE_UNUSED static const int32_t client_numbers[4] = {1, 2, 3, 4};

/* One inference, from a fresh client to the end. */
CHECK_MAYBE_UNUSED static void client_infers(
    TRITONSERVER_Server* server, const char* model, TRITONSERVER_ResponseAllocator* allocator, Client* client) {
  client_init(client);
  client->deletes = true;
  TRITONSERVER_InferenceRequest* request = client_request(server, model, allocator, client);
  client_input(request, "INPUT0", client_numbers, 4, false);
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
  client_finish(client);
}

/* The elements of an output, of which there must be `count` of 4 bytes. */
CHECK_MAYBE_UNUSED static const int32_t* client_values(
    TRITONSERVER_InferenceResponse* response, uint32_t index, const char* expected_name, int64_t count) {
  const char* name = NULL;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = NULL;
  uint64_t dims = 0;
  const void* base = NULL;
  size_t byte_size = 0;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_GPU;
  int64_t memory_type_id = -1;
  void* userp = NULL;
  TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(response);
  if (error != NULL) check_failed(__FILE__, __LINE__, "client_values", TRITONSERVER_ErrorMessage(error));
  succeeds(TRITONSERVER_InferenceResponseOutput(
      response, index, &name, &datatype, &shape, &dims, &base, &byte_size, &memory_type, &memory_type_id, &userp));
  expect(strcmp(name, expected_name) == 0);
  int64_t elements = 1;
  for (uint64_t at = 0; at < dims; ++at) elements *= shape[at];
  expect(elements == count && byte_size == (size_t)count * 4);
  expect(memory_type == TRITONSERVER_MEMORY_CPU && memory_type_id == 0);
  return base;
}

CHECK_MAYBE_UNUSED static TRITONSERVER_Server* client_server(const char* repository, const char* backends) {
  TRITONSERVER_ServerOptions* options = NULL;
  TRITONSERVER_Server* server = NULL;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  succeeds(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repository));
  succeeds(TRITONSERVER_ServerOptionsSetBackendDirectory(options, backends));
  succeeds(TRITONSERVER_ServerOptionsSetLogInfo(options, false));
  succeeds(TRITONSERVER_ServerOptionsSetCacheConfig(options, "local", "{\"size\": 1048576}"));
  succeeds(TRITONSERVER_ServerNew(&server, options));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
  return server;
}

CHECK_MAYBE_UNUSED static void client_end(TRITONSERVER_Server* server) {
  succeeds(TRITONSERVER_ServerStop(server));
  succeeds(TRITONSERVER_ServerDelete(server));
}

/* The code and text of the one answer, which is an error. */
CHECK_MAYBE_UNUSED static void client_failed(Client* client, TRITONSERVER_Error_Code code, const char* text) {
  expect(client->count == 1);
  TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(client->responses[0]);
  if (error == NULL) check_failed(__FILE__, __LINE__, "client_failed", "no error");
  const char* found = TRITONSERVER_ErrorMessage(error);
  if (TRITONSERVER_ErrorCode(error) != code || (text != NULL && strcmp(found, text) != 0))
    check_failed(__FILE__, __LINE__, "client_failed", found);
}

#endif
