/* What an application's allocator is asked, and what becomes of what it says.
 *
 * Arguments: a repository, a directory for backends. */

#include "client.h"

static TRITONSERVER_Error* alloc_null(
    TRITONSERVER_ResponseAllocator* allocator, const char* tensor_name, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void* userp, void** buffer, void** buffer_userp,
    TRITONSERVER_MemoryType* actual_memory_type, int64_t* actual_memory_type_id) {
  (void)allocator, (void)tensor_name, (void)byte_size, (void)memory_type, (void)memory_type_id, (void)buffer_userp;
  (void)actual_memory_type, (void)actual_memory_type_id;
  *buffer = NULL;
  client_changed(userp, &((Client*)userp)->allocations);
  return NULL;
}

static TRITONSERVER_Error* alloc_gpu(
    TRITONSERVER_ResponseAllocator* allocator, const char* tensor_name, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void* userp, void** buffer, void** buffer_userp,
    TRITONSERVER_MemoryType* actual_memory_type, int64_t* actual_memory_type_id) {
  TRITONSERVER_Error* error = client_alloc(
      allocator, tensor_name, byte_size, memory_type, memory_type_id, userp, buffer, buffer_userp, actual_memory_type,
      actual_memory_type_id);
  *actual_memory_type = TRITONSERVER_MEMORY_GPU;
  return error;
}

/* Where no number may begin. */
static TRITONSERVER_Error* alloc_crooked(
    TRITONSERVER_ResponseAllocator* allocator, const char* tensor_name, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void* userp, void** buffer, void** buffer_userp,
    TRITONSERVER_MemoryType* actual_memory_type, int64_t* actual_memory_type_id) {
  (void)allocator, (void)tensor_name, (void)memory_type, (void)memory_type_id;
  char* block = malloc(byte_size + 16);
  *buffer = block + 1;
  *buffer_userp = userp;
  *actual_memory_type = TRITONSERVER_MEMORY_CPU;
  *actual_memory_type_id = 0;
  client_changed(userp, &((Client*)userp)->allocations);
  return NULL;
}

static TRITONSERVER_Error* free_crooked(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id) {
  (void)allocator, (void)byte_size, (void)memory_type, (void)memory_type_id;
  free((char*)buffer - 1);
  client_changed(buffer_userp, &((Client*)buffer_userp)->frees);
  return NULL;
}

static TRITONSERVER_Error* failing_start(TRITONSERVER_ResponseAllocator* allocator, void* userp) {
  (void)allocator;
  client_changed(userp, &((Client*)userp)->starts);
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "never mind");
}

static TRITONSERVER_Error* says_pinned(
    TRITONSERVER_ResponseAllocator* allocator, const char* tensor_name, TRITONSERVER_BufferAttributes* attributes,
    void* userp, void* buffer_userp) {
  expect(allocator != NULL && strcmp(tensor_name, "OUTPUT0") == 0 && userp == buffer_userp);
  size_t byte_size = 0;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_GPU;
  succeeds(TRITONSERVER_BufferAttributesByteSize(attributes, &byte_size));
  succeeds(TRITONSERVER_BufferAttributesMemoryType(attributes, &memory_type));
  expect(byte_size == sizeof(client_numbers) && memory_type == TRITONSERVER_MEMORY_CPU);
  succeeds(TRITONSERVER_BufferAttributesSetMemoryType(attributes, TRITONSERVER_MEMORY_CPU_PINNED));
  return NULL;
}

static TRITONSERVER_Error* says_no(
    TRITONSERVER_ResponseAllocator* allocator, const char* tensor_name, TRITONSERVER_BufferAttributes* attributes,
    void* userp, void* buffer_userp) {
  (void)allocator, (void)tensor_name, (void)attributes, (void)userp, (void)buffer_userp;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "no attributes");
}

static TRITONSERVER_Error* never_asked(
    TRITONSERVER_ResponseAllocator* allocator, void* userp, const char* tensor_name, size_t* byte_size,
    TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  (void)allocator, (void)userp, (void)tensor_name, (void)byte_size, (void)memory_type, (void)memory_type_id;
  return NULL;
}

static TRITONSERVER_ResponseAllocator* allocator_of(
    TRITONSERVER_ResponseAllocatorAllocFn_t alloc, TRITONSERVER_ResponseAllocatorStartFn_t start) {
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  succeeds(TRITONSERVER_ResponseAllocatorNew(&allocator, alloc, client_free, start));
  return allocator;
}

static void fails_to_allocate(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocatorAllocFn_t alloc,
                              TRITONSERVER_Error_Code code, const char* text, int frees) {
  TRITONSERVER_ResponseAllocator* allocator = allocator_of(alloc, client_start);
  Client client;
  client_infers(server, "fixed", allocator, &client);
  client_failed(&client, code, text);
  uint32_t count = 9;
  succeeds(TRITONSERVER_InferenceResponseOutputCount(client.responses[0], &count));
  expect(count == 0 && client.starts == 1 && client.allocations == 1 && client.frees == frees);
  client_clear(&client);
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

static void has_attributes(TRITONSERVER_Server* server) {
  TRITONSERVER_ResponseAllocator* allocator = allocator_of(client_alloc, failing_start);
  Client client;
  succeeds(TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(allocator, says_pinned));
  fails(TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(NULL, says_pinned), TRITONSERVER_ERROR_INVALID_ARG,
        "allocator must not be NULL");
  succeeds(TRITONSERVER_ResponseAllocatorSetQueryFunction(allocator, never_asked));
  fails(TRITONSERVER_ResponseAllocatorSetQueryFunction(NULL, never_asked), TRITONSERVER_ERROR_INVALID_ARG,
        "allocator must not be NULL");
  client_infers(server, "fixed", allocator, &client);
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_GPU;
  succeeds(TRITONSERVER_InferenceResponseOutput(
      client.responses[0], 0, NULL, NULL, NULL, NULL, NULL, NULL, &memory_type, NULL, NULL));
  expect(memory_type == TRITONSERVER_MEMORY_CPU_PINNED && client.starts == 1);
  TRITONSERVER_InferenceResponse* response = client.responses[0];
  client.count = 0;
  succeeds(TRITONSERVER_InferenceResponseDelete(response));
  expect(client.frees == 1 && client.last_type == TRITONSERVER_MEMORY_CPU_PINNED);

  succeeds(TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(allocator, says_no));
  client_infers(server, "fixed", allocator, &client);
  client_failed(&client, TRITONSERVER_ERROR_UNSUPPORTED, "no attributes");
  expect(client.allocations == 1 && client.frees == 1);
  client_clear(&client);
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

/* Success without a buffer: the answer says how large the output is, and has no elements. */
static void may_give_nothing(TRITONSERVER_Server* server) {
  static const char* const models[] = {"fixed", "square"};
  for (int i = 0; i < 2; ++i) {
    TRITONSERVER_ResponseAllocator* allocator = NULL;
    succeeds(TRITONSERVER_ResponseAllocatorNew(&allocator, alloc_null, client_free, NULL));
    Client client;
    client_init(&client);
    client.deletes = true;
    TRITONSERVER_InferenceRequest* request = client_request(server, models[i], allocator, &client);
    if (i == 0) {
      client_input(request, "INPUT0", client_numbers, 4, false);
    } else {
      client_input(request, "IN", client_numbers, 1, false);
    }
    succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
    client_finish(&client);
    expect(client.count == 1 && client.allocations == 1);
    expect(TRITONSERVER_InferenceResponseError(client.responses[0]) == NULL);
    const void* base = client_numbers;
    size_t byte_size = 0;
    succeeds(TRITONSERVER_InferenceResponseOutput(
        client.responses[0], 0, NULL, NULL, NULL, NULL, &base, &byte_size, NULL, NULL, NULL));
    expect(base == NULL && byte_size == (i == 0 ? sizeof(client_numbers) : 4));
    client_clear(&client);
    succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
  }
}

/* A model that writes numbers itself does not write them there, and they arrive. */
static void may_be_crooked(TRITONSERVER_Server* server) {
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  succeeds(TRITONSERVER_ResponseAllocatorNew(&allocator, alloc_crooked, free_crooked, NULL));
  Client client;
  client_init(&client);
  client.deletes = true;
  TRITONSERVER_InferenceRequest* request = client_request(server, "square", allocator, &client);
  const int32_t three = 3;
  client_input(request, "IN", &three, 1, false);
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
  client_finish(&client);
  expect(client.count == 3 && client.allocations == 3 && client.nulls == 1);
  for (int i = 0; i < 3; ++i) {
    const void* base = NULL;
    succeeds(TRITONSERVER_InferenceResponseOutput(
        client.responses[i], 0, NULL, NULL, NULL, NULL, &base, NULL, NULL, NULL, NULL));
    expect(memcmp(base, &three, 4) == 0);
  }
  client_clear(&client);
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

int main(int argc, char** argv) {
  expect(argc == 3);
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  fails(TRITONSERVER_ResponseAllocatorNew(&allocator, NULL, client_free, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "alloc_fn must not be NULL");
  fails(TRITONSERVER_ResponseAllocatorNew(&allocator, client_alloc, NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "release_fn must not be NULL");
  fails(TRITONSERVER_ResponseAllocatorNew(NULL, client_alloc, client_free, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "allocator must not be NULL");
  TRITONSERVER_Server* server = client_server(argv[1], argv[2]);
  fails_to_allocate(server, client_alloc_nothing, TRITONSERVER_ERROR_UNAVAILABLE, "no memory today", 0);
  may_give_nothing(server);
  fails_to_allocate(server, alloc_gpu, TRITONSERVER_ERROR_UNSUPPORTED,
                    "the response allocator gave GPU memory for output 'OUTPUT0', which this build cannot write", 1);
  has_attributes(server);
  may_be_crooked(server);
  client_end(server);
  return 0;
}
