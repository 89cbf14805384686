/* What Triton's own programs do with the interface, in the order in which they do it: its Python binding, and the tests of
 * its core that are written in C++.
 *
 * Arguments: a repository, a directory for backends. */

#include "client.h"

/* A response that is an error. */
static TRITONSERVER_InferenceResponse* failed(TRITONSERVER_Server* server, Client* client) {
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  succeeds(TRITONSERVER_ResponseAllocatorNew(&allocator, client_alloc_nothing, client_free, NULL));
  client_infers(server, "fixed", allocator, client);
  expect(client->count == 1);
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
  return client->responses[0];
}

static void says_no_memory(TRITONSERVER_Error* error) {
  expect(error != NULL && TRITONSERVER_ErrorCode(error) == TRITONSERVER_ERROR_UNAVAILABLE);
  expect(strcmp(TRITONSERVER_ErrorMessage(error), "no memory today") == 0);
}

/* The error of a response: Triton's documentation lends it, its code gives it away, and its programs do all of this. */
static void errors_of_responses(TRITONSERVER_Server* server) {
  Client client;
  /* The binding asks, throws and deletes, as often as it is told to. */
  TRITONSERVER_InferenceResponse* response = failed(server, &client);
  for (int i = 0; i < 3; ++i) {
    TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(response);
    says_no_memory(error);
    TRITONSERVER_ErrorDelete(error);
  }
  succeeds(TRITONSERVER_InferenceResponseDelete(response));

  /* Several at a time, each of which is deleted. */
  response = failed(server, &client);
  TRITONSERVER_Error* first = TRITONSERVER_InferenceResponseError(response);
  TRITONSERVER_Error* second = TRITONSERVER_InferenceResponseError(response);
  says_no_memory(first);
  TRITONSERVER_ErrorDelete(first);
  says_no_memory(second);
  TRITONSERVER_ErrorDelete(second);
  says_no_memory(TRITONSERVER_InferenceResponseError(response));
  succeeds(TRITONSERVER_InferenceResponseDelete(response));

  /* Never deleted, as the documentation says. */
  response = failed(server, &client);
  for (int i = 0; i < 3; ++i) says_no_memory(TRITONSERVER_InferenceResponseError(response));
  succeeds(TRITONSERVER_InferenceResponseDelete(response));

  /* Read when the response is gone, and then deleted, or not. */
  for (int deletes = 0; deletes <= 1; ++deletes) {
    response = failed(server, &client);
    TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(response);
    succeeds(TRITONSERVER_InferenceResponseDelete(response));
    says_no_memory(error);
    if (deletes) TRITONSERVER_ErrorDelete(error);
  }
}

/* A response that was delivered, under its name in the backend's interface. */
static void responses_are_one_object(TRITONSERVER_Server* server) {
  TRITONSERVER_ResponseAllocator* allocator = client_allocator();
  Client client;
  client_infers(server, "fixed", allocator, &client);
  TRITONBACKEND_Response* response = (TRITONBACKEND_Response*)client.responses[0];
  const char* name = NULL;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = NULL;
  uint64_t dims = 0;
  succeeds(TRITONBACKEND_InferenceResponseOutput(response, 0, &name, &datatype, &shape, &dims));
  expect(strcmp(name, "OUTPUT0") == 0 && datatype == TRITONSERVER_TYPE_INT32 && dims == 1 && shape[0] == 4);
  fails(TRITONBACKEND_InferenceResponseOutput(response, 1, &name, &datatype, &shape, &dims),
        TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index 1: response has 1 outputs");
  shape = NULL;
  succeeds(TRITONBACKEND_InferenceResponseOutputByName(response, "OUTPUT0", &datatype, &shape, &dims));
  expect(dims == 1 && shape[0] == 4);
  fails(TRITONBACKEND_InferenceResponseOutputByName(response, "OTHER", &datatype, &shape, &dims),
        TRITONSERVER_ERROR_NOT_FOUND, NULL);
  uint32_t before = 0, parameters = 0;
  succeeds(TRITONSERVER_InferenceResponseParameterCount(client.responses[0], &before));
  succeeds(TRITONBACKEND_ResponseSetIntParameter(response, "added", 7));
  succeeds(TRITONSERVER_InferenceResponseParameterCount(client.responses[0], &parameters));
  expect(parameters == before + 1);
  TRITONBACKEND_Output* output = NULL;
  fails(TRITONBACKEND_ResponseOutput(response, &output, "MORE", TRITONSERVER_TYPE_INT32, shape, 1),
        TRITONSERVER_ERROR_INVALID_ARG, "the response was sent: it can be read and deleted, and nothing else");
  fails(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL),
        TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONBACKEND_ResponseDelete(response));
  expect(client.frees == 1);
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

/* A request that was not sent, read as a backend reads its own. */
static void requests_are_one_object(TRITONSERVER_Server* server) {
  TRITONSERVER_ResponseAllocator* allocator = client_allocator();
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, "fixed", allocator, &client);
  TRITONBACKEND_Request* cast = (TRITONBACKEND_Request*)request;
  client_input(request, "INPUT0", client_numbers, 4, false);
  succeeds(TRITONSERVER_InferenceRequestSetId(request, "cast"));
  succeeds(TRITONSERVER_InferenceRequestSetStringParameter(request, "key", "value"));
  const char* text = NULL;
  uint32_t count = 0;
  succeeds(TRITONBACKEND_RequestId(cast, &text));
  expect(strcmp(text, "cast") == 0);
  succeeds(TRITONBACKEND_RequestParameterCount(cast, &count));
  expect(count == 1);
  succeeds(TRITONBACKEND_RequestInputCount(cast, &count));
  expect(count == 1);
  TRITONBACKEND_Input* input = NULL;
  succeeds(TRITONBACKEND_RequestInput(cast, "INPUT0", &input));
  const void* buffer = NULL;
  uint64_t byte_size = 0;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  succeeds(TRITONBACKEND_InputBuffer(input, 0, &buffer, &byte_size, &memory_type, &memory_type_id));
  expect(buffer == (const void*)client_numbers && byte_size == sizeof(client_numbers));
  fails(TRITONBACKEND_RequestInput(cast, "OTHER", &input), TRITONSERVER_ERROR_INVALID_ARG,
        "[request id: cast] unknown request input name OTHER");
  expect(input == NULL);
  fails(TRITONBACKEND_RequestOutputBufferProperties(cast, "OUTPUT0", NULL, &memory_type, &memory_type_id),
        TRITONSERVER_ERROR_UNAVAILABLE, "[request id: cast] Output properties are not available");
  /* What is edited is seen. */
  succeeds(TRITONSERVER_InferenceRequestSetId(request, "edited"));
  succeeds(TRITONBACKEND_RequestId(cast, &text));
  expect(strcmp(text, "edited") == 0);
  TRITONBACKEND_ResponseFactory* factory = NULL;
  fails(TRITONBACKEND_ResponseFactoryNew(&factory, cast), TRITONSERVER_ERROR_INTERNAL, NULL);
  bool is_cancelled = true;
  fails(TRITONBACKEND_RequestIsCancelled(cast, &is_cancelled), TRITONSERVER_ERROR_INTERNAL, NULL);
  /* A release tells the application, as in Triton. */
  succeeds(TRITONBACKEND_RequestRelease(cast, TRITONSERVER_REQUEST_RELEASE_ALL));
  expect(client.releases == 1);
  fails(TRITONBACKEND_RequestRelease(cast, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE), TRITONSERVER_ERROR_INVALID_ARG,
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to "
        "handle such a flag.");
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

/* What is cancelled after it was sent: the request says so under both names, and so does a factory made from it. */
static void cancellation_is_seen_by_all(TRITONSERVER_Server* server) {
  TRITONSERVER_ResponseAllocator* allocator = client_allocator();
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, "slow", allocator, &client);
  TRITONBACKEND_Request* cast = (TRITONBACKEND_Request*)request;
  client_input(request, "INPUT0", client_numbers, 4, true);
  for (int cancels = 0; cancels <= 1; ++cancels) {
    check_within(CLIENT_SLOW_MS);
    succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
    if (cancels) succeeds(TRITONSERVER_InferenceRequestCancel(request));
    TRITONBACKEND_ResponseFactory* factory = NULL;
    succeeds(TRITONBACKEND_ResponseFactoryNew(&factory, cast));
    bool is_cancelled = !cancels;
    succeeds(TRITONSERVER_InferenceRequestIsCancelled(request, &is_cancelled));
    expect(is_cancelled == (cancels == 1));
    is_cancelled = !cancels;
    succeeds(TRITONBACKEND_RequestIsCancelled(cast, &is_cancelled));
    expect(is_cancelled == (cancels == 1));
    is_cancelled = !cancels;
    succeeds(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &is_cancelled));
    expect(is_cancelled == (cancels == 1));
    /* All outputs are wanted where none is named. */
    uint32_t outputs = 0;
    succeeds(TRITONBACKEND_RequestOutputCount(cast, &outputs));
    expect(outputs == 1);
    check_at_leisure();
    client_finish(&client);
    succeeds(TRITONBACKEND_ResponseFactoryDelete(factory));
    expect(client.count == 1);
    client_clear(&client);
  }
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

/* Where the memory of an output was preferred. */
static TRITONSERVER_MemoryType preferred_type;
static int64_t preferred_id;

static TRITONSERVER_Error* alloc_on_host(
    TRITONSERVER_ResponseAllocator* allocator, const char* tensor_name, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void* userp, void** buffer, void** buffer_userp,
    TRITONSERVER_MemoryType* actual_memory_type, int64_t* actual_memory_type_id) {
  preferred_type = memory_type;
  preferred_id = memory_type_id;
  return client_alloc(
      allocator, tensor_name, byte_size, TRITONSERVER_MEMORY_CPU, 0, userp, buffer, buffer_userp, actual_memory_type,
      actual_memory_type_id);
}

/* An answer that the application itself sends to a request of its own: the model's comes too late. The allocator hears
 * what is preferred, be it possible here or not, and decides. */
static void a_cast_request_can_be_answered(TRITONSERVER_Server* server) {
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  succeeds(TRITONSERVER_ResponseAllocatorNew(&allocator, alloc_on_host, client_free, client_start));
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, "slow", allocator, &client);
  client_input(request, "INPUT0", client_numbers, 4, true);
  succeeds(TRITONSERVER_InferenceRequestSetId(request, "own"));
  check_within(CLIENT_SLOW_MS);
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
  TRITONBACKEND_Response* made = NULL;
  succeeds(TRITONBACKEND_ResponseNew(&made, (TRITONBACKEND_Request*)request));
  TRITONBACKEND_Output* output = NULL;
  const int64_t shape[2] = {1, 4};
  succeeds(TRITONBACKEND_ResponseOutput(made, &output, "OUTPUT0", TRITONSERVER_TYPE_INT32, shape, 2));
  void* buffer = NULL;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_GPU;
  int64_t memory_type_id = 3;
  succeeds(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof(client_numbers), &memory_type, &memory_type_id));
  expect(preferred_type == TRITONSERVER_MEMORY_GPU && preferred_id == 3);
  expect(memory_type == TRITONSERVER_MEMORY_CPU && memory_type_id == 0);
  memcpy(buffer, client_numbers, sizeof(client_numbers));
  /* Under its name in the server's interface, before it is sent. */
  TRITONSERVER_InferenceResponse* seen = (TRITONSERVER_InferenceResponse*)made;
  const char* text = NULL;
  uint32_t count = 0;
  succeeds(TRITONSERVER_InferenceResponseId(seen, &text));
  expect(strcmp(text, "own") == 0 && TRITONSERVER_InferenceResponseError(seen) == NULL);
  succeeds(TRITONSERVER_InferenceResponseOutputCount(seen, &count));
  expect(count == 1);
  const void* base = NULL;
  size_t byte_size = 0;
  succeeds(TRITONSERVER_InferenceResponseOutput(
      seen, 0, &text, NULL, NULL, NULL, &base, &byte_size, NULL, NULL, NULL));
  expect(strcmp(text, "OUTPUT0") == 0 && base == buffer && byte_size == sizeof(client_numbers));
  succeeds(TRITONBACKEND_ResponseSend(made, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
  check_at_leisure();
  client_finish(&client);
  expect(client.count == 1);
  const int32_t* values = client_values(client.responses[0], 0, "OUTPUT0", 4);
  expect(memcmp(values, client_numbers, sizeof(client_numbers)) == 0);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

/* A level that the model does not have becomes the default one as soon as it is set. */
static void priorities_are_those_of_the_model(TRITONSERVER_Server* server) {
  TRITONSERVER_InferenceRequest* request = NULL;
  succeeds(TRITONSERVER_InferenceRequestNew(&request, server, "levels", -1));
  uint32_t narrow = 0;
  uint64_t wide = 0;
  succeeds(TRITONSERVER_InferenceRequestPriority(request, &narrow));
  expect(narrow == 10);
  succeeds(TRITONSERVER_InferenceRequestSetPriority(request, 19));
  succeeds(TRITONSERVER_InferenceRequestPriority(request, &narrow));
  expect(narrow == 19);
  succeeds(TRITONSERVER_InferenceRequestSetPriorityUInt64(request, 67));
  succeeds(TRITONSERVER_InferenceRequestPriorityUInt64(request, &wide));
  expect(wide == 10);
  succeeds(TRITONSERVER_InferenceRequestSetPriorityUInt64(request, 20));
  succeeds(TRITONSERVER_InferenceRequestSetPriority(request, 0));
  succeeds(TRITONSERVER_InferenceRequestPriorityUInt64(request, &wide));
  expect(wide == 10);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  /* A level that the old getter has no room for. */
  succeeds(TRITONSERVER_InferenceRequestNew(&request, server, "many_levels", -1));
  succeeds(TRITONSERVER_InferenceRequestSetPriorityUInt64(request, UINT64_C(4294967296)));
  succeeds(TRITONSERVER_InferenceRequestPriorityUInt64(request, &wide));
  expect(wide == UINT64_C(4294967296));
  fails(TRITONSERVER_InferenceRequestPriority(request, &narrow), TRITONSERVER_ERROR_INVALID_ARG,
        "request priority overflows uint32_t, use TRITONSERVER_InferenceRequestPriorityUInt64, priority=4294967296");
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

/* What is wrong with the tensors is said before what is missing beside them. */
static void tensors_are_checked_first(TRITONSERVER_Server* server) {
  TRITONSERVER_InferenceRequest* request = NULL;
  succeeds(TRITONSERVER_InferenceRequestNew(&request, server, "fixed", -1));
  client_input(request, "INPUT0", client_numbers, 3, false);
  TRITONSERVER_Error* error = TRITONSERVER_ServerInferAsync(server, request, NULL);
  expect(error != NULL && strstr(TRITONSERVER_ErrorMessage(error), "unexpected shape for input 'INPUT0'") != NULL);
  TRITONSERVER_ErrorDelete(error);
  succeeds(TRITONSERVER_InferenceRequestRemoveAllInputs(request));
  client_input(request, "INPUT0", client_numbers, 4, false);
  fails(TRITONSERVER_ServerInferAsync(server, request, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "[request id: <id_unknown>] the request has no response callback");
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

int main(int argc, char** argv) {
  expect(argc == 3);
  TRITONSERVER_Server* server = client_server(argv[1], argv[2]);
  errors_of_responses(server);
  responses_are_one_object(server);
  requests_are_one_object(server);
  cancellation_is_seen_by_all(server);
  a_cast_request_can_be_answered(server);
  priorities_are_those_of_the_model(server);
  tensors_are_checked_first(server);
  client_end(server);
  return 0;
}
