/* Calls every function that is offered to backends, each so that it succeeds and so that it fails, while it answers the
 * requests of two models: `plain` gives back its input, `sums` keeps a state. The first check that does not hold ends
 * the server. */

#include "check.h"

#define INVALID TRITONSERVER_ERROR_INVALID_ARG

/* Something to point to. */
static char here;

static bool is(const char* found, const char* expected) {
  return found != NULL && strcmp(found, expected) == 0;
}

/* The attributes of 64 bytes of the host's memory; the caller deletes them. */
static TRITONSERVER_BufferAttributes* some_memory(void) {
  TRITONSERVER_BufferAttributes* attributes = NULL;
  expect(TRITONSERVER_BufferAttributesNew(&attributes) == NULL);
  expect(TRITONSERVER_BufferAttributesSetByteSize(attributes, 64) == NULL);
  return attributes;
}

/* The library. */

static void memory(TRITONBACKEND_Backend* backend) {
  TRITONBACKEND_MemoryManager* manager = NULL;
  void* buffer = NULL;
  succeeds(TRITONBACKEND_BackendMemoryManager(backend, &manager));
  fails(TRITONBACKEND_BackendMemoryManager(NULL, &manager), INVALID, NULL);
  succeeds(TRITONBACKEND_MemoryManagerAllocate(manager, &buffer, TRITONSERVER_MEMORY_CPU, 0, 64));
  memset(buffer, 1, 64);
  fails(TRITONBACKEND_MemoryManagerAllocate(manager, &buffer, (TRITONSERVER_MemoryType)9, 0, 64), INVALID,
        "unknown memory type 9");
  fails(TRITONBACKEND_MemoryManagerAllocate(NULL, &buffer, TRITONSERVER_MEMORY_CPU, 0, 64), INVALID, NULL);
  fails(TRITONBACKEND_MemoryManagerAllocate(manager, NULL, TRITONSERVER_MEMORY_CPU, 0, 64), INVALID, NULL);
  fails(TRITONBACKEND_MemoryManagerFree(manager, buffer, TRITONSERVER_MEMORY_GPU, 0), INVALID, NULL);
  fails(TRITONBACKEND_MemoryManagerFree(NULL, buffer, TRITONSERVER_MEMORY_CPU, 0), INVALID, NULL);
  succeeds(TRITONBACKEND_MemoryManagerFree(manager, buffer, TRITONSERVER_MEMORY_CPU, 0));
  fails(TRITONBACKEND_MemoryManagerFree(manager, buffer, TRITONSERVER_MEMORY_CPU, 0), INVALID, NULL);
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  const char* text = NULL;
  size_t byte_size = 0;
  TRITONSERVER_Message* config = NULL;
  TRITONBACKEND_ExecutionPolicy policy = TRITONBACKEND_EXECUTION_DEVICE_BLOCKING;
  TRITONBACKEND_ArtifactType artifacts = (TRITONBACKEND_ArtifactType)9;
  void* state = NULL;

  succeeds(TRITONBACKEND_BackendName(backend, &text));
  expect(is(text, "offered"));
  fails(TRITONBACKEND_BackendName(NULL, &text), INVALID, NULL);
  fails(TRITONBACKEND_BackendName(backend, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_BackendConfig(backend, &config));
  expect(TRITONSERVER_MessageSerializeToJson(config, &text, &byte_size) == NULL);
  expect(strstr(text, "\"cmdline\"") != NULL && strstr(text, "\"colour\":\"green\"") != NULL);
  fails(TRITONBACKEND_BackendConfig(NULL, &config), INVALID, NULL);
  succeeds(TRITONBACKEND_BackendExecutionPolicy(backend, &policy));
  expect(policy == TRITONBACKEND_EXECUTION_BLOCKING);
  fails(TRITONBACKEND_BackendExecutionPolicy(backend, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_BackendSetExecutionPolicy(backend, TRITONBACKEND_EXECUTION_BLOCKING));
  fails(TRITONBACKEND_BackendSetExecutionPolicy(backend, (TRITONBACKEND_ExecutionPolicy)9), INVALID,
        "unknown execution policy 9");
  succeeds(TRITONBACKEND_BackendArtifacts(backend, &artifacts, &text));
  expect(artifacts == TRITONBACKEND_ARTIFACT_FILESYSTEM && strstr(text, "/offered") != NULL);
  fails(TRITONBACKEND_BackendArtifacts(NULL, &artifacts, &text), INVALID, NULL);
  succeeds(TRITONBACKEND_BackendSetState(backend, &here));
  fails(TRITONBACKEND_BackendSetState(NULL, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_BackendState(backend, &state));
  expect(state == &here);
  fails(TRITONBACKEND_BackendState(backend, NULL), INVALID, NULL);
  memory(backend);
  return NULL;
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes) {
  (void)backend;
  const uint64_t devices[] = {0};
  succeeds(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 1, devices, 0));
  fails(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
            attributes, (TRITONSERVER_InstanceGroupKind)9, 1, NULL, 0), INVALID, "unknown instance group kind 9");
  fails(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
            NULL, TRITONSERVER_INSTANCEGROUPKIND_CPU, 1, NULL, 0), INVALID, NULL);
  succeeds(TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, false));
  fails(TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(NULL, true), INVALID, NULL);
  return NULL;
}

/* Models and instances. */

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const char* text = NULL;
  const char* name = NULL;
  size_t byte_size = 0;
  uint64_t version = 0;
  bool completes = false, live = false;
  void* state = &here;
  TRITONBACKEND_ArtifactType artifacts = (TRITONBACKEND_ArtifactType)9;
  TRITONSERVER_Message* config = NULL;
  TRITONSERVER_Server* server = NULL;
  TRITONBACKEND_Backend* backend = NULL;

  succeeds(TRITONBACKEND_ModelName(model, &name));
  expect(is(name, "plain") || is(name, "sums"));
  fails(TRITONBACKEND_ModelName(NULL, &text), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelVersion(model, &version));
  expect(version == 1);
  fails(TRITONBACKEND_ModelVersion(model, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelRepository(model, &artifacts, &text));
  expect(artifacts == TRITONBACKEND_ARTIFACT_FILESYSTEM && strstr(text, name) != NULL);
  fails(TRITONBACKEND_ModelRepository(NULL, &artifacts, &text), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelConfig(model, 1, &config));
  expect(TRITONSERVER_MessageSerializeToJson(config, &text, &byte_size) == NULL);
  expect(strstr(text, "\"backend\":\"offered\"") != NULL);
  fails(TRITONBACKEND_ModelSetConfig(model, 2, config), INVALID,
        "model configuration version 2 not supported, supported versions are: 1");
  fails(TRITONBACKEND_ModelSetConfig(model, 1, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelSetConfig(model, 1, config));
  expect(TRITONSERVER_MessageDelete(config) == NULL);
  fails(TRITONBACKEND_ModelConfig(model, 2, &config), INVALID,
        "model configuration version 2 not supported, supported versions are: 1");
  succeeds(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
  expect(completes);
  fails(TRITONBACKEND_ModelAutoCompleteConfig(NULL, &completes), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelServer(model, &server));
  expect(TRITONSERVER_ServerIsLive(server, &live) == NULL);
  fails(TRITONBACKEND_ModelServer(model, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelBackend(model, &backend));
  expect(TRITONBACKEND_BackendName(backend, &text) == NULL && is(text, "offered"));
  fails(TRITONBACKEND_ModelBackend(model, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelState(model, &state));
  expect(state == NULL);
  fails(TRITONBACKEND_ModelState(NULL, &state), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelSetState(model, is(name, "sums") ? &here : NULL));
  fails(TRITONBACKEND_ModelSetState(NULL, NULL), INVALID, NULL);

  TRITONSERVER_BufferAttributes* usage[] = {some_memory()};
  succeeds(TRITONBACKEND_ModelReportMemoryUsage(model, usage, 1));
  fails(TRITONBACKEND_ModelReportMemoryUsage(model, NULL, 1), INVALID, NULL);
  fails(TRITONBACKEND_ModelReportMemoryUsage(NULL, usage, 1), INVALID, NULL);
  expect(TRITONSERVER_BufferAttributesDelete(usage[0]) == NULL);
  return NULL;
}

static void extras_of_the_group(TRITONBACKEND_ModelInstance* instance, bool has_some) {
  const char* text = NULL;
  uint32_t count = 9;
  int64_t id = 0;
  succeeds(TRITONBACKEND_ModelInstanceProfileCount(instance, &count));
  expect(count == (has_some ? 1 : 0));
  fails(TRITONBACKEND_ModelInstanceProfileCount(instance, NULL), INVALID, NULL);
  fails(TRITONBACKEND_ModelInstanceProfileName(instance, count, &text), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance, &count));
  expect(count == (has_some ? 1 : 0));
  fails(TRITONBACKEND_ModelInstanceSecondaryDeviceCount(NULL, &count), INVALID, NULL);
  fails(TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, count, &text, &id), INVALID, NULL);
  if (!has_some) return;
  succeeds(TRITONBACKEND_ModelInstanceProfileName(instance, 0, &text));
  expect(is(text, "wide"));
  succeeds(TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, 0, &text, &id));
  expect(is(text, "KIND_NVDLA") && id == 2);
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  const char* text = NULL;
  size_t byte_size = 0;
  int32_t device = 9;
  bool is_passive = true;
  void* state = &here;
  TRITONSERVER_InstanceGroupKind kind = TRITONSERVER_INSTANCEGROUPKIND_AUTO;
  TRITONSERVER_Message* policy = NULL;
  TRITONBACKEND_Model* model = NULL;

  succeeds(TRITONBACKEND_ModelInstanceModel(instance, &model));
  expect(TRITONBACKEND_ModelName(model, &text) == NULL);
  fails(TRITONBACKEND_ModelInstanceModel(NULL, &model), INVALID, NULL);
  extras_of_the_group(instance, is(text, "plain"));
  succeeds(TRITONBACKEND_ModelInstanceName(instance, &text));
  fails(TRITONBACKEND_ModelInstanceName(instance, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceKind(instance, &kind));
  expect(kind == TRITONSERVER_INSTANCEGROUPKIND_CPU);
  fails(TRITONBACKEND_ModelInstanceKind(NULL, &kind), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
  expect(device == 0);
  fails(TRITONBACKEND_ModelInstanceDeviceId(NULL, &device), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy));
  expect(TRITONSERVER_MessageSerializeToJson(policy, &text, &byte_size) == NULL && text[0] == '{');
  fails(TRITONBACKEND_ModelInstanceHostPolicy(NULL, &policy), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceIsPassive(instance, &is_passive));
  expect(!is_passive);
  fails(TRITONBACKEND_ModelInstanceIsPassive(instance, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceSetState(instance, &here));
  fails(TRITONBACKEND_ModelInstanceSetState(NULL, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceState(instance, &state));
  expect(state == &here);
  fails(TRITONBACKEND_ModelInstanceState(NULL, &state), INVALID, NULL);

  TRITONSERVER_BufferAttributes* usage[] = {some_memory()};
  succeeds(TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, usage, 1));
  fails(TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, NULL, 1), INVALID, NULL);
  expect(TRITONSERVER_BufferAttributesDelete(usage[0]) == NULL);
  return NULL;
}

/* Requests. */

static void identity_of(TRITONBACKEND_Request* request) {
  const char* id = NULL;
  const char* text = NULL;
  uint64_t number = 0;
  uint32_t flags = 9;
  bool is_cancelled = true;
  succeeds(TRITONBACKEND_RequestId(request, &id));
  fails(TRITONBACKEND_RequestId(NULL, &id), INVALID, NULL);
  if (is(id, "text")) {
    succeeds(TRITONBACKEND_RequestCorrelationIdString(request, &text));
    expect(is(text, "seven"));
    fails(TRITONBACKEND_RequestCorrelationId(request, &number), INVALID, NULL);
  } else {
    succeeds(TRITONBACKEND_RequestCorrelationId(request, &number));
    expect(number == (is(id, "number") ? 7 : 1));
    fails(TRITONBACKEND_RequestCorrelationIdString(request, &text), INVALID, NULL);
  }
  succeeds(TRITONBACKEND_RequestFlags(request, &flags));
  fails(TRITONBACKEND_RequestFlags(request, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestIsCancelled(request, &is_cancelled));
  expect(!is_cancelled);
  fails(TRITONBACKEND_RequestIsCancelled(NULL, &is_cancelled), INVALID, NULL);
  succeeds(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &number));
  expect(number == (is(id, "sum") ? 0 : 5000000));
  fails(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, NULL), INVALID, NULL);
}

static void parameters_of(TRITONBACKEND_Request* request) {
  const char* key = NULL;
  const void* value = NULL;
  uint32_t count = 0;
  bool has_colour = false;
  TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_BYTES;
  succeeds(TRITONBACKEND_RequestParameterCount(request, &count));
  fails(TRITONBACKEND_RequestParameterCount(NULL, &count), INVALID, NULL);
  for (uint32_t at = 0; at < count; ++at) {
    succeeds(TRITONBACKEND_RequestParameter(request, at, &key, &type, &value));
    has_colour |= is(key, "colour") && type == TRITONSERVER_PARAMETER_STRING && is(value, "red");
  }
  expect(has_colour || count == 0);
  fails(TRITONBACKEND_RequestParameter(request, count, &key, &type, &value), INVALID, NULL);
}

static void trace_of(TRITONBACKEND_Request* request) {
  TRITONSERVER_InferenceTrace* trace = NULL;
  TRITONSERVER_InferenceTrace* child = NULL;
  uint64_t id = 0, parent = 9;
  int64_t version = 0;
  const char* text = NULL;
  succeeds(TRITONBACKEND_RequestTrace(request, &trace));
  expect(trace != NULL);
  fails(TRITONBACKEND_RequestTrace(NULL, &trace), INVALID, NULL);
  succeeds(TRITONSERVER_InferenceTraceId(trace, &id));
  expect(id != 0);
  fails(TRITONSERVER_InferenceTraceId(NULL, &id), INVALID, NULL);
  succeeds(TRITONSERVER_InferenceTraceParentId(trace, &parent));
  expect(parent == 0);
  fails(TRITONSERVER_InferenceTraceParentId(trace, NULL), INVALID, NULL);
  succeeds(TRITONSERVER_InferenceTraceModelName(trace, &text));
  expect(is(text, "plain") || is(text, "sums"));
  fails(TRITONSERVER_InferenceTraceModelName(NULL, &text), INVALID, NULL);
  succeeds(TRITONSERVER_InferenceTraceModelVersion(trace, &version));
  expect(version == 1);
  fails(TRITONSERVER_InferenceTraceModelVersion(NULL, &version), INVALID, NULL);
  succeeds(TRITONSERVER_InferenceTraceRequestId(trace, &text));
  fails(TRITONSERVER_InferenceTraceRequestId(trace, NULL), INVALID, NULL);
  succeeds(TRITONSERVER_InferenceTraceContext(trace, &text));
  fails(TRITONSERVER_InferenceTraceContext(NULL, &text), INVALID, NULL);
  succeeds(TRITONSERVER_InferenceTraceReportActivity(trace, 5, "MINE"));
  fails(TRITONSERVER_InferenceTraceReportActivity(trace, 5, NULL), INVALID, NULL);
  succeeds(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child));
  fails(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, NULL), INVALID, NULL);
  succeeds(TRITONSERVER_InferenceTraceDelete(child));
  refuses(TRITONSERVER_InferenceTraceDelete, TRITONSERVER_InferenceTraceDelete(NULL) == NULL);
}

/* The only input's element. */
static uint32_t input_of(TRITONBACKEND_Request* request, TRITONSERVER_DataType expected) {
  TRITONBACKEND_Input* input = NULL;
  TRITONBACKEND_Input* same = NULL;
  const char* name = NULL;
  const int64_t* shape = NULL;
  const void* buffer = NULL;
  const void* other = NULL;
  uint32_t count = 0, dims_count = 0, value = 0;
  uint64_t byte_size = 0;
  int64_t memory_type_id = 9;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  TRITONSERVER_BufferAttributes* attributes = NULL;

  succeeds(TRITONBACKEND_RequestInputCount(request, &count));
  expect(count >= 1);
  fails(TRITONBACKEND_RequestInputCount(NULL, &count), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestInputName(request, 0, &name));
  fails(TRITONBACKEND_RequestInputName(request, count, &name), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestInputByIndex(request, 0, &same));
  fails(TRITONBACKEND_RequestInputByIndex(request, count, &same), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestInput(request, "INPUT0", &input));
  expect(!is(name, "INPUT0") || same == input);
  fails(TRITONBACKEND_RequestInput(request, "NONE", &input), INVALID, NULL);

  succeeds(TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims_count, &byte_size, &count));
  expect(is(name, "INPUT0") && datatype == expected && dims_count == 1 && shape[0] == 1 && byte_size == 4);
  expect(count == 1);
  fails(TRITONBACKEND_InputProperties(NULL, &name, &datatype, &shape, &dims_count, &byte_size, &count), INVALID, NULL);
  succeeds(TRITONBACKEND_InputPropertiesForHostPolicy(input, "gpu_0", NULL, NULL, NULL, NULL, &byte_size, &count));
  expect(byte_size == 4 && count == 1);
  fails(TRITONBACKEND_InputPropertiesForHostPolicy(NULL, NULL, NULL, NULL, NULL, NULL, &byte_size, &count), INVALID,
        NULL);
  succeeds(TRITONBACKEND_InputBuffer(input, 0, &buffer, &byte_size, &memory_type, &memory_type_id));
  expect(byte_size == 4 && memory_type == TRITONSERVER_MEMORY_CPU && memory_type_id == 0);
  fails(TRITONBACKEND_InputBuffer(input, 1, &buffer, &byte_size, &memory_type, &memory_type_id), INVALID, NULL);
  succeeds(TRITONBACKEND_InputBufferForHostPolicy(input, NULL, 0, &other, &byte_size, &memory_type, &memory_type_id));
  expect(other == buffer);
  fails(TRITONBACKEND_InputBufferForHostPolicy(input, NULL, 1, &other, &byte_size, &memory_type, &memory_type_id),
        INVALID, NULL);
  succeeds(TRITONBACKEND_InputBufferAttributes(input, 0, &other, &attributes));
  size_t known_size = 0;
  expect(other == buffer && TRITONSERVER_BufferAttributesByteSize(attributes, &known_size) == NULL && known_size == 4);
  fails(TRITONBACKEND_InputBufferAttributes(input, 1, &other, &attributes), INVALID, NULL);
  memcpy(&value, buffer, sizeof value);
  return value;
}

static void outputs_of(TRITONBACKEND_Request* request) {
  const char* name = NULL;
  uint32_t count = 0;
  size_t byte_size = 4;
  int64_t memory_type_id = 9;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_GPU;
  succeeds(TRITONBACKEND_RequestOutputCount(request, &count));
  expect(count == 1);
  fails(TRITONBACKEND_RequestOutputCount(NULL, &count), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestOutputName(request, 0, &name));
  expect(is(name, "OUTPUT0"));
  fails(TRITONBACKEND_RequestOutputName(request, 1, &name), INVALID, NULL);
  succeeds(TRITONBACKEND_RequestOutputBufferProperties(request, "OUTPUT0", &byte_size, &memory_type, &memory_type_id));
  expect(memory_type == TRITONSERVER_MEMORY_CPU && memory_type_id == 0);
  fails(TRITONBACKEND_RequestOutputBufferProperties(request, NULL, &byte_size, &memory_type, &memory_type_id), INVALID,
        NULL);
}

/* Responses. */

/* A response of a factory, filled with the value. */
static TRITONBACKEND_Response* response_of(
    TRITONBACKEND_ResponseFactory* factory, TRITONSERVER_DataType datatype, uint32_t value) {
  const int64_t shape[] = {1};
  const int64_t* found_shape = NULL;
  const char* name = NULL;
  uint64_t dims_count = 0;
  int64_t memory_type_id = 0;
  size_t known_size = 0;
  void* buffer = NULL;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  TRITONSERVER_DataType found = TRITONSERVER_TYPE_INVALID;
  TRITONSERVER_BufferAttributes* attributes = NULL;
  TRITONBACKEND_Response* response = NULL;
  TRITONBACKEND_Output* output = NULL;

  succeeds(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
  fails(TRITONBACKEND_ResponseNewFromFactory(&response, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseSetStringParameter(response, "text", "a"));
  fails(TRITONBACKEND_ResponseSetStringParameter(response, "text", NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseSetIntParameter(response, "int", 1));
  fails(TRITONBACKEND_ResponseSetIntParameter(response, NULL, 1), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseSetBoolParameter(response, "bool", true));
  fails(TRITONBACKEND_ResponseSetBoolParameter(NULL, "bool", true), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseSetDoubleParameter(response, "double", 0.5));
  fails(TRITONBACKEND_ResponseSetDoubleParameter(response, NULL, 0.5), INVALID, NULL);

  fails(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", (TRITONSERVER_DataType)99, shape, 1), INVALID, NULL);
  fails(TRITONBACKEND_ResponseOutput(response, &output, NULL, datatype, shape, 1), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", datatype, shape, 1));
  succeeds(TRITONBACKEND_InferenceResponseOutputByName(response, "OUTPUT0", &found, &found_shape, &dims_count));
  expect(found == datatype && dims_count == 1 && found_shape[0] == 1);
  fails(TRITONBACKEND_InferenceResponseOutputByName(NULL, "OUTPUT0", &found, &found_shape, &dims_count), INVALID, NULL);
  succeeds(TRITONBACKEND_InferenceResponseOutput(response, 0, &name, &found, &found_shape, &dims_count));
  expect(is(name, "OUTPUT0"));
  fails(TRITONBACKEND_InferenceResponseOutput(response, 1, &name, &found, &found_shape, &dims_count), INVALID, NULL);
  succeeds(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof value, &memory_type, &memory_type_id));
  expect(memory_type == TRITONSERVER_MEMORY_CPU && memory_type_id == 0);
  memcpy(buffer, &value, sizeof value);
  fails(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof value, &memory_type, &memory_type_id),
        TRITONSERVER_ERROR_ALREADY_EXISTS, "allocated buffer for output 'OUTPUT0' already exists");
  succeeds(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
  expect(TRITONSERVER_BufferAttributesByteSize(attributes, &known_size) == NULL && known_size == sizeof value);
  fails(TRITONBACKEND_OutputBufferAttributes(NULL, &attributes), INVALID, NULL);
  return response;
}

static void statistics_of(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_ResponseFactory* factory) {
  TRITONBACKEND_ModelInstanceResponseStatistics* statistics = NULL;
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&statistics));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsNew(NULL), INVALID, NULL);
  fails(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, instance));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(NULL, instance), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(statistics, factory));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(NULL, factory), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, 10));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(NULL, 10), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(statistics, 20));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(NULL, 20), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, 30));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(NULL, 30), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, NULL));
  fails(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(NULL, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics));
  succeeds(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics));
  refuses(TRITONBACKEND_ModelInstanceResponseStatisticsDelete,
          TRITONBACKEND_ModelInstanceResponseStatisticsDelete(NULL) == NULL);
}

static void answer(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request,
                   TRITONSERVER_DataType datatype, uint32_t value) {
  TRITONBACKEND_Response* response = NULL;
  TRITONBACKEND_ResponseFactory* factory = NULL;
  bool is_cancelled = true;
  succeeds(TRITONBACKEND_ResponseNew(&response, request));
  fails(TRITONBACKEND_ResponseNew(&response, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseDelete(response));
  refuses(TRITONBACKEND_ResponseDelete, TRITONBACKEND_ResponseDelete(NULL) == NULL);
  succeeds(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  fails(TRITONBACKEND_ResponseFactoryNew(&factory, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &is_cancelled));
  expect(!is_cancelled);
  fails(TRITONBACKEND_ResponseFactoryIsCancelled(factory, NULL), INVALID, NULL);
  response = response_of(factory, datatype, value);
  statistics_of(instance, factory);
  succeeds(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
  fails(TRITONBACKEND_ResponseSend(NULL, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseFactorySendFlags(factory, 0));
  fails(TRITONBACKEND_ResponseFactorySendFlags(NULL, 0), INVALID, NULL);
  succeeds(TRITONBACKEND_ResponseFactoryDelete(factory));
  refuses(TRITONBACKEND_ResponseFactoryDelete, TRITONBACKEND_ResponseFactoryDelete(NULL) == NULL);
}

static void state_of(TRITONBACKEND_Request* request, bool has_states) {
  const int64_t shape[] = {1};
  int64_t memory_type_id = 9;
  size_t byte_size = 0;
  void* buffer = NULL;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  TRITONSERVER_BufferAttributes* attributes = NULL;
  TRITONBACKEND_State* state = NULL;
  const TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INT32;
  if (!has_states) {
    fails(TRITONBACKEND_StateNew(&state, request, "AFTER", datatype, shape, 1), INVALID,
          "unable to add state 'AFTER'. State configuration is missing for model 'plain'.");
    return;
  }
  fails(TRITONBACKEND_StateNew(&state, request, "NONE", datatype, shape, 1), INVALID, NULL);
  succeeds(TRITONBACKEND_StateNew(&state, request, "AFTER", datatype, shape, 1));
  succeeds(TRITONBACKEND_StateBuffer(state, &buffer, 4, &memory_type, &memory_type_id));
  expect(memory_type == TRITONSERVER_MEMORY_CPU && memory_type_id == 0);
  memset(buffer, 0, 4);
  fails(TRITONBACKEND_StateBuffer(NULL, &buffer, 4, &memory_type, &memory_type_id), INVALID, NULL);
  succeeds(TRITONBACKEND_StateBufferAttributes(state, &attributes));
  expect(TRITONSERVER_BufferAttributesByteSize(attributes, &byte_size) == NULL && byte_size == 4);
  fails(TRITONBACKEND_StateBufferAttributes(state, NULL), INVALID, NULL);
  succeeds(TRITONBACKEND_StateUpdate(state));
  fails(TRITONBACKEND_StateUpdate(NULL), INVALID, NULL);
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t request_count) {
  TRITONBACKEND_Model* model = NULL;
  void* has_states = NULL;
  expect(TRITONBACKEND_ModelInstanceModel(instance, &model) == NULL);
  expect(TRITONBACKEND_ModelState(model, &has_states) == NULL);
  const TRITONSERVER_DataType datatype = has_states ? TRITONSERVER_TYPE_INT32 : TRITONSERVER_TYPE_FP32;
  for (uint32_t at = 0; at < request_count; ++at) {
    TRITONBACKEND_Request* request = requests[at];
    identity_of(request);
    parameters_of(request);
    trace_of(request);
    uint32_t value = input_of(request, datatype);
    outputs_of(request);
    state_of(request, has_states != NULL);
    answer(instance, request, datatype, value);
    succeeds(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, true, 10, 20, 30, 40));
    fails(TRITONBACKEND_ModelInstanceReportStatistics(NULL, request, true, 10, 20, 30, 40), INVALID, NULL);
    fails(TRITONBACKEND_RequestRelease(NULL, TRITONSERVER_REQUEST_RELEASE_ALL), INVALID, NULL);
    fails(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE), INVALID,
          "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to "
          "handle such a flag.");
    succeeds(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  succeeds(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, request_count, 10, 20, 30, 40));
  fails(TRITONBACKEND_ModelInstanceReportBatchStatistics(NULL, request_count, 10, 20, 30, 40), INVALID, NULL);
  return NULL;
}
