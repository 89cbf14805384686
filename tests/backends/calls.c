/* Calls every function that a backend is offered, at least once so that it succeeds and once so that it fails, and says
 * what it checked (see check.h). The first check that does not hold ends the server.
 *
 * The model `plain` asks for what a group of instances can say (profiles, secondary devices, a host policy); `stateful`
 * has a sequence with an implicit state. One request to each makes all calls. */

#include "check.h"

#define EXPORT __attribute__((visibility("default")))
#define INVALID TRITONSERVER_ERROR_INVALID_ARG

static int state_of_backend, state_of_model, state_of_instance;

static bool is(const char* text, const char* expected) { return text != NULL && strcmp(text, expected) == 0; }

/* What the server says of auto-completion, in the backend's configuration. */
static bool is_completing;

/* The JSON of a message has `part` in it. */
static bool says(TRITONSERVER_Message* message, const char* part) {
  const char* base = NULL;
  size_t size = 0;
  succeeds(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  if (strstr(base, part) != NULL) return true;
  fprintf(stderr, "calls.c: no %s in %s\n", part, base);
  return false;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  uint32_t major = 0, minor = 0;
  const char* text = NULL;
  void* state = NULL;
  succeeds(TRITONBACKEND_ApiVersion(&major, &minor));
  expect(major == TRITONBACKEND_API_VERSION_MAJOR && minor >= TRITONBACKEND_API_VERSION_MINOR);
  fails(TRITONBACKEND_ApiVersion(NULL, &minor), INVALID, NULL);
  succeeds(TRITONBACKEND_BackendName(backend, &text));
  expect(is(text, "calls") || is(text, "tensorrt"));
  fails(TRITONBACKEND_BackendName(NULL, &text), INVALID, NULL);
  fails(TRITONBACKEND_BackendName(backend, NULL), INVALID, NULL);

  TRITONSERVER_Message *config = NULL, *again = NULL;
  succeeds(TRITONBACKEND_BackendConfig(backend, &config));
  is_completing = says(config, "\"auto-complete-config\":\"true\"");
  expect(is_completing || says(config, "\"auto-complete-config\":\"false\""));
  expect(says(config, "\"backend-directory\":\""));
  expect(says(config, "\"min-compute-capability\":\"7.500000\"") && says(config, "\"default-max-batch-size\":\"16\""));
  /* The message stays the server's: the same each time, and not ours to delete. */
  succeeds(TRITONBACKEND_BackendConfig(backend, &again));
  expect(config == again);
  fails(TRITONSERVER_MessageDelete(config), INVALID, NULL);
  fails(TRITONBACKEND_BackendConfig(NULL, &config), INVALID, NULL);

  TRITONBACKEND_ExecutionPolicy policy = TRITONBACKEND_EXECUTION_DEVICE_BLOCKING;
  succeeds(TRITONBACKEND_BackendExecutionPolicy(backend, &policy));
  expect(policy == TRITONBACKEND_EXECUTION_BLOCKING);
  fails(TRITONBACKEND_BackendExecutionPolicy(backend, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_BackendSetExecutionPolicy(backend, TRITONBACKEND_EXECUTION_DEVICE_BLOCKING));
  succeeds(TRITONBACKEND_BackendExecutionPolicy(backend, &policy));
  expect(policy == TRITONBACKEND_EXECUTION_DEVICE_BLOCKING);
  succeeds(TRITONBACKEND_BackendSetExecutionPolicy(backend, TRITONBACKEND_EXECUTION_BLOCKING));
  fails(TRITONBACKEND_BackendSetExecutionPolicy(backend, (TRITONBACKEND_ExecutionPolicy)7), INVALID, NULL);
  fails(TRITONBACKEND_BackendSetExecutionPolicy(NULL, TRITONBACKEND_EXECUTION_BLOCKING), INVALID, NULL);

  TRITONBACKEND_ArtifactType artifacts = (TRITONBACKEND_ArtifactType)9;
  succeeds(TRITONBACKEND_BackendArtifacts(backend, &artifacts, &text));
  expect(artifacts == TRITONBACKEND_ARTIFACT_FILESYSTEM && text[0] == '/');
  fails(TRITONBACKEND_BackendArtifacts(NULL, &artifacts, &text), INVALID, NULL);

  succeeds(TRITONBACKEND_BackendState(backend, &state));
  expect(state == NULL);
  succeeds(TRITONBACKEND_BackendSetState(backend, &state_of_backend));
  succeeds(TRITONBACKEND_BackendState(backend, &state));
  expect(state == &state_of_backend);
  fails(TRITONBACKEND_BackendState(NULL, &state), INVALID, NULL);
  fails(TRITONBACKEND_BackendSetState(NULL, NULL), INVALID, NULL);

  TRITONBACKEND_MemoryManager *memory = NULL, *same = NULL;
  void *one = NULL, *two = NULL;
  succeeds(TRITONBACKEND_BackendMemoryManager(backend, &memory));
  succeeds(TRITONBACKEND_BackendMemoryManager(backend, &same));
  expect(memory != NULL && memory == same);
  fails(TRITONBACKEND_BackendMemoryManager(NULL, &memory), INVALID, NULL);
  succeeds(TRITONBACKEND_MemoryManagerAllocate(memory, &one, TRITONSERVER_MEMORY_CPU, 0, 100000));
  succeeds(TRITONBACKEND_MemoryManagerAllocate(memory, &two, TRITONSERVER_MEMORY_CPU, 3, 0));
  expect(one != NULL && two != NULL && one != two && (uintptr_t)one % 64 == 0);
  memset(one, 5, 100000);
  void* kept = one;
  fails(TRITONBACKEND_MemoryManagerAllocate(memory, &one, TRITONSERVER_MEMORY_CPU_PINNED, 0, 8),
      TRITONSERVER_ERROR_UNAVAILABLE, "failed to allocate pinned system memory: no pinned memory pool");
  fails(TRITONBACKEND_MemoryManagerAllocate(memory, &one, TRITONSERVER_MEMORY_GPU, 0, 8),
      TRITONSERVER_ERROR_UNSUPPORTED, NULL);
  fails(TRITONBACKEND_MemoryManagerAllocate(memory, &one, (TRITONSERVER_MemoryType)3, 0, 8), INVALID, NULL);
  fails(TRITONBACKEND_MemoryManagerAllocate(memory, &one, TRITONSERVER_MEMORY_CPU, 0, UINT64_MAX),
      TRITONSERVER_ERROR_UNAVAILABLE, NULL);
  fails(TRITONBACKEND_MemoryManagerAllocate(memory, NULL, TRITONSERVER_MEMORY_CPU, 0, 8), INVALID, NULL);
  fails(TRITONBACKEND_MemoryManagerAllocate(NULL, &one, TRITONSERVER_MEMORY_CPU, 0, 8), INVALID, NULL);
  expect(one == kept);
  fails(TRITONBACKEND_MemoryManagerFree(memory, one, TRITONSERVER_MEMORY_CPU_PINNED, 0), INVALID, NULL);
  succeeds(TRITONBACKEND_MemoryManagerFree(memory, one, TRITONSERVER_MEMORY_CPU, 0));
  fails(TRITONBACKEND_MemoryManagerFree(memory, one, TRITONSERVER_MEMORY_CPU, 0), INVALID, NULL);
  fails(TRITONBACKEND_MemoryManagerFree(memory, &state_of_backend, TRITONSERVER_MEMORY_CPU, 0), INVALID, NULL);
  succeeds(TRITONBACKEND_MemoryManagerFree(memory, two, TRITONSERVER_MEMORY_CPU, 3));
  succeeds(TRITONBACKEND_MemoryManagerFree(memory, NULL, TRITONSERVER_MEMORY_CPU, 0));
  fails(TRITONBACKEND_MemoryManagerFree(NULL, two, TRITONSERVER_MEMORY_CPU, 0), INVALID, NULL);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes) {
  const uint64_t devices[] = {0, 1}, beyond[] = {UINT64_MAX};
  (void)backend;
  /* The best comes first; a group on GPUs cannot be had here. */
  succeeds(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_GPU, 2, devices, 2));
  succeeds(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 1, NULL, 0));
  fails(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
            attributes, (TRITONSERVER_InstanceGroupKind)9, 1, NULL, 0), INVALID, NULL);
  fails(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
            attributes, TRITONSERVER_INSTANCEGROUPKIND_GPU, 1, beyond, 1), INVALID, NULL);
  fails(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
            attributes, TRITONSERVER_INSTANCEGROUPKIND_GPU, 1, devices, UINT64_MAX), INVALID, NULL);
  fails(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
            NULL, TRITONSERVER_INSTANCEGROUPKIND_CPU, 1, NULL, 0), INVALID, NULL);
  succeeds(TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, false));
  fails(TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(NULL, true), INVALID, NULL);
  return NULL;
}

static TRITONSERVER_BufferAttributes* some_bytes(void) {
  TRITONSERVER_BufferAttributes* made = NULL;
  succeeds(TRITONSERVER_BufferAttributesNew(&made));
  succeeds(TRITONSERVER_BufferAttributesSetByteSize(made, 12));
  return made;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const char* text = NULL;
  uint64_t version = 0;
  void* state = NULL;
  succeeds(TRITONBACKEND_ModelName(model, &text));
  expect(is(text, "plain") || is(text, "stateful"));
  fails(TRITONBACKEND_ModelName(NULL, &text), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelVersion(model, &version));
  expect(version == 1);
  fails(TRITONBACKEND_ModelVersion(model, NULL), INVALID, NULL);
  TRITONBACKEND_ArtifactType artifacts = (TRITONBACKEND_ArtifactType)9;
  succeeds(TRITONBACKEND_ModelRepository(model, &artifacts, &text));
  expect(artifacts == TRITONBACKEND_ARTIFACT_FILESYSTEM && text[0] == '/');
  fails(TRITONBACKEND_ModelRepository(NULL, &artifacts, &text), INVALID, NULL);

  bool completes = false;
  succeeds(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
  expect(completes == is_completing);
  printf("calls.c: completes %d\n", completes);
  fails(TRITONBACKEND_ModelAutoCompleteConfig(model, NULL), INVALID, NULL);
  TRITONSERVER_Message* config = NULL;
  succeeds(TRITONBACKEND_ModelConfig(model, 1, &config));
  expect(says(config, "\"name\":\""));
  fails(TRITONBACKEND_ModelConfig(model, 2, &config), INVALID, NULL);
  fails(TRITONBACKEND_ModelConfig(NULL, 1, &config), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelSetConfig(model, 1, config));
  fails(TRITONBACKEND_ModelSetConfig(model, 2, config), INVALID,
      "model configuration version 2 not supported, supported versions are: 1");
  fails(TRITONBACKEND_ModelSetConfig(model, 1, NULL), INVALID, NULL);
  succeeds(TRITONSERVER_MessageDelete(config));

  TRITONSERVER_Server* server = NULL;
  succeeds(TRITONBACKEND_ModelServer(model, &server));
  expect(server != NULL);
  fails(TRITONBACKEND_ModelServer(NULL, &server), INVALID, NULL);
  TRITONBACKEND_Backend* backend = NULL;
  succeeds(TRITONBACKEND_ModelBackend(model, &backend));
  succeeds(TRITONBACKEND_BackendState(backend, &state));
  expect(state == &state_of_backend);
  fails(TRITONBACKEND_ModelBackend(model, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelSetState(model, &state_of_model));
  succeeds(TRITONBACKEND_ModelState(model, &state));
  expect(state == &state_of_model);
  fails(TRITONBACKEND_ModelSetState(NULL, NULL), INVALID, NULL);
  fails(TRITONBACKEND_ModelState(model, NULL), INVALID, NULL);

  TRITONSERVER_BufferAttributes* use = some_bytes();
  succeeds(TRITONBACKEND_ModelReportMemoryUsage(model, &use, 1));
  fails(TRITONBACKEND_ModelReportMemoryUsage(model, NULL, 1), INVALID, NULL);
  succeeds(TRITONSERVER_BufferAttributesDelete(use));
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  const char *text = NULL, *kind_name = NULL;
  TRITONSERVER_InstanceGroupKind kind = TRITONSERVER_INSTANCEGROUPKIND_AUTO;
  int32_t device = -1;
  bool is_passive = true;
  uint32_t count = 9;
  int64_t id = 0;
  void* state = NULL;
  TRITONBACKEND_Model* model = NULL;
  succeeds(TRITONBACKEND_ModelInstanceModel(instance, &model));
  succeeds(TRITONBACKEND_ModelName(model, &text));
  fails(TRITONBACKEND_ModelInstanceModel(NULL, &model), INVALID, NULL);
  bool is_plain = is(text, "plain");

  /* The configuration is fixed by now, with what was set and what is normal. */
  TRITONSERVER_Message* config = NULL;
  succeeds(TRITONBACKEND_ModelConfig(model, 1, &config));
  expect(says(config, "\"instance_group\":[{"));
  fails(TRITONBACKEND_ModelSetConfig(model, 1, config), INVALID, NULL);
  succeeds(TRITONSERVER_MessageDelete(config));

  succeeds(TRITONBACKEND_ModelInstanceName(instance, &text));
  expect(is(text, is_plain ? "plain_0_0" : "stateful_0"));
  fails(TRITONBACKEND_ModelInstanceName(NULL, &text), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceKind(instance, &kind));
  expect(kind == TRITONSERVER_INSTANCEGROUPKIND_CPU);
  fails(TRITONBACKEND_ModelInstanceKind(instance, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
  expect(device == 0);
  fails(TRITONBACKEND_ModelInstanceDeviceId(NULL, &device), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceIsPassive(instance, &is_passive));
  expect(!is_passive);
  fails(TRITONBACKEND_ModelInstanceIsPassive(instance, NULL), INVALID, NULL);

  TRITONSERVER_Message* policy = NULL;
  succeeds(TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy));
  expect(says(policy, is_plain ? "{\"special\":{\"cpu-cores\":\"0-4095\"}}" : "{\"cpu\":{}}"));
  fails(TRITONSERVER_MessageDelete(policy), INVALID, NULL);
  fails(TRITONBACKEND_ModelInstanceHostPolicy(NULL, &policy), INVALID, NULL);

  succeeds(TRITONBACKEND_ModelInstanceProfileCount(instance, &count));
  expect(count == (is_plain ? 2 : 0));
  fails(TRITONBACKEND_ModelInstanceProfileCount(NULL, &count), INVALID, NULL);
  if (is_plain) {
    succeeds(TRITONBACKEND_ModelInstanceProfileName(instance, 1, &text));
    expect(is(text, "3"));
  }
  fails(TRITONBACKEND_ModelInstanceProfileName(instance, count, &text), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance, &count));
  expect(count == (is_plain ? 1 : 0));
  fails(TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance, NULL), INVALID, NULL);
  if (is_plain) {
    succeeds(TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, 0, &kind_name, &id));
    expect(is(kind_name, "KIND_NVDLA") && id == 5);
  }
  fails(TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, count, &kind_name, &id), INVALID, NULL);

  succeeds(TRITONBACKEND_ModelInstanceSetState(instance, &state_of_instance));
  succeeds(TRITONBACKEND_ModelInstanceState(instance, &state));
  expect(state == &state_of_instance);
  fails(TRITONBACKEND_ModelInstanceSetState(NULL, NULL), INVALID, NULL);
  fails(TRITONBACKEND_ModelInstanceState(instance, NULL), INVALID, NULL);
  TRITONSERVER_BufferAttributes* use = some_bytes();
  succeeds(TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, &use, 1));
  fails(TRITONBACKEND_ModelInstanceReportMemoryUsage(NULL, &use, 1), INVALID, NULL);
  succeeds(TRITONSERVER_BufferAttributesDelete(use));
  return NULL;
}

/* What a request says of itself. */
static void look(TRITONBACKEND_Request* request, bool is_plain) {
  const char* text = NULL;
  bool is_cancelled = true;
  uint64_t number = 0;
  uint32_t count = 9, flags = 9;
  succeeds(TRITONBACKEND_RequestId(request, &text));
  expect(is(text, "r 1"));
  fails(TRITONBACKEND_RequestId(NULL, &text), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestIsCancelled(request, &is_cancelled));
  expect(!is_cancelled);
  fails(TRITONBACKEND_RequestIsCancelled(request, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestFlags(request, &flags));
  expect(flags == (is_plain ? 0 : TRITONSERVER_REQUEST_FLAG_SEQUENCE_START | TRITONSERVER_REQUEST_FLAG_SEQUENCE_END));
  fails(TRITONBACKEND_RequestFlags(request, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &number));
  expect(number == (is_plain ? 60000000 : 0));
  fails(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(NULL, &number), INVALID, NULL);
  if (is_plain) {
    succeeds(TRITONBACKEND_RequestCorrelationId(request, &number));
    expect(number == 0);
    fails(TRITONBACKEND_RequestCorrelationIdString(request, NULL), INVALID, NULL);
  } else {
    succeeds(TRITONBACKEND_RequestCorrelationIdString(request, &text));
    expect(is(text, "a sequence"));
    fails(TRITONBACKEND_RequestCorrelationId(request, &number), INVALID,
        "[request id: r 1] correlation ID in request is not an unsigned int");
  }

  TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_INT;
  const void* value = NULL;
  succeeds(TRITONBACKEND_RequestParameterCount(request, &count));
  expect(count == (is_plain ? 1 : 0));
  fails(TRITONBACKEND_RequestParameterCount(request, NULL), INVALID, NULL);
  if (is_plain) {
    succeeds(TRITONBACKEND_RequestParameter(request, 0, &text, &type, &value));
    expect(is(text, "word") && type == TRITONSERVER_PARAMETER_STRING && is(value, "said"));
    fails(TRITONBACKEND_RequestParameter(request, 1, &text, &type, &value), INVALID,
        "out of bounds index 1: request has 1 parameters");
  }
  TRITONSERVER_InferenceTrace* trace = NULL;
  succeeds(TRITONBACKEND_RequestTrace(request, &trace));
  expect(trace == NULL);
  fails(TRITONBACKEND_RequestTrace(NULL, &trace), INVALID, NULL);

  succeeds(TRITONBACKEND_RequestOutputCount(request, &count));
  expect(count == 1);
  fails(TRITONBACKEND_RequestOutputCount(NULL, &count), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestOutputName(request, 0, &text));
  expect(is(text, "OUTPUT0"));
  fails(TRITONBACKEND_RequestOutputName(request, 1, &text), INVALID,
      "out of bounds index 1: request has 1 requested outputs");
  size_t size = 8;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_GPU;
  int64_t id = 5;
  succeeds(TRITONBACKEND_RequestOutputBufferProperties(request, "OUTPUT0", &size, &memory, &id));
  expect(memory == TRITONSERVER_MEMORY_CPU && id == 0);
  fails(TRITONBACKEND_RequestOutputBufferProperties(NULL, "OUTPUT0", &size, &memory, &id), INVALID, NULL);
}

static void read_inputs(TRITONBACKEND_Request* request) {
  const char* text = NULL;
  uint32_t count = 9, rank = 9;
  uint64_t size = 0;
  TRITONBACKEND_Input *input = NULL, *same = NULL;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = NULL;
  const void *buffer = NULL, *again = NULL;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_GPU;
  int64_t id = 5;
  TRITONSERVER_BufferAttributes* attributes = NULL;
  succeeds(TRITONBACKEND_RequestInputCount(request, &count));
  expect(count >= 1);
  fails(TRITONBACKEND_RequestInputCount(request, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestInputName(request, 0, &text));
  expect(is(text, "INPUT0"));
  fails(TRITONBACKEND_RequestInputName(request, count, &text), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestInput(request, "INPUT0", &input));
  same = input;
  fails(TRITONBACKEND_RequestInput(request, "NONE", &same), INVALID,
      "[request id: r 1] unknown request input name NONE");
  expect(same == NULL);
  succeeds(TRITONBACKEND_RequestInputByIndex(request, 0, &same));
  expect(input == same);
  fails(TRITONBACKEND_RequestInputByIndex(request, count, &same), INVALID, NULL);

  succeeds(TRITONBACKEND_InputProperties(input, &text, &datatype, &shape, &rank, &size, &count));
  expect(is(text, "INPUT0") && datatype == TRITONSERVER_TYPE_INT32 && size == 8 && count == 1 && rank >= 1);
  expect(shape[rank - 1] == 2);
  succeeds(TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, NULL, NULL));
  fails(TRITONBACKEND_InputProperties(NULL, &text, NULL, NULL, NULL, NULL, NULL), INVALID, NULL);
  size = 0;
  /* Of a policy without data of its own, and of none, as without policies. */
  succeeds(TRITONBACKEND_InputPropertiesForHostPolicy(input, "special", NULL, NULL, NULL, NULL, &size, &count));
  expect(size == 8 && count == 1);
  succeeds(TRITONBACKEND_InputPropertiesForHostPolicy(input, NULL, NULL, NULL, NULL, NULL, &size, &count));
  expect(size == 8 && count == 1);
  fails(TRITONBACKEND_InputPropertiesForHostPolicy(NULL, "special", NULL, NULL, NULL, NULL, NULL, NULL), INVALID, NULL);

  succeeds(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &memory, &id));
  expect(size == 8 && memory == TRITONSERVER_MEMORY_CPU && id == 0 && ((const int32_t*)buffer)[1] == -7);
  fails(TRITONBACKEND_InputBuffer(input, 1, &buffer, &size, &memory, &id), INVALID, NULL);
  succeeds(TRITONBACKEND_InputBufferForHostPolicy(input, "special", 0, &again, &size, &memory, &id));
  expect(again == buffer && size == 8);
  fails(TRITONBACKEND_InputBufferForHostPolicy(input, "special", 1, &again, &size, &memory, &id), INVALID, NULL);
  succeeds(TRITONBACKEND_InputBufferAttributes(input, 0, &again, &attributes));
  size_t length = 0;
  succeeds(TRITONSERVER_BufferAttributesByteSize(attributes, &length));
  succeeds(TRITONSERVER_BufferAttributesMemoryType(attributes, &memory));
  expect(again == buffer && length == 8 && memory == TRITONSERVER_MEMORY_CPU);
  TRITONSERVER_BufferAttributes* once_more = NULL;
  succeeds(TRITONBACKEND_InputBufferAttributes(input, 0, &again, &once_more));
  expect(once_more == attributes);
  fails(TRITONBACKEND_InputBufferAttributes(input, 1, &again, &attributes), INVALID, NULL);
}

static void keep_state(TRITONBACKEND_Request* request, bool is_plain) {
  TRITONBACKEND_State* state = NULL;
  const int64_t shape[] = {1};
  if (is_plain) {
    fails(TRITONBACKEND_StateNew(&state, request, "AFTER", TRITONSERVER_TYPE_INT32, shape, 1), INVALID,
        "unable to add state 'AFTER'. State configuration is missing for model 'plain'.");
    return;
  }
  void* buffer = NULL;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_GPU;
  int64_t id = 5;
  TRITONSERVER_BufferAttributes* attributes = NULL;
  fails(TRITONBACKEND_StateNew(&state, request, "OTHER", TRITONSERVER_TYPE_INT32, shape, 1), INVALID,
      "state 'OTHER' is not a valid state name.");
  succeeds(TRITONBACKEND_StateNew(&state, request, "AFTER", TRITONSERVER_TYPE_INT32, shape, 1));
  succeeds(TRITONBACKEND_StateBuffer(state, &buffer, 4, &memory, &id));
  expect(memory == TRITONSERVER_MEMORY_CPU && id == 0);
  memset(buffer, 1, 4);
  fails(TRITONBACKEND_StateBuffer(state, &buffer, UINT64_MAX, &memory, &id), INVALID, NULL);
  succeeds(TRITONBACKEND_StateBufferAttributes(state, &attributes));
  size_t length = 0;
  succeeds(TRITONSERVER_BufferAttributesByteSize(attributes, &length));
  expect(length == 4);
  fails(TRITONBACKEND_StateBufferAttributes(state, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_StateUpdate(state));
  fails(TRITONBACKEND_StateUpdate(NULL), INVALID, NULL);
}

/* Makes the answer, and leaves it to be sent. */
static TRITONBACKEND_Response* write_answer(TRITONBACKEND_Request* request, TRITONBACKEND_ResponseFactory* factory) {
  TRITONBACKEND_Response *response = NULL, *spare = NULL;
  succeeds(TRITONBACKEND_ResponseNew(&spare, request));
  fails(TRITONBACKEND_ResponseNew(NULL, request), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseDelete(spare));
  fails(TRITONBACKEND_ResponseDelete(NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
  fails(TRITONBACKEND_ResponseNewFromFactory(&response, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseSetStringParameter(response, "s", "text"));
  fails(TRITONBACKEND_ResponseSetStringParameter(response, "s", NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseSetIntParameter(response, "i", -3));
  fails(TRITONBACKEND_ResponseSetIntParameter(response, NULL, 1), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseSetBoolParameter(response, "b", true));
  fails(TRITONBACKEND_ResponseSetBoolParameter(NULL, "b", true), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseSetDoubleParameter(response, "d", 0.5));
  fails(TRITONBACKEND_ResponseSetDoubleParameter(NULL, "d", 0.5), INVALID, NULL);

  TRITONBACKEND_Output* output = NULL;
  const int64_t shape[] = {1, 2};
  succeeds(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", TRITONSERVER_TYPE_INT32, shape, 2));
  fails(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", TRITONSERVER_TYPE_INVALID, shape, 2), INVALID, NULL);
  fails(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", TRITONSERVER_TYPE_INT32, shape, UINT32_MAX), INVALID,
      "output 'OUTPUT0' has 4294967295 dimensions, more than 1024");
  TRITONSERVER_BufferAttributes* attributes = NULL;
  void* buffer = NULL;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_GPU;
  int64_t id = 5;
  succeeds(TRITONBACKEND_OutputBuffer(output, &buffer, 8, &memory, &id));
  expect(memory == TRITONSERVER_MEMORY_CPU && id == 0);
  const int32_t values[] = {11, 12};
  memcpy(buffer, values, sizeof values);
  fails(TRITONBACKEND_OutputBuffer(output, &buffer, 8, &memory, &id), TRITONSERVER_ERROR_ALREADY_EXISTS,
      "allocated buffer for output 'OUTPUT0' already exists");
  succeeds(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
  size_t length = 0;
  succeeds(TRITONSERVER_BufferAttributesByteSize(attributes, &length));
  expect(length == 8);
  fails(TRITONBACKEND_OutputBufferAttributes(output, NULL), INVALID, NULL);

  const char* name = NULL;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* dims = NULL;
  uint64_t rank = 0;
  succeeds(TRITONBACKEND_InferenceResponseOutput(response, 0, &name, &datatype, &dims, &rank));
  expect(is(name, "OUTPUT0") && datatype == TRITONSERVER_TYPE_INT32 && rank == 2 && dims[1] == 2);
  fails(TRITONBACKEND_InferenceResponseOutput(response, 1, &name, &datatype, &dims, &rank), INVALID, NULL);
  succeeds(TRITONBACKEND_InferenceResponseOutputByName(response, "OUTPUT0", &datatype, &dims, &rank));
  fails(TRITONBACKEND_InferenceResponseOutputByName(response, "NONE", &datatype, &dims, &rank),
      TRITONSERVER_ERROR_NOT_FOUND, NULL);
  return response;
}

static void report(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_ResponseFactory* factory) {
  TRITONBACKEND_ModelInstanceResponseStatistics* made = NULL;
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&made));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsNew(NULL), INVALID, NULL);
  fails(TRITONBACKEND_ModelInstanceReportResponseStatistics(made), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(made, instance));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(NULL, instance), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(made, factory));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(NULL, factory), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(made, 1));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(NULL, 1), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(made, 2));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(NULL, 2), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(made, 3));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(NULL, 3), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(made, NULL));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(NULL, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceReportResponseStatistics(made));
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(made));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(NULL), INVALID, NULL);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  expect(count == 1);
  TRITONBACKEND_Request* request = requests[0];
  TRITONBACKEND_Model* model = NULL;
  const char* text = NULL;
  succeeds(TRITONBACKEND_ModelInstanceModel(instance, &model));
  succeeds(TRITONBACKEND_ModelName(model, &text));
  const bool is_plain = is(text, "plain");
  look(request, is_plain);
  read_inputs(request);
  keep_state(request, is_plain);

  TRITONBACKEND_ResponseFactory* factory = NULL;
  bool is_cancelled = true;
  succeeds(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  fails(TRITONBACKEND_ResponseFactoryNew(&factory, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &is_cancelled));
  expect(!is_cancelled);
  fails(TRITONBACKEND_ResponseFactoryIsCancelled(NULL, &is_cancelled), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseFactorySendFlags(factory, 0));
  fails(TRITONBACKEND_ResponseFactorySendFlags(NULL, 0), INVALID, NULL);
  TRITONBACKEND_Response* response = write_answer(request, factory);
  report(instance, factory);
  succeeds(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, true, 1, 2, 3, 4));
  fails(TRITONBACKEND_ModelInstanceReportStatistics(instance, NULL, true, 1, 2, 3, 4), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, 1, 2, 3, 4));
  fails(TRITONBACKEND_ModelInstanceReportBatchStatistics(NULL, 1, 1, 2, 3, 4), INVALID, NULL);
  fails(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE), INVALID,
      "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
      "such a flag.");
  fails(TRITONBACKEND_RequestRelease(request, 0), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  /* Factory and response outlive the request; the answer comes last, so that whoever has it may count on the rest. */
  fails(TRITONBACKEND_ResponseSend(NULL, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseFactoryDelete(factory));
  fails(TRITONBACKEND_ResponseFactoryDelete(NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
  return NULL;
}
