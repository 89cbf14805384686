/* Traces that an application makes: what they are told, whose they are, and their children.
 *
 * Arguments: a repository, a directory for backends. */

#include "client.h"

enum { ENTRIES_MAX = 256 };

typedef struct Entry {
  uint64_t trace, parent, at;
  TRITONSERVER_InferenceTraceActivity activity;
  char text[64];
} Entry;

/* What was told, in its order. */
typedef struct Log {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int count, releases, tensors;
  Entry entries[ENTRIES_MAX];
  TRITONSERVER_InferenceTrace* released[8];
} Log;

static TRITONSERVER_Server* server;
static TRITONSERVER_ResponseAllocator* allocator;
static const int32_t numbers[4] = {3, 1, 4, 1};

static Entry* note(Log* log, TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity) {
  expect(log->count < ENTRIES_MAX);
  Entry* entry = &log->entries[log->count++];
  memset(entry, 0, sizeof(*entry));
  entry->activity = activity;
  succeeds(TRITONSERVER_InferenceTraceId(trace, &entry->trace));
  succeeds(TRITONSERVER_InferenceTraceParentId(trace, &entry->parent));
  return entry;
}

static void on_activity(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t timestamp_ns,
    void* userp) {
  Log* log = userp;
  pthread_mutex_lock(&log->lock);
  Entry* entry = note(log, trace, activity);
  entry->at = timestamp_ns;
  const char* text = "";
  if (activity == TRITONSERVER_TRACE_CUSTOM_ACTIVITY) {
    succeeds(TRITONSERVER_InferenceTraceContext(trace, &text));
  } else {
    succeeds(TRITONSERVER_InferenceTraceModelName(trace, &text));
  }
  snprintf(entry->text, sizeof(entry->text), "%s", text);
  pthread_mutex_unlock(&log->lock);
}

static void on_tensor(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, const char* name,
    TRITONSERVER_DataType datatype, const void* base, size_t byte_size, const int64_t* shape, uint64_t dim_count,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void* userp) {
  Log* log = userp;
  pthread_mutex_lock(&log->lock);
  Entry* entry = note(log, trace, activity);
  snprintf(entry->text, sizeof(entry->text), "%s", name);
  ++log->tensors;
  expect(datatype == TRITONSERVER_TYPE_INT32 && byte_size == sizeof(numbers) && memcmp(base, numbers, byte_size) == 0);
  expect(dim_count == 1 && shape[0] == 4 && memory_type == TRITONSERVER_MEMORY_CPU && memory_type_id == 0);
  pthread_mutex_unlock(&log->lock);
}

static void on_release(TRITONSERVER_InferenceTrace* trace, void* userp) {
  Log* log = userp;
  pthread_mutex_lock(&log->lock);
  expect(log->releases < 8);
  log->released[log->releases++] = trace;
  pthread_cond_broadcast(&log->changed);
  pthread_mutex_unlock(&log->lock);
}

static void log_init(Log* log) {
  memset(log, 0, sizeof(*log));
  pthread_mutex_init(&log->lock, NULL);
  pthread_cond_init(&log->changed, NULL);
}

static void wait_for_releases(Log* log, int count) {
  pthread_mutex_lock(&log->lock);
  while (log->releases < count) pthread_cond_wait(&log->changed, &log->lock);
  expect(log->releases == count);
  pthread_mutex_unlock(&log->lock);
}

static int told(Log* log, uint64_t trace, TRITONSERVER_InferenceTraceActivity activity) {
  int times = 0;
  for (int i = 0; i < log->count; ++i)
    times += log->entries[i].trace == trace && log->entries[i].activity == activity;
  return times;
}

static const TRITONSERVER_InferenceTraceLevel TIMES = TRITONSERVER_TRACE_LEVEL_TIMESTAMPS;

static void are_made(void) {
  Log log;
  log_init(&log);
  TRITONSERVER_InferenceTrace *trace = NULL, *child = NULL;
  fails(TRITONSERVER_InferenceTraceNew(NULL, TIMES, 0, on_activity, on_release, &log), TRITONSERVER_ERROR_INVALID_ARG,
        "trace must not be NULL");
  fails(TRITONSERVER_InferenceTraceNew(&trace, TIMES, 0, NULL, on_release, &log), TRITONSERVER_ERROR_INVALID_ARG,
        "activity_fn must not be NULL");
  fails(TRITONSERVER_InferenceTraceNew(&trace, TIMES, 0, on_activity, NULL, &log), TRITONSERVER_ERROR_INVALID_ARG,
        "release_fn must not be NULL");
  fails(TRITONSERVER_InferenceTraceNew(&trace, 16, 0, on_activity, on_release, &log), TRITONSERVER_ERROR_INVALID_ARG,
        "unknown trace level 16");
  fails(TRITONSERVER_InferenceTraceTensorNew(&trace, TIMES, 0, on_activity, NULL, on_release, &log),
        TRITONSERVER_ERROR_INVALID_ARG, "tensor_activity_fn must not be NULL");
  succeeds(TRITONSERVER_InferenceTraceNew(&trace, TIMES, 77, on_activity, on_release, &log));
  uint64_t id = 0, other = 0;
  succeeds(TRITONSERVER_InferenceTraceId(trace, &id));
  succeeds(TRITONSERVER_InferenceTraceParentId(trace, &other));
  expect(id > 0 && other == 77);
  int64_t version = 0;
  const char* text = NULL;
  succeeds(TRITONSERVER_InferenceTraceModelVersion(trace, &version));
  succeeds(TRITONSERVER_InferenceTraceRequestId(trace, &text));
  expect(version == -1 && text[0] == 0);

  succeeds(TRITONSERVER_InferenceTraceContext(trace, &text));
  expect(strcmp(text, "") == 0);
  succeeds(TRITONSERVER_InferenceTraceSetContext(trace, "{\"a\":1}"));
  const char* first = NULL;
  succeeds(TRITONSERVER_InferenceTraceContext(trace, &first));
  expect(strcmp(first, "{\"a\":1}") == 0);
  fails(TRITONSERVER_InferenceTraceSetContext(trace, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "trace_context must not be NULL");
  succeeds(TRITONSERVER_InferenceTraceReportActivity(trace, 123, "MINE"));
  expect(log.count == 1 && log.entries[0].activity == TRITONSERVER_TRACE_CUSTOM_ACTIVITY && log.entries[0].at == 123);
  expect(strcmp(log.entries[0].text, "{\"123\":\"MINE\",\"a\":1}") == 0);
  /* What was handed out lives as long as the trace. */
  succeeds(TRITONSERVER_InferenceTraceSetContext(trace, "{}"));
  expect(strcmp(first, "{\"a\":1}") == 0);

  succeeds(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child));
  succeeds(TRITONSERVER_InferenceTraceParentId(child, &other));
  expect(other == id);
  succeeds(TRITONSERVER_InferenceTraceId(child, &other));
  expect(other > id);
  succeeds(TRITONSERVER_InferenceTraceDelete(child));
  succeeds(TRITONSERVER_InferenceTraceDelete(trace));
  expect(log.releases == 0 && log.count == 1);
}

static void infers(const char* model, TRITONSERVER_InferenceTrace* trace) {
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, model, allocator, &client);
  succeeds(TRITONSERVER_InferenceRequestSetId(request, "traced"));
  client_input(request, "INPUT0", numbers, 4, false);
  succeeds(TRITONSERVER_ServerInferAsync(server, request, trace));
  client_finish(&client);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

static void a_request_is_followed(bool tensors) {
  Log log;
  log_init(&log);
  TRITONSERVER_InferenceTrace* trace = NULL;
  if (tensors) {
    const TRITONSERVER_InferenceTraceLevel level =
        TRITONSERVER_TRACE_LEVEL_TIMESTAMPS | TRITONSERVER_TRACE_LEVEL_TENSORS;
    succeeds(TRITONSERVER_InferenceTraceTensorNew(&trace, level, 0, on_activity, on_tensor, on_release, &log));
  } else {
    /* The old name of the same. */
    succeeds(TRITONSERVER_InferenceTraceNew(&trace, TRITONSERVER_TRACE_LEVEL_MAX, 0, on_activity, on_release, &log));
  }
  uint64_t id = 0;
  succeeds(TRITONSERVER_InferenceTraceId(trace, &id));
  infers("fixed", trace);
  wait_for_releases(&log, 1);
  expect(log.released[0] == trace);
  for (int activity = TRITONSERVER_TRACE_REQUEST_START; activity <= TRITONSERVER_TRACE_REQUEST_END; ++activity)
    expect(told(&log, id, activity) == 1);
  expect(log.entries[0].activity == TRITONSERVER_TRACE_REQUEST_START && strcmp(log.entries[0].text, "fixed") == 0);
  if (!tensors) expect(log.entries[log.count - 1].activity == TRITONSERVER_TRACE_REQUEST_END);
  expect(told(&log, id, TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT) == (tensors ? 1 : 0));
  expect(told(&log, id, TRITONSERVER_TRACE_TENSOR_BACKEND_INPUT) == 0);
  expect(told(&log, id, TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT) == (tensors ? 1 : 0));
  expect(log.tensors == (tensors ? 2 : 0));
  const char* text = NULL;
  int64_t version = 0;
  succeeds(TRITONSERVER_InferenceTraceRequestId(trace, &text));
  expect(strcmp(text, "traced") == 0);
  succeeds(TRITONSERVER_InferenceTraceModelVersion(trace, &version));
  expect(version == 1);
  succeeds(TRITONSERVER_InferenceTraceDelete(trace));
  expect(log.releases == 1);
}

/* The steps of an ensemble are children, and each comes back by itself. */
static void steps_are_children(void) {
  Log log;
  log_init(&log);
  TRITONSERVER_InferenceTrace* trace = NULL;
  succeeds(TRITONSERVER_InferenceTraceNew(&trace, TIMES, 0, on_activity, on_release, &log));
  uint64_t id = 0, parent = 0;
  succeeds(TRITONSERVER_InferenceTraceId(trace, &id));
  infers("chain", trace);
  wait_for_releases(&log, 3);
  int children = 0;
  for (int i = 0; i < 3; ++i) {
    succeeds(TRITONSERVER_InferenceTraceParentId(log.released[i], &parent));
    children += parent == id;
    expect(parent == id || log.released[i] == trace);
    succeeds(TRITONSERVER_InferenceTraceDelete(log.released[i]));
  }
  expect(children == 2);
}

static void stays_where_it_belongs(void) {
  Log log;
  log_init(&log);
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceTrace* trace = NULL;
  succeeds(TRITONSERVER_InferenceTraceNew(&trace, TIMES, 0, on_activity, on_release, &log));
  TRITONSERVER_InferenceRequest* request = client_request(server, "fixed", allocator, &client);
  /* What is no valid request leaves it with its caller. */
  fails(TRITONSERVER_ServerInferAsync(server, request, trace), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  expect(log.releases == 0 && log.count == 0);
  client_input(request, "INPUT0", numbers, 4, false);
  succeeds(TRITONSERVER_ServerStop(server));
  /* A scheduler that refuses the request gives it back through its function. */
  fails(TRITONSERVER_ServerInferAsync(server, request, trace), TRITONSERVER_ERROR_UNAVAILABLE, NULL);
  expect(log.releases == 1 && log.released[0] == trace && client.releases == 0);
  fails(TRITONSERVER_ServerInferAsync(server, request, trace), TRITONSERVER_ERROR_INVALID_ARG,
        "the trace belongs to a request, or did");
  succeeds(TRITONSERVER_InferenceTraceDelete(trace));
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

int main(int argc, char** argv) {
  expect(argc == 3);
  allocator = client_allocator();
  server = client_server(argv[1], argv[2]);
  are_made();
  a_request_is_followed(false);
  a_request_is_followed(true);
  steps_are_children();
  stays_where_it_belongs();
  succeeds(TRITONSERVER_ServerDelete(server));
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
  fails(TRITONSERVER_InferenceTraceId(NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, "trace must not be NULL");
  fails(TRITONSERVER_InferenceTraceParentId(NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_InferenceTraceModelName(NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_InferenceTraceModelVersion(NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_InferenceTraceRequestId(NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_InferenceTraceContext(NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_InferenceTraceReportActivity(NULL, 1, "X"), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_InferenceTraceSpawnChildTrace(NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  return 0;
}
