/* One request at a time to `echo` of the repository that the argument names, made, sent, read and deleted for each, as
 * the Java program beside it does: prints the microseconds of each. Arguments: repository, requests. */

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton/core/tritonserver.h"

#define CHECK(call)                                                              \
  do {                                                                           \
    TRITONSERVER_Error* error = (call);                                          \
    if (error != NULL) {                                                         \
      fprintf(stderr, "%s: %s\n", #call, TRITONSERVER_ErrorMessage(error));      \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

static sem_t done;
static float sum;

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t byte_size, TRITONSERVER_MemoryType preferred,
    int64_t preferred_id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual,
    int64_t* actual_id) {
  (void)allocator, (void)name, (void)preferred, (void)preferred_id, (void)userp;
  *buffer = malloc(byte_size);
  *buffer_userp = NULL;
  *actual = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  return NULL;
}

static TRITONSERVER_Error* release(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* userp, size_t byte_size,
    TRITONSERVER_MemoryType kind, int64_t id) {
  (void)allocator, (void)userp, (void)byte_size, (void)kind, (void)id;
  free(buffer);
  return NULL;
}

static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  (void)request, (void)flags, (void)userp;
  sem_post(&done);
}

static void on_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  (void)flags;
  *(TRITONSERVER_InferenceResponse**)userp = response;
  sem_post(&done);
}

static void one(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, const float* input) {
  TRITONSERVER_InferenceRequest* request = NULL;
  TRITONSERVER_InferenceResponse* response = NULL;
  const int64_t dims[1] = {16};
  CHECK(TRITONSERVER_InferenceRequestNew(&request, server, "echo", -1));
  CHECK(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_FP32, dims, 1));
  CHECK(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", input, 64, TRITONSERVER_MEMORY_CPU, 0));
  CHECK(TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_release, NULL));
  CHECK(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, on_response, &response));
  CHECK(TRITONSERVER_ServerInferAsync(server, request, NULL));
  sem_wait(&done);
  sem_wait(&done);
  const char* name;
  const int64_t* shape;
  const void* base;
  void* userp;
  uint64_t count;
  size_t byte_size;
  int64_t id;
  TRITONSERVER_DataType datatype;
  TRITONSERVER_MemoryType kind;
  CHECK(TRITONSERVER_InferenceResponseOutput(
      response, 0, &name, &datatype, &shape, &count, &base, &byte_size, &kind, &id, &userp));
  sum += ((const float*)base)[15];
  CHECK(TRITONSERVER_InferenceResponseDelete(response));
  CHECK(TRITONSERVER_InferenceRequestDelete(request));
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  TRITONSERVER_ServerOptions* options = NULL;
  TRITONSERVER_Server* server = NULL;
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  CHECK(TRITONSERVER_ServerOptionsNew(&options));
  CHECK(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, argv[1]));
  CHECK(TRITONSERVER_ServerNew(&server, options));
  CHECK(TRITONSERVER_ServerOptionsDelete(options));
  CHECK(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  sem_init(&done, 0, 0);
  float input[16] = {1};
  for (int left = atoi(argv[2]); left > 0; left--) {
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    one(server, allocator, input);
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("C %.3f\n", (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) / 1e3);
  }
  CHECK(TRITONSERVER_ResponseAllocatorDelete(allocator));
  CHECK(TRITONSERVER_ServerDelete(server));
  return sum > 1e9f;
}
