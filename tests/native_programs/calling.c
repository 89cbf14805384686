/* A library's model answers into memory that the application gave, after it asked another model of the same server.
 *
 * Arguments: a repository, a directory for backends with `caller`. The models `call` and, with the host policy
 * `special`, `policed` ask `fixed`. */

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

/* Asks `model` with a request that is described, and checks what it answers and where it found its input. */
static void finds(TRITONSERVER_Server* server, const char* model, const int32_t* values, const char* from,
                  void (*describe)(TRITONSERVER_InferenceRequest*)) {
  Client client;
  client_init(&client);
  TRITONSERVER_ResponseAllocator* allocator = client_allocator();
  TRITONSERVER_InferenceRequest* request = client_request(server, model, allocator, &client);
  const int64_t four = 4;
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, &four, 1));
  describe(request);
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
  client_finish(&client);
  expect(memcmp(client_values(client.responses[0], 0, "OUTPUT0", 4), values, 16) == 0);
  const char* told = parameter(client.responses[0], "from");
  if (strcmp(told, from) != 0) check_failed(__FILE__, __LINE__, model, told);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

static const int32_t special[4] = {-1, -2, -3, -4};

/* Some for all, in memory of two kinds, and some for the instances of one policy. */
static void describe_for_policies(TRITONSERVER_InferenceRequest* request) {
  succeeds(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
      request, "INPUT0", special, 4, TRITONSERVER_MEMORY_CPU, 0, "special"));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(
      request, "INPUT0", numbers, 8, TRITONSERVER_MEMORY_CPU_PINNED, 0));
  succeeds(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
      request, "INPUT0", special + 1, 12, TRITONSERVER_MEMORY_CPU_PINNED, 2, "special"));
  succeeds(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
      request, "INPUT0", special, 16, TRITONSERVER_MEMORY_CPU, 0, "another"));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", numbers + 2, 8, TRITONSERVER_MEMORY_CPU, 0));
}

static void describe_pinned(TRITONSERVER_InferenceRequest* request) {
  TRITONSERVER_BufferAttributes* attributes = NULL;
  succeeds(TRITONSERVER_BufferAttributesNew(&attributes));
  succeeds(TRITONSERVER_BufferAttributesSetMemoryType(attributes, TRITONSERVER_MEMORY_CPU_PINNED));
  succeeds(TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, 1));
  succeeds(TRITONSERVER_BufferAttributesSetByteSize(attributes, 16));
  succeeds(TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(request, "INPUT0", numbers, attributes));
  succeeds(TRITONSERVER_BufferAttributesDelete(attributes));
}

static void inputs_are_read_where_they_lie(TRITONSERVER_Server* server) {
  finds(server, "call", numbers, "1:0 0:0 ", describe_for_policies);
  finds(server, "policed", special, "0:0 1:2 ", describe_for_policies);
  finds(server, "policed", numbers, "1:1 ", describe_pinned);
}

enum { TRACES_MAX = 4 };

/* What was told of the traces of one request, by the order in which they begin. */
typedef struct Traces {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int count, releases;
  uint64_t ids[TRACES_MAX], parents[TRACES_MAX];
  char models[TRACES_MAX][16];
  unsigned activities[TRACES_MAX];
} Traces;

static void on_activity(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t timestamp_ns,
    void* userp) {
  Traces* traces = userp;
  uint64_t id = 0;
  const char* model = NULL;
  expect(timestamp_ns > 0);
  succeeds(TRITONSERVER_InferenceTraceId(trace, &id));
  pthread_mutex_lock(&traces->lock);
  int at = 0;
  while (at < traces->count && traces->ids[at] != id) ++at;
  if (at == traces->count) {
    expect(at < TRACES_MAX && activity == TRITONSERVER_TRACE_REQUEST_START);
    ++traces->count;
    traces->ids[at] = id;
    succeeds(TRITONSERVER_InferenceTraceParentId(trace, &traces->parents[at]));
    succeeds(TRITONSERVER_InferenceTraceModelName(trace, &model));
    snprintf(traces->models[at], sizeof(traces->models[at]), "%s", model);
  }
  expect((traces->activities[at] & (1u << activity)) == 0);
  traces->activities[at] |= 1u << activity;
  pthread_mutex_unlock(&traces->lock);
}

static void on_release(TRITONSERVER_InferenceTrace* trace, void* userp) {
  Traces* traces = userp;
  succeeds(TRITONSERVER_InferenceTraceDelete(trace));
  pthread_mutex_lock(&traces->lock);
  ++traces->releases;
  pthread_cond_broadcast(&traces->changed);
  pthread_mutex_unlock(&traces->lock);
}

/* What a model asks under a trace is a child of that trace, and told to the same functions. */
static void questions_are_children(TRITONSERVER_Server* server) {
  Traces traces;
  memset(&traces, 0, sizeof(traces));
  pthread_mutex_init(&traces.lock, NULL);
  pthread_cond_init(&traces.changed, NULL);
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceTrace* trace = NULL;
  TRITONSERVER_ResponseAllocator* allocator = client_allocator();
  succeeds(TRITONSERVER_InferenceTraceNew(
      &trace, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS, 0, on_activity, on_release, &traces));
  TRITONSERVER_InferenceRequest* request = client_request(server, "call", allocator, &client);
  client_input(request, "INPUT0", numbers, 4, false);
  succeeds(TRITONSERVER_InferenceRequestSetBoolParameter(request, "twice", true));
  succeeds(TRITONSERVER_ServerInferAsync(server, request, trace));
  client_finish(&client);
  pthread_mutex_lock(&traces.lock);
  while (traces.releases < 3) pthread_cond_wait(&traces.changed, &traces.lock);
  expect(traces.count == 3 && traces.releases == 3);
  expect(strcmp(traces.models[0], "call") == 0 && traces.parents[0] == 0);
  for (int at = 0; at < 3; ++at) {
    /* Each from its beginning to its end, and the computation between. */
    expect(traces.activities[at] == (1u << (TRITONSERVER_TRACE_REQUEST_END + 1)) - 1);
    if (at > 0) expect(strcmp(traces.models[at], "fixed") == 0 && traces.parents[at] == traces.ids[0]);
  }
  expect(traces.ids[1] != traces.ids[2] && traces.ids[1] > traces.ids[0]);
  pthread_mutex_unlock(&traces.lock);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

/* The other server has the same library, and goes on when the first one is gone. */
static void servers_share_a_library(TRITONSERVER_Server* first, const char* repository, const char* backends) {
  TRITONSERVER_Server* second = client_server(repository, backends);
  inputs_are_read_where_they_lie(first);
  inputs_are_read_where_they_lie(second);
  client_end(first);
  inputs_are_read_where_they_lie(second);
  client_end(second);
}

int main(int argc, char** argv) {
  expect(argc == 3);
  TRITONSERVER_Server* server = client_server(argv[1], argv[2]);
  calls(server, alloc_pinned, prefers_pinned, "1:3");
  calls(server, client_alloc, NULL, "[request id: <id_unknown>] Output properties are not available");
  calls(server, client_alloc, refuses_to_say, "not told");
  errors_pass_through(server);
  questions_are_children(server);
  servers_share_a_library(server, argv[1], argv[2]);
  return 0;
}
