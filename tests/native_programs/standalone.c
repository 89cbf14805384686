/* What needs no server: errors, messages, attributes of buffers, response allocators, traces. */

#include "check.h"

static void errors(void) {
  TRITONSERVER_Error* error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "gone");
  holds(TRITONSERVER_ErrorNew, error != NULL);
  holds(TRITONSERVER_ErrorCode, TRITONSERVER_ErrorCode(error) == TRITONSERVER_ERROR_NOT_FOUND);
  holds(TRITONSERVER_ErrorCodeString, strcmp(TRITONSERVER_ErrorCodeString(error), "Not found") == 0);
  holds(TRITONSERVER_ErrorMessage, strcmp(TRITONSERVER_ErrorMessage(error), "gone") == 0);
  holds(TRITONSERVER_ErrorDelete, (TRITONSERVER_ErrorDelete(error), true));

  static const char* const names[] = {"Unknown",     "Internal",    "Not found",      "Invalid argument",
                                      "Unavailable", "Unsupported", "Already exists", "<invalid code>"};
  for (int code = TRITONSERVER_ERROR_UNKNOWN; code <= TRITONSERVER_ERROR_CANCELLED; ++code) {
    error = TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)code, "");
    expect(TRITONSERVER_ErrorCode(error) == (TRITONSERVER_Error_Code)code);
    expect(strcmp(TRITONSERVER_ErrorCodeString(error), names[code]) == 0);
    TRITONSERVER_ErrorDelete(error);
  }

  /* Without a text there is still an error; a number that is no code is the unknown one. */
  error = TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)99, NULL);
  refuses(TRITONSERVER_ErrorNew, error != NULL && strcmp(TRITONSERVER_ErrorMessage(error), "") == 0);
  expect(TRITONSERVER_ErrorCode(error) == TRITONSERVER_ERROR_UNKNOWN);
  TRITONSERVER_ErrorDelete(error);
  refuses(TRITONSERVER_ErrorCode, TRITONSERVER_ErrorCode(NULL) == TRITONSERVER_ERROR_UNKNOWN);
  refuses(TRITONSERVER_ErrorCodeString, strcmp(TRITONSERVER_ErrorCodeString(NULL), "Unknown") == 0);
  refuses(TRITONSERVER_ErrorMessage, strcmp(TRITONSERVER_ErrorMessage(NULL), "") == 0);
  refuses(TRITONSERVER_ErrorDelete, (TRITONSERVER_ErrorDelete(NULL), true));
}

static void messages(void) {
  static const char json[] = "{\"a\":[1,2]} beyond";
  TRITONSERVER_Message* message = NULL;
  const char* base = NULL;
  size_t byte_size = 0;
  succeeds(TRITONSERVER_MessageNewFromSerializedJson(&message, json, 11));
  succeeds(TRITONSERVER_MessageSerializeToJson(message, &base, &byte_size));
  expect(byte_size == 11 && strcmp(base, "{\"a\":[1,2]}") == 0);
  fails(TRITONSERVER_MessageSerializeToJson(NULL, &base, &byte_size), TRITONSERVER_ERROR_INVALID_ARG,
        "message must not be NULL");
  fails(TRITONSERVER_MessageSerializeToJson(message, NULL, &byte_size), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_MessageSerializeToJson(message, &base, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONSERVER_MessageDelete(message));
  refuses(TRITONSERVER_MessageDelete, TRITONSERVER_MessageDelete(NULL) == NULL);

  fails(TRITONSERVER_MessageNewFromSerializedJson(&message, "{\"a\":", 5), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_MessageNewFromSerializedJson(&message, "\"\xff\"", 3), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_MessageNewFromSerializedJson(&message, NULL, 0), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_MessageNewFromSerializedJson(NULL, json, 11), TRITONSERVER_ERROR_INVALID_ARG, NULL);
}

static void buffer_attributes(void) {
  TRITONSERVER_BufferAttributes* attributes = NULL;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_GPU;
  int64_t id = 9;
  size_t byte_size = 9;
  char handle_of_cuda[64];
  void* handle = handle_of_cuda;
  succeeds(TRITONSERVER_BufferAttributesNew(&attributes));
  succeeds(TRITONSERVER_BufferAttributesMemoryType(attributes, &memory_type));
  succeeds(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &id));
  succeeds(TRITONSERVER_BufferAttributesByteSize(attributes, &byte_size));
  succeeds(TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, &handle));
  expect(memory_type == TRITONSERVER_MEMORY_CPU && id == 0 && byte_size == 0 && handle == NULL);

  succeeds(TRITONSERVER_BufferAttributesSetMemoryType(attributes, TRITONSERVER_MEMORY_CPU_PINNED));
  succeeds(TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, 2));
  succeeds(TRITONSERVER_BufferAttributesSetByteSize(attributes, 3));
  succeeds(TRITONSERVER_BufferAttributesSetCudaIpcHandle(attributes, handle_of_cuda));
  TRITONSERVER_BufferAttributesMemoryType(attributes, &memory_type);
  TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &id);
  TRITONSERVER_BufferAttributesByteSize(attributes, &byte_size);
  TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, &handle);
  expect(memory_type == TRITONSERVER_MEMORY_CPU_PINNED && id == 2 && byte_size == 3 && handle == handle_of_cuda);

  const TRITONSERVER_Error_Code invalid = TRITONSERVER_ERROR_INVALID_ARG;
  fails(TRITONSERVER_BufferAttributesSetMemoryType(attributes, (TRITONSERVER_MemoryType)3), invalid, NULL);
  fails(TRITONSERVER_BufferAttributesSetMemoryTypeId(NULL, 2), invalid, NULL);
  fails(TRITONSERVER_BufferAttributesSetByteSize(NULL, 3), invalid, NULL);
  fails(TRITONSERVER_BufferAttributesSetCudaIpcHandle(NULL, handle), invalid, NULL);
  fails(TRITONSERVER_BufferAttributesMemoryType(NULL, &memory_type), invalid, NULL);
  fails(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, NULL), invalid, NULL);
  fails(TRITONSERVER_BufferAttributesByteSize(NULL, &byte_size), invalid, NULL);
  fails(TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, NULL), invalid, NULL);
  fails(TRITONSERVER_BufferAttributesNew(NULL), invalid, NULL);
  succeeds(TRITONSERVER_BufferAttributesDelete(attributes));
  refuses(TRITONSERVER_BufferAttributesDelete, TRITONSERVER_BufferAttributesDelete(NULL) == NULL);
}

/* Functions that are never called here. */

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t byte_size, TRITONSERVER_MemoryType preferred,
    int64_t preferred_id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual,
    int64_t* actual_id) {
  (void)allocator, (void)name, (void)byte_size, (void)preferred, (void)preferred_id, (void)userp;
  (void)buffer, (void)buffer_userp, (void)actual, (void)actual_id;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "never called");
}

static TRITONSERVER_Error* give_back(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id) {
  (void)allocator, (void)buffer, (void)buffer_userp, (void)byte_size, (void)memory_type, (void)memory_type_id;
  return NULL;
}

static TRITONSERVER_Error* start(TRITONSERVER_ResponseAllocator* allocator, void* userp) {
  (void)allocator, (void)userp;
  return NULL;
}

static TRITONSERVER_Error* query(
    TRITONSERVER_ResponseAllocator* allocator, void* userp, const char* name, size_t* byte_size,
    TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  (void)allocator, (void)userp, (void)name, (void)byte_size, (void)memory_type, (void)memory_type_id;
  return NULL;
}

static TRITONSERVER_Error* describe(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, TRITONSERVER_BufferAttributes* attributes, void* userp,
    void* buffer_userp) {
  (void)allocator, (void)name, (void)attributes, (void)userp, (void)buffer_userp;
  return NULL;
}

static void allocators(void) {
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  const TRITONSERVER_Error_Code invalid = TRITONSERVER_ERROR_INVALID_ARG;
  succeeds(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, give_back, NULL));
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
  succeeds(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, give_back, start));
  fails(TRITONSERVER_ResponseAllocatorNew(NULL, allocate, give_back, start), invalid, NULL);
  fails(TRITONSERVER_ResponseAllocatorNew(&allocator, NULL, give_back, start), invalid, NULL);
  fails(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, NULL, start), invalid, NULL);
  succeeds(TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(allocator, describe));
  fails(TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(NULL, describe), invalid, NULL);
  succeeds(TRITONSERVER_ResponseAllocatorSetQueryFunction(allocator, query));
  fails(TRITONSERVER_ResponseAllocatorSetQueryFunction(NULL, query), invalid, NULL);
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
  fails(TRITONSERVER_ResponseAllocatorDelete(NULL), invalid, NULL);
}

static void activity(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity what, uint64_t timestamp_ns, void* userp) {
  (void)trace;
  if (what == TRITONSERVER_TRACE_CUSTOM_ACTIVITY && timestamp_ns == 5) *(int*)userp += 1;
}

static void tensor_activity(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity what, const char* name,
    TRITONSERVER_DataType datatype, const void* base, size_t byte_size, const int64_t* shape, uint64_t dim_count,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void* userp) {
  (void)trace, (void)what, (void)name, (void)datatype, (void)base, (void)byte_size, (void)shape, (void)dim_count;
  (void)memory_type, (void)memory_type_id, (void)userp;
}

static void released(TRITONSERVER_InferenceTrace* trace, void* userp) {
  (void)trace, (void)userp;
}

/* What is known of a trace, here of one whose request was never sent. */
static void reads(TRITONSERVER_InferenceTrace* trace) {
  const TRITONSERVER_Error_Code invalid = TRITONSERVER_ERROR_INVALID_ARG;
  const char* text = NULL;
  uint64_t id = 0, other = 0;
  int64_t version = 0;
  TRITONSERVER_InferenceTrace* child = NULL;
  succeeds(TRITONSERVER_InferenceTraceId(trace, &id));
  expect(id != 0);
  fails(TRITONSERVER_InferenceTraceId(NULL, &id), invalid, NULL);
  succeeds(TRITONSERVER_InferenceTraceParentId(trace, &other));
  expect(other == 7);
  fails(TRITONSERVER_InferenceTraceParentId(trace, NULL), invalid, NULL);
  succeeds(TRITONSERVER_InferenceTraceModelName(trace, &text));
  expect(strcmp(text, "") == 0);
  fails(TRITONSERVER_InferenceTraceModelName(NULL, &text), invalid, NULL);
  succeeds(TRITONSERVER_InferenceTraceModelVersion(trace, &version));
  fails(TRITONSERVER_InferenceTraceModelVersion(trace, NULL), invalid, NULL);
  succeeds(TRITONSERVER_InferenceTraceRequestId(trace, &text));
  expect(strcmp(text, "") == 0);
  fails(TRITONSERVER_InferenceTraceRequestId(NULL, &text), invalid, NULL);
  succeeds(TRITONSERVER_InferenceTraceReportActivity(trace, 5, "MINE"));
  fails(TRITONSERVER_InferenceTraceReportActivity(trace, 5, NULL), invalid, NULL);
  fails(TRITONSERVER_InferenceTraceReportActivity(NULL, 5, "MINE"), invalid, NULL);

  succeeds(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child));
  expect(TRITONSERVER_InferenceTraceParentId(child, &other) == NULL && other == id);
  expect(TRITONSERVER_InferenceTraceReportActivity(child, 5, "ITS OWN") == NULL);
  expect(TRITONSERVER_InferenceTraceDelete(child) == NULL);
  fails(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, NULL), invalid, NULL);
  fails(TRITONSERVER_InferenceTraceSpawnChildTrace(NULL, &child), invalid, NULL);
}

static void traces(void) {
  TRITONSERVER_InferenceTrace* trace = NULL;
  const TRITONSERVER_InferenceTraceLevel times = TRITONSERVER_TRACE_LEVEL_TIMESTAMPS;
  const TRITONSERVER_InferenceTraceLevel all =
      (TRITONSERVER_InferenceTraceLevel)(TRITONSERVER_TRACE_LEVEL_TIMESTAMPS | TRITONSERVER_TRACE_LEVEL_TENSORS);
  const TRITONSERVER_Error_Code invalid = TRITONSERVER_ERROR_INVALID_ARG;
  const char* text = NULL;
  int activities = 0;
  succeeds(TRITONSERVER_InferenceTraceNew(&trace, times, 7, activity, released, &activities));
  fails(TRITONSERVER_InferenceTraceNew(NULL, times, 7, activity, released, NULL), invalid, NULL);
  fails(TRITONSERVER_InferenceTraceNew(&trace, times, 7, NULL, released, NULL), invalid, NULL);
  fails(TRITONSERVER_InferenceTraceNew(&trace, times, 7, activity, NULL, NULL), invalid, NULL);
  reads(trace);
  expect(activities == 2);
  succeeds(TRITONSERVER_InferenceTraceSetContext(trace, "{\"a\":1}"));
  succeeds(TRITONSERVER_InferenceTraceContext(trace, &text));
  expect(strcmp(text, "{\"a\":1}") == 0);
  fails(TRITONSERVER_InferenceTraceContext(NULL, &text), invalid, NULL);
  fails(TRITONSERVER_InferenceTraceSetContext(trace, NULL), invalid, NULL);
  fails(TRITONSERVER_InferenceTraceSetContext(NULL, "{}"), invalid, NULL);
  succeeds(TRITONSERVER_InferenceTraceDelete(trace));
  succeeds(TRITONSERVER_InferenceTraceTensorNew(&trace, all, 0, activity, tensor_activity, released, NULL));
  fails(TRITONSERVER_InferenceTraceTensorNew(&trace, all, 0, activity, NULL, released, NULL), invalid, NULL);
  succeeds(TRITONSERVER_InferenceTraceDelete(trace));
  refuses(TRITONSERVER_InferenceTraceDelete, TRITONSERVER_InferenceTraceDelete(NULL) == NULL);
}

int main(void) {
  errors();
  messages();
  buffer_attributes();
  allocators();
  traces();
  return 0;
}
