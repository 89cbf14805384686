/* Requests and responses, function by function.
 *
 * Arguments: a repository, a directory for backends. */

#include "client.h"

#define NO_REQUEST "inference_request must not be NULL"

static TRITONSERVER_ResponseAllocator* allocator;

static void describes_itself(TRITONSERVER_Server* server) {
  TRITONSERVER_InferenceRequest* request = NULL;
  fails(TRITONSERVER_InferenceRequestNew(&request, NULL, "echo", -1), TRITONSERVER_ERROR_INVALID_ARG,
        "server must not be NULL");
  fails(TRITONSERVER_InferenceRequestNew(&request, server, NULL, -1), TRITONSERVER_ERROR_INVALID_ARG,
        "model_name must not be NULL");
  fails(TRITONSERVER_InferenceRequestNew(NULL, server, "echo", -1), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_InferenceRequestNew(&request, server, "nosuch", -1), TRITONSERVER_ERROR_NOT_FOUND,
        "Request for unknown model: 'nosuch' is not found");
  fails(TRITONSERVER_InferenceRequestNew(&request, server, "echo", 7), TRITONSERVER_ERROR_NOT_FOUND,
        "Request for unknown model: 'echo' version 7 is not found");
  expect(request == NULL);
  succeeds(TRITONSERVER_InferenceRequestNew(&request, server, "echo", 1));

  const char* text = NULL;
  succeeds(TRITONSERVER_InferenceRequestId(request, &text));
  expect(strcmp(text, "") == 0);
  succeeds(TRITONSERVER_InferenceRequestSetId(request, "first"));
  succeeds(TRITONSERVER_InferenceRequestId(request, &text));
  expect(strcmp(text, "first") == 0);
  fails(TRITONSERVER_InferenceRequestSetId(request, NULL), TRITONSERVER_ERROR_INVALID_ARG, "id must not be NULL");
  fails(TRITONSERVER_InferenceRequestId(NULL, &text), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);

  uint32_t flags = 9;
  succeeds(TRITONSERVER_InferenceRequestFlags(request, &flags));
  expect(flags == 0);
  succeeds(TRITONSERVER_InferenceRequestSetFlags(request, TRITONSERVER_REQUEST_FLAG_SEQUENCE_START));
  succeeds(TRITONSERVER_InferenceRequestFlags(request, &flags));
  expect(flags == TRITONSERVER_REQUEST_FLAG_SEQUENCE_START);
  fails(TRITONSERVER_InferenceRequestSetFlags(request, 4), TRITONSERVER_ERROR_INVALID_ARG,
        "[request id: first] unknown request flags 4");
  fails(TRITONSERVER_InferenceRequestFlags(NULL, &flags), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);

  uint64_t number = 9;
  succeeds(TRITONSERVER_InferenceRequestCorrelationId(request, &number));
  expect(number == 0);
  fails(TRITONSERVER_InferenceRequestCorrelationIdString(request, &text), TRITONSERVER_ERROR_INVALID_ARG,
        "given request's correlation id is not a string");
  succeeds(TRITONSERVER_InferenceRequestSetCorrelationId(request, 42));
  succeeds(TRITONSERVER_InferenceRequestCorrelationId(request, &number));
  expect(number == 42);
  succeeds(TRITONSERVER_InferenceRequestSetCorrelationIdString(request, "sequence"));
  succeeds(TRITONSERVER_InferenceRequestCorrelationIdString(request, &text));
  expect(strcmp(text, "sequence") == 0);
  fails(TRITONSERVER_InferenceRequestCorrelationId(request, &number), TRITONSERVER_ERROR_INVALID_ARG,
        "given request's correlation id is not an unsigned int");
  fails(TRITONSERVER_InferenceRequestSetCorrelationId(NULL, 1), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);
  char long_id[130];
  memset(long_id, 'x', 129);
  long_id[129] = 0;
  fails(TRITONSERVER_InferenceRequestSetCorrelationIdString(request, long_id), TRITONSERVER_ERROR_UNSUPPORTED,
        "string correlation ID cannot be longer than 128 characters");

  uint32_t priority = 9;
  succeeds(TRITONSERVER_InferenceRequestSetPriority(request, 3));
  succeeds(TRITONSERVER_InferenceRequestPriority(request, &priority));
  /* The model has no levels. */
  expect(priority == 0);
  succeeds(TRITONSERVER_InferenceRequestSetPriorityUInt64(request, UINT64_MAX));
  succeeds(TRITONSERVER_InferenceRequestPriorityUInt64(request, &number));
  expect(number == 0);
  fails(TRITONSERVER_InferenceRequestSetPriority(NULL, 1), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);
  fails(TRITONSERVER_InferenceRequestPriority(request, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_InferenceRequestSetPriorityUInt64(NULL, 1), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);
  fails(TRITONSERVER_InferenceRequestPriorityUInt64(NULL, &number), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);

  succeeds(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, 5));
  succeeds(TRITONSERVER_InferenceRequestTimeoutMicroseconds(request, &number));
  expect(number == 5);
  fails(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(NULL, 5), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);
  fails(TRITONSERVER_InferenceRequestTimeoutMicroseconds(NULL, &number), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);

  bool is = false;
  fails(TRITONSERVER_InferenceRequestCancel(request), TRITONSERVER_ERROR_INTERNAL,
        "It is not possible to cancel an inference request before calling TRITONSERVER_InferAsync.");
  fails(TRITONSERVER_InferenceRequestIsCancelled(request, &is), TRITONSERVER_ERROR_INTERNAL,
        "It is not possible to query cancellation status before calling TRITONSERVER_InferAsync.");

  succeeds(TRITONSERVER_InferenceRequestSetStringParameter(request, "s", "text"));
  succeeds(TRITONSERVER_InferenceRequestSetIntParameter(request, "i", -3));
  succeeds(TRITONSERVER_InferenceRequestSetBoolParameter(request, "b", true));
  succeeds(TRITONSERVER_InferenceRequestSetDoubleParameter(request, "d", 0.5));
  fails(TRITONSERVER_InferenceRequestSetStringParameter(request, "s", NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "value must not be NULL");
  fails(TRITONSERVER_InferenceRequestSetIntParameter(request, NULL, 1), TRITONSERVER_ERROR_INVALID_ARG,
        "key must not be NULL");
  fails(TRITONSERVER_InferenceRequestSetBoolParameter(NULL, "b", true), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);
  fails(TRITONSERVER_InferenceRequestSetDoubleParameter(NULL, "d", 1), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);

  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  fails(TRITONSERVER_InferenceRequestDelete(NULL), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);
}

static void inputs_and_outputs(TRITONSERVER_Server* server) {
  TRITONSERVER_InferenceRequest* request = NULL;
  succeeds(TRITONSERVER_InferenceRequestNew(&request, server, "echo", -1));
  const int64_t shape[2] = {1, 2};
  const int32_t values[2] = {4, 5};
  fails(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", 99, shape, 2), TRITONSERVER_ERROR_INVALID_ARG,
        "[request id: <id_unknown>] unknown data type 99 for input 'INPUT0'");
  fails(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, NULL, 2),
        TRITONSERVER_ERROR_INVALID_ARG, "shape must not be NULL");
  fails(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, shape, UINT64_MAX),
        TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, shape, 2));
  fails(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, shape, 2),
        TRITONSERVER_ERROR_INVALID_ARG, "[request id: <id_unknown>] input 'INPUT0' already exists in request");
  fails(TRITONSERVER_InferenceRequestAddRawInput(request, "OTHER"), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONSERVER_InferenceRequestRemoveInput(request, "INPUT0"));
  fails(TRITONSERVER_InferenceRequestRemoveInput(request, "INPUT0"), TRITONSERVER_ERROR_INVALID_ARG,
        "[request id: <id_unknown>] input 'INPUT0' does not exist in request");
  succeeds(TRITONSERVER_InferenceRequestAddRawInput(request, "INPUT0"));
  succeeds(TRITONSERVER_InferenceRequestRemoveAllInputs(request));
  fails(TRITONSERVER_InferenceRequestRemoveAllInputs(NULL), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, shape, 2));

  succeeds(TRITONSERVER_InferenceRequestAppendInputData(
      request, "INPUT0", values, sizeof(values), TRITONSERVER_MEMORY_CPU, 0));
  fails(TRITONSERVER_InferenceRequestAppendInputData(request, "NONE", values, 4, TRITONSERVER_MEMORY_CPU, 0),
        TRITONSERVER_ERROR_INVALID_ARG, "[request id: <id_unknown>] input 'NONE' does not exist in request");
  fails(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", NULL, 4, TRITONSERVER_MEMORY_CPU, 0),
        TRITONSERVER_ERROR_INVALID_ARG, "base must not be NULL");
  fails(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", values, 4, TRITONSERVER_MEMORY_GPU, 0),
        TRITONSERVER_ERROR_UNSUPPORTED, "input data in GPU memory is not supported by this build");
  fails(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", values, 4, 9, 0),
        TRITONSERVER_ERROR_INVALID_ARG, "unknown memory type 9");
  succeeds(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
      request, "INPUT0", values, 4, TRITONSERVER_MEMORY_CPU, 0, "cpu"));
  succeeds(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
      request, "INPUT0", values + 1, 4, TRITONSERVER_MEMORY_CPU_PINNED, 0, "cpu"));
  fails(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
            request, "INPUT0", values, 4, TRITONSERVER_MEMORY_CPU, 0, NULL),
        TRITONSERVER_ERROR_INVALID_ARG, "host_policy_name must not be NULL");
  TRITONSERVER_BufferAttributes* attributes = NULL;
  succeeds(TRITONSERVER_BufferAttributesNew(&attributes));
  succeeds(TRITONSERVER_BufferAttributesSetByteSize(attributes, 4));
  succeeds(TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(request, "INPUT0", values, attributes));
  fails(TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(request, "INPUT0", values, NULL),
        TRITONSERVER_ERROR_INVALID_ARG, "buffer_attributes must not be NULL");
  succeeds(TRITONSERVER_BufferAttributesDelete(attributes));
  succeeds(TRITONSERVER_InferenceRequestRemoveAllInputData(request, "INPUT0"));
  fails(TRITONSERVER_InferenceRequestRemoveAllInputData(request, "NONE"), TRITONSERVER_ERROR_INVALID_ARG,
        "[request id: <id_unknown>] input 'NONE' does not exist in request");

  succeeds(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUTPUT0"));
  succeeds(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUTPUT0"));
  fails(TRITONSERVER_InferenceRequestAddRequestedOutput(request, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "name must not be NULL");
  succeeds(TRITONSERVER_InferenceRequestRemoveRequestedOutput(request, "OUTPUT0"));
  fails(TRITONSERVER_InferenceRequestRemoveRequestedOutput(NULL, "OUTPUT0"), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);
  succeeds(TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(request));
  fails(TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(NULL), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

static void is_sent_and_answered(TRITONSERVER_Server* server) {
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = NULL;
  succeeds(TRITONSERVER_InferenceRequestNew(&request, server, "echo", -1));
  const int32_t values[3] = {7, -8, 9};
  client_input(request, "INPUT0", values, 3, true);
  succeeds(TRITONSERVER_InferenceRequestSetId(request, "one"));

  fails(TRITONSERVER_ServerInferAsync(server, request, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "[request id: one] the request has no response callback");
  fails(TRITONSERVER_InferenceRequestSetResponseCallback(request, NULL, &client, client_complete, &client),
        TRITONSERVER_ERROR_INVALID_ARG, "response_allocator must not be NULL");
  fails(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, &client, NULL, &client),
        TRITONSERVER_ERROR_INVALID_ARG, "response_fn must not be NULL");
  succeeds(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, &client, client_complete, &client));
  fails(TRITONSERVER_ServerInferAsync(server, request, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "[request id: one] the request has no release callback");
  fails(TRITONSERVER_InferenceRequestSetReleaseCallback(request, NULL, &client), TRITONSERVER_ERROR_INVALID_ARG,
        "request_release_fn must not be NULL");
  succeeds(TRITONSERVER_InferenceRequestSetReleaseCallback(request, client_release, &client));
  fails(TRITONSERVER_ServerInferAsync(NULL, request, NULL), TRITONSERVER_ERROR_INVALID_ARG, "server must not be NULL");
  fails(TRITONSERVER_ServerInferAsync(server, NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, NO_REQUEST);

  /* The same object, time after time. */
  for (int round = 0; round < 3; ++round) {
    succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
    client_finish(&client);
    expect(client.count == 1 && client.nulls == 0 && client.starts == 1 && client.allocations == 1);
    bool is = true;
    succeeds(TRITONSERVER_InferenceRequestIsCancelled(request, &is));
    expect(!is);

    TRITONSERVER_InferenceResponse* response = client.responses[0];
    holds(TRITONSERVER_InferenceResponseError, TRITONSERVER_InferenceResponseError(response) == NULL);
    const int32_t* found = client_values(response, 0, "OUTPUT0", 3);
    expect(memcmp(found, values, sizeof(values)) == 0 && (const void*)found == client.last_buffer);
    const char* text = NULL;
    int64_t version = 0;
    succeeds(TRITONSERVER_InferenceResponseModel(response, &text, &version));
    expect(strcmp(text, "echo") == 0 && version == 1);
    succeeds(TRITONSERVER_InferenceResponseId(response, &text));
    expect(strcmp(text, "one") == 0);
    uint32_t count = 9;
    succeeds(TRITONSERVER_InferenceResponseOutputCount(response, &count));
    expect(count == 1);
    TRITONSERVER_DataType datatype;
    const int64_t* shape;
    uint64_t dims;
    const void* base;
    size_t byte_size;
    TRITONSERVER_MemoryType memory_type;
    int64_t memory_type_id;
    void* userp = NULL;
    succeeds(TRITONSERVER_InferenceResponseOutput(
        response, 0, &text, &datatype, &shape, &dims, &base, &byte_size, &memory_type, &memory_type_id, &userp));
    expect(datatype == TRITONSERVER_TYPE_INT32 && dims == 2 && shape[0] == 1 && shape[1] == 3 && userp == &client);
    fails(TRITONSERVER_InferenceResponseOutput(
              response, 1, &text, &datatype, &shape, &dims, &base, &byte_size, &memory_type, &memory_type_id, &userp),
          TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index 1: response has 1 outputs");
    const char* label = "";
    succeeds(TRITONSERVER_InferenceResponseOutputClassificationLabel(response, 0, 0, &label));
    expect(label == NULL);
    fails(TRITONSERVER_InferenceResponseOutputClassificationLabel(response, 7, 0, &label),
          TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index 7: response has 1 outputs");
    fails(TRITONSERVER_InferenceResponseModel(NULL, &text, &version), TRITONSERVER_ERROR_INVALID_ARG,
          "inference_response must not be NULL");
    fails(TRITONSERVER_InferenceResponseId(response, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
    fails(TRITONSERVER_InferenceResponseOutputCount(NULL, &count), TRITONSERVER_ERROR_INVALID_ARG,
          "inference_response must not be NULL");
    fails(TRITONSERVER_InferenceResponseError(NULL), TRITONSERVER_ERROR_INVALID_ARG,
          "inference_response must not be NULL");
    succeeds(TRITONSERVER_InferenceRequestCancel(request));
    succeeds(TRITONSERVER_InferenceRequestIsCancelled(request, &is));
    expect(is);
    int given = client.allocations;
    TRITONSERVER_InferenceResponse* deleted = client.responses[0];
    client.count = 0;
    succeeds(TRITONSERVER_InferenceResponseDelete(deleted));
    expect(client.frees == given);
    client_clear(&client);
  }
  fails(TRITONSERVER_InferenceResponseDelete(NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "inference_response must not be NULL");
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

/* The identity backend gives parameters back, and one of each kind of its own. */
static void parameters_come_back(TRITONSERVER_Server* server) {
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, "echo", allocator, &client);
  const int32_t value = 1;
  client_input(request, "INPUT0", &value, 1, true);
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
  client_finish(&client);
  uint32_t count = 0, kinds = 0;
  succeeds(TRITONSERVER_InferenceResponseParameterCount(client.responses[0], &count));
  expect(count > 0);
  const char* name = NULL;
  const void* pointer = NULL;
  TRITONSERVER_ParameterType type;
  for (uint32_t at = 0; at < count; ++at) {
    succeeds(TRITONSERVER_InferenceResponseParameter(client.responses[0], at, &name, &type, &pointer));
    expect(name[0] != 0 && pointer != NULL);
    kinds |= 1u << type;
    if (type == TRITONSERVER_PARAMETER_BOOL) expect(*(const bool*)pointer == true || *(const bool*)pointer == false);
  }
  expect(kinds & (1u << TRITONSERVER_PARAMETER_STRING) && kinds & (1u << TRITONSERVER_PARAMETER_INT));
  expect(kinds & (1u << TRITONSERVER_PARAMETER_BOOL));
  fails(TRITONSERVER_InferenceResponseParameter(client.responses[0], count, &name, &type, &pointer),
        TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONSERVER_InferenceResponseParameterCount(NULL, &count), TRITONSERVER_ERROR_INVALID_ARG,
        "inference_response must not be NULL");
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

static void refused(TRITONSERVER_Server* server, const char* model, void (*describe)(TRITONSERVER_InferenceRequest*),
                    TRITONSERVER_Error_Code code, const char* text) {
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, model, allocator, &client);
  describe(request);
  fails(TRITONSERVER_ServerInferAsync(server, request, NULL), code, text);
  /* The caller has it still: nothing came. */
  expect(client.releases == 0 && client.finals == 0 && client.starts == 0);
  bool is = true;
  succeeds(TRITONSERVER_InferenceRequestIsCancelled(request, &is));
  expect(!is);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  expect(client.releases == 0);
}

static const int32_t numbers[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

static void unknown_input(TRITONSERVER_InferenceRequest* request) { client_input(request, "OTHER", numbers, 1, true); }
static void wrong_shape(TRITONSERVER_InferenceRequest* request) { client_input(request, "INPUT0", numbers, 1, false); }
static void no_input(TRITONSERVER_InferenceRequest* request) { (void)request; }
static void unknown_output(TRITONSERVER_InferenceRequest* request) {
  client_input(request, "INPUT0", numbers, 1, true);
  succeeds(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "NONE"));
}
static void too_few_bytes(TRITONSERVER_InferenceRequest* request) {
  const int64_t shape[2] = {1, 4};
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, shape, 2));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", numbers, 8, TRITONSERVER_MEMORY_CPU, 0));
}
static void raw_of_two(TRITONSERVER_InferenceRequest* request) {
  succeeds(TRITONSERVER_InferenceRequestAddRawInput(request, "INPUT0"));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", numbers, 8, TRITONSERVER_MEMORY_CPU, 0));
}

static void what_is_wrong_is_said_at_once(TRITONSERVER_Server* server) {
  refused(server, "echo", unknown_input, TRITONSERVER_ERROR_INVALID_ARG,
          "unexpected inference input 'OTHER' for model 'echo'");
  refused(server, "fixed", wrong_shape, TRITONSERVER_ERROR_INVALID_ARG,
          "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'fixed'. Expected [4], got [1]. ");
  refused(server, "echo", no_input, TRITONSERVER_ERROR_INVALID_ARG,
          "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'echo'. Got input(s) [], but missing "
          "required input(s) ['INPUT0']. Please provide all required input(s).");
  refused(server, "echo", unknown_output, TRITONSERVER_ERROR_INVALID_ARG,
          "unexpected inference output 'NONE' for model 'echo'");
  refused(server, "echo", too_few_bytes, TRITONSERVER_ERROR_INVALID_ARG,
          "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'echo'. Expected 16, got 8");
  refused(server, "pair", raw_of_two, TRITONSERVER_ERROR_INVALID_ARG,
          "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
          "'pair' model configuration");
}

static void runs(TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request, Client* client) {
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
  client_finish(client);
}

/* Scattered, empty, raw, and texts. */
static void data_of_every_form(TRITONSERVER_Server* server) {
  Client client;
  client_init(&client);
  TRITONSERVER_InferenceRequest* request = client_request(server, "echo", allocator, &client);
  const int64_t shape[2] = {2, 3};
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, shape, 2));
  const size_t parts[4] = {4, 0, 13, 7};
  for (int part = 0, at = 0; part < 4; at += (int)parts[part++])
    succeeds(TRITONSERVER_InferenceRequestAppendInputData(
        request, "INPUT0", (const char*)numbers + at, parts[part], TRITONSERVER_MEMORY_CPU_PINNED, part));
  runs(server, request, &client);
  expect(memcmp(client_values(client.responses[0], 0, "OUTPUT0", 6), numbers, 24) == 0);
  client_clear(&client);

  const int64_t empty[2] = {1, 0};
  succeeds(TRITONSERVER_InferenceRequestRemoveAllInputs(request));
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, empty, 2));
  runs(server, request, &client);
  expect(client_values(client.responses[0], 0, "OUTPUT0", 0) == NULL && client.frees == 0);
  client_clear(&client);

  succeeds(TRITONSERVER_InferenceRequestRemoveAllInputs(request));
  succeeds(TRITONSERVER_InferenceRequestAddRawInput(request, "INPUT0"));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", numbers, 20, TRITONSERVER_MEMORY_CPU, 0));
  runs(server, request, &client);
  expect(memcmp(client_values(client.responses[0], 0, "OUTPUT0", 5), numbers, 20) == 0);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));

  request = client_request(server, "text", allocator, &client);
  const char strings[] = "\x03\0\0\0abc\0\0\0\0";
  const int64_t two = 2;
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_BYTES, &two, 1));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(
      request, "INPUT0", strings, sizeof(strings) - 1, TRITONSERVER_MEMORY_CPU, 0));
  runs(server, request, &client);
  const void* base = NULL;
  size_t byte_size = 0;
  succeeds(TRITONSERVER_InferenceResponseOutput(
      client.responses[0], 0, NULL, NULL, NULL, NULL, &base, &byte_size, NULL, NULL, NULL));
  expect(byte_size == 11 && memcmp(base, strings, 11) == 0);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestRemoveAllInputs(request));
  succeeds(TRITONSERVER_InferenceRequestAddRawInput(request, "INPUT0"));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", "raw", 3, TRITONSERVER_MEMORY_CPU, 0));
  fails(TRITONSERVER_ServerInferAsync(server, request, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "[request id: <id_unknown>] For BYTE datatype raw input 'INPUT0', the model must have input shape [1]");
  succeeds(TRITONSERVER_InferenceRequestDelete(request));

  request = client_request(server, "word", allocator, &client);
  succeeds(TRITONSERVER_InferenceRequestAddRawInput(request, "INPUT0"));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", "raw", 3, TRITONSERVER_MEMORY_CPU, 0));
  runs(server, request, &client);
  succeeds(TRITONSERVER_InferenceResponseOutput(
      client.responses[0], 0, NULL, NULL, NULL, NULL, &base, &byte_size, NULL, NULL, NULL));
  expect(byte_size == 7 && memcmp(base, "\x03\0\0\0raw", 7) == 0);
  client_clear(&client);
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
}

static void classes_have_labels(TRITONSERVER_Server* server) {
  Client client;
  client_init(&client);
  client.deletes = true;
  TRITONSERVER_InferenceRequest* request = client_request(server, "labelled", allocator, &client);
  client_input(request, "INPUT0", numbers, 2, false);
  /* It is deleted while it is released. */
  succeeds(TRITONSERVER_ServerInferAsync(server, request, NULL));
  client_finish(&client);
  const char* expected[4] = {"cat", "dog", NULL, NULL};
  for (size_t class_index = 0; class_index < 4; ++class_index) {
    const char *label = "", *again = "";
    succeeds(TRITONSERVER_InferenceResponseOutputClassificationLabel(client.responses[0], 0, class_index, &label));
    succeeds(TRITONSERVER_InferenceResponseOutputClassificationLabel(client.responses[0], 0, class_index, &again));
    expect(label == again && (label == NULL) == (expected[class_index] == NULL));
    expect(label == NULL || strcmp(label, expected[class_index]) == 0);
  }
  client_clear(&client);
}

int main(int argc, char** argv) {
  expect(argc == 3);
  allocator = client_allocator();
  TRITONSERVER_Server* server = client_server(argv[1], argv[2]);
  describes_itself(server);
  inputs_and_outputs(server);
  is_sent_and_answered(server);
  parameters_come_back(server);
  what_is_wrong_is_said_at_once(server);
  data_of_every_form(server);
  classes_have_labels(server);
  client_end(server);
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
  fails(TRITONSERVER_ResponseAllocatorDelete(NULL), TRITONSERVER_ERROR_INVALID_ARG, "allocator must not be NULL");
  return 0;
}
