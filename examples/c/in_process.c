/* Runs the server inside this program: starts it, asks models, and ends it.
 *
 * Build it against what `nereid install --prefix=$PREFIX` made:
 *
 *   cc in_process.c -I $PREFIX/include -L $PREFIX/lib -ltritonserver -Wl,-rpath,$PREFIX/lib -pthread -o in_process
 *
 * and run it with the repositories that hold the models `identity` and `repeat`:
 *
 *   ./in_process model_repository examples/c/models
 *
 * Who owns what: whatever a function ending in New gives belongs to this program, which deletes it. A request belongs
 * to the server between TRITONSERVER_ServerInferAsync and its release callback. A response belongs to whoever its
 * callback was given to. Callbacks come from threads of the server, so what they share with this program has a lock. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton/core/tritonserver.h"

/* Ends the program with what went wrong. Errors belong to who got them; here the process ends anyway. */
static void check(TRITONSERVER_Error* error, const char* what) {
  if (error == NULL) return;
  fprintf(stderr, "%s: %s: %s\n", what, TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  exit(1);
}

#define CHECK(call) check((call), #call)

/* One message of the server, a JSON text. */
static void print_message(const char* title, TRITONSERVER_Message* message) {
  const char* text = NULL;
  size_t byte_size = 0;
  CHECK(TRITONSERVER_MessageSerializeToJson(message, &text, &byte_size));
  printf("%s: %.*s\n", title, (int)byte_size, text);
  CHECK(TRITONSERVER_MessageDelete(message));
}

/* Where outputs are put. A real program would hand out buffers of its own, in the memory where it wants to read them;
 * the kind of memory that the server prefers may be refused by naming another. */
static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t byte_size, TRITONSERVER_MemoryType preferred,
    int64_t preferred_id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual,
    int64_t* actual_id) {
  (void)allocator, (void)preferred, (void)preferred_id, (void)userp;
  *buffer_userp = NULL;
  *actual = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  *buffer = NULL;
  if (byte_size == 0) return NULL; /* An empty tensor needs no buffer. */
  *buffer = malloc(byte_size);
  if (*buffer == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, name);
  return NULL;
}

/* Called for each buffer when its response is deleted. */
static TRITONSERVER_Error* release(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t byte_size,
    TRITONSERVER_MemoryType kind, int64_t id) {
  (void)allocator, (void)buffer_userp, (void)byte_size, (void)kind, (void)id;
  free(buffer);
  return NULL;
}

/* What a request is waited for with: both callbacks must have come before it may be used again. */
struct call {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool is_released;   /* The request is ours again. */
  bool is_final;      /* There is no further response. */
  int response_count;
};

/* Prints the elements of an output, whose type says how they are to be read. */
static void print_elements(TRITONSERVER_DataType datatype, const void* base, size_t byte_size) {
  size_t size = TRITONSERVER_DataTypeByteSize(datatype);
  for (size_t at = 0; size != 0 && at + size <= byte_size; at += size) {
    const char* element = (const char*)base + at;
    float real;
    int32_t number;
    if (datatype == TRITONSERVER_TYPE_FP32) {
      memcpy(&real, element, sizeof real);
      printf(" %g", real);
    } else if (size == sizeof number) {
      memcpy(&number, element, sizeof number);
      printf(" %d", number);
    }
  }
}

static void print_response(TRITONSERVER_InferenceResponse* response) {
  /* This error is only lent: it goes with the response. */
  TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(response);
  if (error != NULL) {
    printf("  failed: %s\n", TRITONSERVER_ErrorMessage(error));
    return;
  }
  const char* model = NULL;
  int64_t version = 0;
  uint32_t output_count = 0;
  CHECK(TRITONSERVER_InferenceResponseModel(response, &model, &version));
  CHECK(TRITONSERVER_InferenceResponseOutputCount(response, &output_count));
  for (uint32_t index = 0; index < output_count; ++index) {
    const char* name = NULL;
    const int64_t* shape = NULL;
    const void* base = NULL;
    uint64_t dimension_count = 0;
    size_t byte_size = 0;
    int64_t memory_id = 0;
    void* userp = NULL;
    TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    CHECK(TRITONSERVER_InferenceResponseOutput(
        response, index, &name, &datatype, &shape, &dimension_count, &base, &byte_size, &memory, &memory_id, &userp));
    printf("  %s version %lld: %s %s [", model, (long long)version, name, TRITONSERVER_DataTypeString(datatype));
    for (uint64_t at = 0; at < dimension_count; ++at) printf(at == 0 ? "%lld" : ", %lld", (long long)shape[at]);
    printf("]:");
    print_elements(datatype, base, byte_size);
    printf("\n");
  }
}

/* Called once for each response, on a thread of the server: it must not block for long. One call has the flag FINAL; a
 * decoupled model may send it without a response. */
static void on_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  struct call* call = userp;
  pthread_mutex_lock(&call->lock);
  if (response != NULL) {
    call->response_count += 1;
    print_response(response);
    CHECK(TRITONSERVER_InferenceResponseDelete(response));
  }
  if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) call->is_final = true;
  pthread_cond_signal(&call->changed);
  pthread_mutex_unlock(&call->lock);
}

/* Called when the server is done with the request, before or after its last response. It could be deleted here. */
static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  struct call* call = userp;
  (void)request;
  pthread_mutex_lock(&call->lock);
  if (flags & TRITONSERVER_REQUEST_RELEASE_ALL) call->is_released = true;
  pthread_cond_signal(&call->changed);
  pthread_mutex_unlock(&call->lock);
}

/* Adds an input of one dimension. The elements are borrowed until the request is released. */
static void add_input(
    TRITONSERVER_InferenceRequest* request, const char* name, TRITONSERVER_DataType datatype, const void* elements,
    int64_t count) {
  size_t byte_size = (size_t)count * TRITONSERVER_DataTypeByteSize(datatype);
  CHECK(TRITONSERVER_InferenceRequestAddInput(request, name, datatype, &count, 1));
  CHECK(TRITONSERVER_InferenceRequestAppendInputData(request, name, elements, byte_size, TRITONSERVER_MEMORY_CPU, 0));
}

/* Sends a request and waits until it is answered and given back. */
static void infer(
    TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, TRITONSERVER_InferenceRequest* request) {
  struct call call = {.is_released = false};
  pthread_mutex_init(&call.lock, NULL);
  pthread_cond_init(&call.changed, NULL);
  CHECK(TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_release, &call));
  CHECK(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, on_response, &call));
  CHECK(TRITONSERVER_ServerInferAsync(server, request, NULL)); /* On an error the request would still be ours. */
  pthread_mutex_lock(&call.lock);
  while (!call.is_released || !call.is_final) pthread_cond_wait(&call.changed, &call.lock);
  pthread_mutex_unlock(&call.lock);
  printf("  responses: %d\n", call.response_count);
  pthread_cond_destroy(&call.changed);
  pthread_mutex_destroy(&call.lock);
}

/* One request, one response. */
static void ask_identity(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator) {
  static const float values[] = {1.5f, -2.0f, 3.25f};
  TRITONSERVER_InferenceRequest* request = NULL;
  printf("identity\n");
  CHECK(TRITONSERVER_InferenceRequestNew(&request, server, "identity", -1));
  CHECK(TRITONSERVER_InferenceRequestSetId(request, "first"));
  add_input(request, "INPUT0", TRITONSERVER_TYPE_FP32, values, 3);
  infer(server, allocator, request);
  CHECK(TRITONSERVER_InferenceRequestDelete(request));
}

/* One request, a response for each element of IN. */
static void ask_repeat(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator) {
  static const int32_t values[] = {4, 5, 6};
  static const uint32_t delays_ms[] = {1, 1, 1}, wait_ms[] = {1};
  TRITONSERVER_InferenceRequest* request = NULL;
  printf("repeat\n");
  CHECK(TRITONSERVER_InferenceRequestNew(&request, server, "repeat", -1));
  add_input(request, "IN", TRITONSERVER_TYPE_INT32, values, 3);
  add_input(request, "DELAY", TRITONSERVER_TYPE_UINT32, delays_ms, 3);
  add_input(request, "WAIT", TRITONSERVER_TYPE_UINT32, wait_ms, 1);
  infer(server, allocator, request);
  CHECK(TRITONSERVER_InferenceRequestDelete(request));
}

static TRITONSERVER_Server* start(int repository_count, char** repositories) {
  TRITONSERVER_ServerOptions* options = NULL;
  TRITONSERVER_Server* server = NULL;
  CHECK(TRITONSERVER_ServerOptionsNew(&options));
  for (int at = 0; at < repository_count; ++at) {
    CHECK(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repositories[at]));
  }
  /* Only the models that are named here are loaded, whatever else the repositories hold. */
  CHECK(TRITONSERVER_ServerOptionsSetModelControlMode(options, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
  CHECK(TRITONSERVER_ServerOptionsSetStartupModel(options, "identity"));
  CHECK(TRITONSERVER_ServerOptionsSetLogInfo(options, false));
  CHECK(TRITONSERVER_ServerNew(&server, options));
  CHECK(TRITONSERVER_ServerOptionsDelete(options)); /* The server has read them. */
  return server;
}

static void wait_until_ready(TRITONSERVER_Server* server) {
  const struct timespec pause = {.tv_sec = 0, .tv_nsec = 10 * 1000 * 1000};
  bool is_live = false, is_ready = false;
  while (!is_live || !is_ready) {
    CHECK(TRITONSERVER_ServerIsLive(server, &is_live));
    CHECK(TRITONSERVER_ServerIsReady(server, &is_ready));
    if (!is_live || !is_ready) nanosleep(&pause, NULL);
  }
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s <model repository>...\n", argv[0]);
    return 2;
  }
  /* The header and the library may be of different versions: a library serves programs of its own major number and of
   * minor ones up to its own. */
  uint32_t major = 0, minor = 0;
  CHECK(TRITONSERVER_ApiVersion(&major, &minor));
  if (major != TRITONSERVER_API_VERSION_MAJOR || minor < TRITONSERVER_API_VERSION_MINOR) {
    fprintf(stderr, "the library has the interface %u.%u\n", major, minor);
    return 1;
  }

  TRITONSERVER_Server* server = start(argc - 1, argv + 1);
  wait_until_ready(server);
  CHECK(TRITONSERVER_ServerLoadModel(server, "repeat"));

  TRITONSERVER_Message* message = NULL;
  CHECK(TRITONSERVER_ServerMetadata(server, &message));
  print_message("server", message);
  CHECK(TRITONSERVER_ServerModelMetadata(server, "identity", -1, &message));
  print_message("model", message);

  TRITONSERVER_ResponseAllocator* allocator = NULL;
  CHECK(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  ask_identity(server, allocator);
  ask_repeat(server, allocator);
  CHECK(TRITONSERVER_ResponseAllocatorDelete(allocator));

  CHECK(TRITONSERVER_ServerModelStatistics(server, "identity", -1, &message));
  print_message("statistics", message);

  CHECK(TRITONSERVER_ServerStop(server));
  CHECK(TRITONSERVER_ServerDelete(server));
  printf("stopped\n");
  return 0;
}
