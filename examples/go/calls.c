#include "calls.h"

#include <stdlib.h>

#include "_cgo_export.h"

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t byte_size, TRITONSERVER_MemoryType preferred,
    int64_t preferred_id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual,
    int64_t* actual_id) {
  (void)allocator, (void)preferred, (void)preferred_id, (void)userp;
  *buffer_userp = NULL;
  *actual = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  *buffer = byte_size == 0 ? NULL : malloc(byte_size);
  if (byte_size != 0 && *buffer == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, name);
  return NULL;
}

static TRITONSERVER_Error* release(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t byte_size,
    TRITONSERVER_MemoryType kind, int64_t id) {
  (void)allocator, (void)buffer_userp, (void)byte_size, (void)kind, (void)id;
  free(buffer);
  return NULL;
}

TRITONSERVER_Error* new_allocator(TRITONSERVER_ResponseAllocator** allocator) {
  return TRITONSERVER_ResponseAllocatorNew(allocator, allocate, release, NULL);
}

static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  (void)request;
  if (flags & TRITONSERVER_REQUEST_RELEASE_ALL) returned((uintptr_t)userp);
}

static void on_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  responded(response, (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0, (uintptr_t)userp);
}

TRITONSERVER_Error* send_request(
    TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request, TRITONSERVER_ResponseAllocator* allocator,
    uintptr_t call) {
  TRITONSERVER_Error* error = TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_release, (void*)call);
  if (error == NULL) {
    error = TRITONSERVER_InferenceRequestSetResponseCallback(
        request, allocator, NULL, on_response, (void*)call);
  }
  return error == NULL ? TRITONSERVER_ServerInferAsync(server, request, NULL) : error;
}
