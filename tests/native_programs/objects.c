/* Objects that need no server: errors, messages, attributes of buffers. */

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

int main(void) {
  errors();
  messages();
  buffer_attributes();
  return 0;
}
