/* A backend that calls other models of the same server: the inputs of a request go to the model that its parameter
 * "model" names, and that model's outputs become the answer.
 *
 * What it shows: requests from within the server, with an allocator of our own for what they answer; many of them at
 * the same time; waiting for both of their ends, the last response and the release; cancellation that is handed on;
 * traces with children; parameters.
 *
 * An execution waits for the models that it calls. A model that calls itself, directly or through others, waits for an
 * instance that waits for it: give such models more instances than calls can be nested. */

#include "../backend.h"

/* How often a wait looks whether the client is still interested. */
#define LOOK_MS 10

/* Of a model version. */
typedef struct {
  int64_t max_batch_size;
  TRITONSERVER_Server* server;
  /* Serves all requests at the same time: its functions keep nothing. */
  TRITONSERVER_ResponseAllocator* allocator;
} Model;

/* One request to another model. The server's threads write to it, under the lock, and the instance waits. */
typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  /* Both must be true before anything that the request borrowed may go: its inputs are ours. */
  bool is_answered, is_released;
  uint32_t responses;
  /* The first one; others make the call fail. */
  TRITONSERVER_InferenceResponse* response;
  TRITONSERVER_InferenceRequest* request;
} Call;

/* Memory for one output of a response. */
static TRITONSERVER_Error* allocate(TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t bytes,
    TRITONSERVER_MemoryType preferred, int64_t preferred_id, void* user, void** buffer, void** buffer_user,
    TRITONSERVER_MemoryType* type, int64_t* id) {
  (void)allocator, (void)name, (void)preferred, (void)preferred_id, (void)user;
  *buffer_user = NULL;
  *type = TRITONSERVER_MEMORY_CPU;
  *id = 0;
  *buffer = bytes == 0 ? NULL : malloc(bytes);
  return bytes > 0 && *buffer == NULL ? no_memory() : NULL;
}

static TRITONSERVER_Error* give_back(TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_user,
    size_t bytes, TRITONSERVER_MemoryType type, int64_t id) {
  (void)allocator, (void)buffer_user, (void)bytes, (void)type, (void)id;
  free(buffer);
  return NULL;
}

/* Called by the server with every response; with none where a decoupled model only ends. */
static void on_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* user) {
  Call* call = user;
  TRITONSERVER_InferenceResponse* spare = NULL;
  pthread_mutex_lock(&call->lock);
  if (response != NULL) {
    call->responses++;
    if (call->response == NULL) call->response = response;
    else spare = response;
  }
  if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) call->is_answered = true;
  pthread_cond_signal(&call->changed);
  /* Behind this line the call may be gone. */
  pthread_mutex_unlock(&call->lock);
  if (spare != NULL) TELL(TRITONSERVER_InferenceResponseDelete(spare));
}

/* Called by the server when it gives the request back. It is deleted by who waits, who may be about to cancel it. */
static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* user) {
  (void)request;
  Call* call = user;
  if (!(flags & TRITONSERVER_REQUEST_RELEASE_ALL)) return;
  pthread_mutex_lock(&call->lock);
  call->is_released = true;
  pthread_cond_signal(&call->changed);
  pthread_mutex_unlock(&call->lock);
}

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  const char* name;
  TRY(TRITONBACKEND_BackendName(backend, &name));
  return check_version(name);
}

TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes) {
  (void)backend;
  TRY(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 1, NULL, 0));
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  Model* made = calloc(1, sizeof *made);
  if (made == NULL) return no_memory();
  TRITONSERVER_Error* error = max_batch_size_of(model, &made->max_batch_size);
  if (error == NULL) error = TRITONBACKEND_ModelServer(model, &made->server);
  if (error == NULL) error = TRITONSERVER_ResponseAllocatorNew(&made->allocator, allocate, give_back, NULL);
  if (error != NULL) {
    free(made);
    return error;
  }
  error = TRITONBACKEND_ModelSetState(model, made);
  if (error != NULL) {
    TELL(TRITONSERVER_ResponseAllocatorDelete(made->allocator));
    free(made);
  }
  return error;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  void* state;
  TRY(TRITONBACKEND_ModelState(model, &state));
  /* Triton finalises what failed to initialise, too. */
  if (state == NULL) return NULL;
  Model* made = state;
  TELL(TRITONSERVER_ResponseAllocatorDelete(made->allocator));
  free(made);
  return NULL;
}

/* The model that a request wants to be called. */
static TRITONSERVER_Error* target_of(TRITONBACKEND_Request* request, const char** name) {
  uint32_t parameters;
  TRY(TRITONBACKEND_RequestParameterCount(request, &parameters));
  for (uint32_t index = 0; index < parameters; index++) {
    const char* key;
    TRITONSERVER_ParameterType type;
    const void* value;
    TRY(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    if (strcmp(key, "model") != 0) continue;
    if (type == TRITONSERVER_PARAMETER_STRING) {
      *name = value;
      return NULL;
    }
    return failure(TRITONSERVER_ERROR_INVALID_ARG, "parameter 'model' is %s and must be STRING",
        TRITONSERVER_ParameterTypeString(type));
  }
  return failure(TRITONSERVER_ERROR_INVALID_ARG, "the request has no parameter 'model'");
}

/* Passes one input on. The bytes are borrowed: our own request keeps them, and is not given back before the call is. */
static TRITONSERVER_Error* pass_input(TRITONBACKEND_Request* from, uint32_t index, TRITONSERVER_InferenceRequest* to) {
  TRITONBACKEND_Input* input;
  Tensor tensor;
  TRY(TRITONBACKEND_RequestInputByIndex(from, index, &input));
  TRY(describe(input, &tensor));
  TRY(TRITONSERVER_InferenceRequestAddInput(to, tensor.name, tensor.datatype, tensor.shape, tensor.rank));
  for (uint32_t piece = 0; piece < tensor.buffers; piece++) {
    const void* buffer;
    uint64_t bytes;
    TRY(piece_of(&tensor, piece, &buffer, &bytes));
    TRY(TRITONSERVER_InferenceRequestAppendInputData(to, tensor.name, buffer, bytes, TRITONSERVER_MEMORY_CPU, 0));
  }
  return NULL;
}

static TRITONSERVER_Error* fill(const Model* model, Turn* turn, Call* call) {
  const char* id;
  uint32_t inputs, outputs;
  uint64_t timeout_us;
  TRY(TRITONBACKEND_RequestId(turn->request, &id));
  TRY(TRITONSERVER_InferenceRequestSetId(call->request, id));
  TRY(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(turn->request, &timeout_us));
  TRY(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(call->request, timeout_us));
  TRY(TRITONBACKEND_RequestInputCount(turn->request, &inputs));
  for (uint32_t index = 0; index < inputs; index++) TRY(pass_input(turn->request, index, call->request));
  TRY(TRITONBACKEND_RequestOutputCount(turn->request, &outputs));
  for (uint32_t index = 0; index < outputs; index++) {
    const char* name;
    TRY(TRITONBACKEND_RequestOutputName(turn->request, index, &name));
    TRY(TRITONSERVER_InferenceRequestAddRequestedOutput(call->request, name));
  }
  TRY(TRITONSERVER_InferenceRequestSetReleaseCallback(call->request, on_release, call));
  return TRITONSERVER_InferenceRequestSetResponseCallback(call->request, model->allocator, NULL, on_response, call);
}

/* What is traced of our request shows the call as its child. No trace is no error. */
static TRITONSERVER_InferenceTrace* child_trace(TRITONBACKEND_Request* request) {
  TRITONSERVER_InferenceTrace *trace = NULL, *child = NULL;
  TRITONSERVER_Error* error = TRITONBACKEND_RequestTrace(request, &trace);
  if (error == NULL && trace != NULL) error = TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child);
  TELL(error);
  return error == NULL ? child : NULL;
}

/* Makes the request and sends it off. After success the call has to be waited for. */
static TRITONSERVER_Error* begin(const Model* model, Turn* turn, Call* call) {
  const char* name = NULL;
  TRY(target_of(turn->request, &name));
  TRY(count_rows(turn, model->max_batch_size));
  TRY(TRITONSERVER_InferenceRequestNew(&call->request, model->server, name, -1));
  TRITONSERVER_Error* error = fill(model, turn, call);
  if (error == NULL) error = TRITONSERVER_ServerInferAsync(model->server, call->request, child_trace(turn->request));
  if (error == NULL) return NULL;
  /* What was not taken is still ours. */
  TELL(TRITONSERVER_InferenceRequestDelete(call->request));
  call->request = NULL;
  return error;
}

/* Waits until the other model has done with it, and hands the client's cancellation on. */
static void wait_for(Turn* turn, Call* call) {
  bool is_cancelled = false;
  pthread_mutex_lock(&call->lock);
  while (!call->is_answered || !call->is_released) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    if (pthread_cond_timedwait(&call->changed, &call->lock, &until) != ETIMEDOUT || is_cancelled) continue;
    /* Without the lock: cancelling may answer, and answering takes it. */
    pthread_mutex_unlock(&call->lock);
    TELL(TRITONBACKEND_RequestIsCancelled(turn->request, &is_cancelled));
    if (is_cancelled) TELL(TRITONSERVER_InferenceRequestCancel(call->request));
    pthread_mutex_lock(&call->lock);
  }
  pthread_mutex_unlock(&call->lock);
}

static TRITONSERVER_Error* pass_output(TRITONSERVER_InferenceResponse* from, uint32_t index, Turn* turn) {
  const char* name;
  TRITONSERVER_DataType datatype;
  const int64_t* shape;
  uint64_t rank;
  const void* base;
  size_t bytes;
  TRITONSERVER_MemoryType type;
  int64_t id;
  void *user, *buffer;
  TRY(TRITONSERVER_InferenceResponseOutput(
      from, index, &name, &datatype, &shape, &rank, &base, &bytes, &type, &id, &user));
  TRY(new_output(turn->response, name, datatype, shape, (uint32_t)rank, bytes, &buffer));
  /* Our allocator gave memory of the host. */
  if (bytes > 0) memcpy(buffer, base, bytes);
  return NULL;
}

/* Makes the answer of what the other model answered. */
static TRITONSERVER_Error* pass_response(Turn* turn, const Call* call) {
  if (call->responses != 1) {
    return failure(TRITONSERVER_ERROR_INTERNAL, "the called model sent %" PRIu32 " responses instead of one",
        call->responses);
  }
  /* Borrowed: it lives with the response. */
  TRITONSERVER_Error* theirs = TRITONSERVER_InferenceResponseError(call->response);
  if (theirs != NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ErrorCode(theirs), TRITONSERVER_ErrorMessage(theirs));
  uint32_t outputs;
  TRY(TRITONSERVER_InferenceResponseOutputCount(call->response, &outputs));
  for (uint32_t index = 0; index < outputs; index++) TRY(pass_output(call->response, index, turn));
  return NULL;
}

/* What begins with `begin` and succeeds there ends here. */
static void end(Turn* turn, Call* call) {
  wait_for(turn, call);
  turn->error = pass_response(turn, call);
  if (call->response != NULL) TELL(TRITONSERVER_InferenceResponseDelete(call->response));
  TELL(TRITONSERVER_InferenceRequestDelete(call->request));
}

static void open_call(Call* call) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_mutex_init(&call->lock, NULL);
  pthread_cond_init(&call->changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

static void close_call(Call* call) {
  pthread_cond_destroy(&call->changed);
  pthread_mutex_destroy(&call->lock);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  TRITONBACKEND_Model* model;
  void* state;
  Times times = {.exec_start_ns = now_ns()};
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  Call* calls = calloc(count == 0 ? 1 : count, sizeof *calls);
  if (calls == NULL) return no_memory();
  Turn* turns = turns_of(requests, count);
  if (turns == NULL) {
    free(calls);
    return no_memory();
  }
  times.compute_start_ns = now_ns();
  /* All calls go out before the first is waited for: the other model may make a batch of them. */
  for (uint32_t index = 0; index < count; index++) {
    open_call(&calls[index]);
    if (turns[index].error == NULL) turns[index].error = begin(state, &turns[index], &calls[index]);
  }
  for (uint32_t index = 0; index < count; index++) {
    if (calls[index].request != NULL) end(&turns[index], &calls[index]);
    close_call(&calls[index]);
  }
  times.compute_end_ns = now_ns();
  free(calls);
  finish(instance, turns, count, &times);
  return NULL;
}
