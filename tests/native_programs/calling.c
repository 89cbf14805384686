/* A library's model answers into memory that the application gave, after it asked another model of the same server.
 *
 * Arguments: a repository, a directory for backends with `caller`. */

#include "client.h"

static const int32_t numbers[4] = {9, 8, 7, 6};

static TRITONSERVER_Error* alloc_pinned(
    TRITONSERVER_ResponseAllocator* allocator, const char* tensor_name, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void* userp, void** buffer, void** buffer_userp,
    TRITONSERVER_MemoryType* actual_memory_type, int64_t* actual_memory_type_id) {
  expect(memory_type == TRITONSERVER_MEMORY_CPU_PINNED && memory_type_id == 3);
  return client_alloc(
      allocator, tensor_name, byte_size, memory_type, 0, userp, buffer, buffer_userp, actual_memory_type,
      actual_memory_type_id);
}

static TRITONSERVER_Error* prefers_pinned(
    TRITONSERVER_ResponseAllocator* allocator, void* userp, const char* tensor_name, size_t* byte_size,
    TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  expect(allocator != NULL && userp != NULL && strcmp(tensor_name, "OUTPUT0") == 0 && *byte_size == sizeof(numbers));
  *memory_type = TRITONSERVER_MEMORY_CPU_PINNED;
  *memory_type_id = 3;
  return NULL;
}

static TRITONSERVER_Error* refuses_to_say(
    TRITONSERVER_ResponseAllocator* allocator, void* userp, const char* tensor_name, size_t* byte_size,
    TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  (void)allocator, (void)userp, (void)tensor_name, (void)byte_size, (void)memory_type, (void)memory_type_id;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "not told");
}

static const char* parameter(TRITONSERVER_InferenceResponse* response, const char* wanted) {
  uint32_t count = 0;
  succeeds(TRITONSERVER_InferenceResponseParameterCount(response, &count));
  for (uint32_t at = 0; at < count; ++at) {
    const char* name = NULL;
    TRITONSERVER_ParameterType type;
    const void* value = NULL;
    succeeds(TRITONSERVER_InferenceResponseParameter(response, at, &name, &type, &value));
    if (strcmp(name, wanted) == 0 && type == TRITONSERVER_PARAMETER_STRING) return value;
  }
  return NULL;
}

static void calls(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocatorAllocFn_t alloc,
                  TRITONSERVER_ResponseAllocatorQueryFn_t query, const char* place) {
  Client client;
  client_init(&client);
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  succeeds(TRITONSERVER_ResponseAllocatorNew(&allocator, alloc, client_free, client_start));
  if (query != NULL) succeeds(TRITONSERVER_ResponseAllocatorSetQueryFunction(allocator, query));
  TRITONSERVER_InferenceRequest* request = client_request(server, "call", allocator, &client);
  client_input(request, "INPUT0", numbers, 4, false);
  succeeds(TRITONSERVER_InferenceRequestSetBoolParameter(request, "twice", true));
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
  client_finish(&client);
  /* One response object, one allocation: the library wrote to the application's memory itself. */
  expect(client.count == 1 && client.starts == 1 && client.allocations == 1);
  const int32_t* found = client_values(client.responses[0], 0, "OUTPUT0", 4);
  expect((const void*)found == client.last_buffer && memcmp(found, numbers, sizeof(numbers)) == 0);
  const char* told = parameter(client.responses[0], "place");
  if (strcmp(told, place) != 0) check_failed(__FILE__, __LINE__, "place", told);
  expect(strcmp(parameter(client.responses[0], "callee"), "fixed") == 0);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

static void errors_pass_through(TRITONSERVER_Server* server) {
  Client client;
  client_init(&client);
  TRITONSERVER_ResponseAllocator* allocator = client_allocator();
  TRITONSERVER_InferenceRequest* request = client_request(server, "call", allocator, &client);
  client_input(request, "INPUT0", numbers, 3, false);
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
  client_finish(&client);
  client_failed(&client, TRITONSERVER_ERROR_INVALID_ARG,
                "[request id: asked] unexpected shape for input 'INPUT0' for model 'fixed'. Expected [4], got [3]. ");
  expect(client.starts == 1 && client.allocations == 0);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

int main(int argc, char** argv) {
  expect(argc == 3);
  TRITONSERVER_Server* server = client_server(argv[1], argv[2]);
  calls(server, alloc_pinned, prefers_pinned, "1:3");
  calls(server, client_alloc, NULL, "[request id: <id_unknown>] Output properties are not available");
  calls(server, client_alloc, refuses_to_say, "not told");
  errors_pass_through(server);
  client_end(server);
  return 0;
}
