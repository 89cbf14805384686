/* A backend that keeps metrics of all three kinds for each model, and those that load reports are made of:
 *
 *   gauges_requests_total      one more for each request;
 *   gauges_free                starts at 10, one less for each request;
 *   gauges_spread              observes 1, 2, 3, … for the requests of a model, with bounds at 1 and 2.5;
 *   nv_trt_llm_kv_cache_block_metrics
 *                              64 tokens in each of 8 blocks, of which a model that answered n requests uses n;
 *   nv_inference_pending_request_count
 *                              42, in the family that the server has under this name.
 *
 * Every request is answered with the number of requests so far, as OUTPUT0. What the calls are is told on stdout. */

#include <stdatomic.h>

#include "check.h"

#define EXPORT __attribute__((visibility("default")))

enum { COUNTER, GAUGE, HISTOGRAM, TOKENS, USED, MAX, CORE, METRICS };

static const TRITONSERVER_MetricKind KINDS[METRICS] = {TRITONSERVER_METRIC_KIND_COUNTER,
    TRITONSERVER_METRIC_KIND_GAUGE, TRITONSERVER_METRIC_KIND_HISTOGRAM, TRITONSERVER_METRIC_KIND_GAUGE,
    TRITONSERVER_METRIC_KIND_GAUGE, TRITONSERVER_METRIC_KIND_GAUGE, TRITONSERVER_METRIC_KIND_GAUGE};
static const char* const NAMES[METRICS] = {"gauges_requests_total", "gauges_free", "gauges_spread",
    "nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_kv_cache_block_metrics",
    "nv_inference_pending_request_count"};
static const char* const BLOCKS[METRICS] = {NULL, NULL, NULL, "tokens_per", "used", "max", "none"};

typedef struct {
  TRITONSERVER_MetricFamily* families[METRICS];
  TRITONSERVER_Metric* metrics[METRICS];
  atomic_int count;
} State;

static TRITONSERVER_Parameter* label(const char* name, const char* value) {
  TRITONSERVER_Parameter* made = TRITONSERVER_ParameterNew(name, TRITONSERVER_PARAMETER_STRING, value);
  expect(made != NULL);
  return made;
}

static void make(State* state, int at, const char* model) {
  succeeds(TRITONSERVER_MetricFamilyNew(&state->families[at], KINDS[at], NAMES[at], "Of the backend in tests"));
  TRITONSERVER_Parameter* labels[] = {label("model", model), label("kv_cache_block_type", BLOCKS[at] ? BLOCKS[at] : "")};
  TRITONSERVER_MetricArgs* args = NULL;
  const double bounds[] = {1, 2.5};
  if (at == HISTOGRAM) {
    succeeds(TRITONSERVER_MetricArgsNew(&args));
    succeeds(TRITONSERVER_MetricArgsSetHistogram(args, bounds, 2));
  }
  succeeds(TRITONSERVER_MetricNewWithArgs(&state->metrics[at], state->families[at],
      (const TRITONSERVER_Parameter**)labels, BLOCKS[at] ? 2 : 1, args));
  if (args != NULL) succeeds(TRITONSERVER_MetricArgsDelete(args));
  TRITONSERVER_ParameterDelete(labels[0]);
  TRITONSERVER_ParameterDelete(labels[1]);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const char* name;
  succeeds(TRITONBACKEND_ModelName(model, &name));
  State* state = calloc(1, sizeof *state);
  expect(state != NULL);
  for (int at = 0; at < METRICS; at++) make(state, at, name);
  succeeds(TRITONSERVER_MetricSet(state->metrics[GAUGE], 10));
  succeeds(TRITONSERVER_MetricSet(state->metrics[TOKENS], 64));
  succeeds(TRITONSERVER_MetricSet(state->metrics[MAX], 8));
  succeeds(TRITONSERVER_MetricSet(state->metrics[CORE], 42));
  return TRITONBACKEND_ModelSetState(model, state);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  State* state;
  succeeds(TRITONBACKEND_ModelState(model, (void**)&state));
  for (int at = 0; at < METRICS; at++) {
    fails(TRITONSERVER_MetricFamilyDelete(state->families[at]), TRITONSERVER_ERROR_INTERNAL,
        "Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete.");
    succeeds(TRITONSERVER_MetricDelete(state->metrics[at]));
    succeeds(TRITONSERVER_MetricFamilyDelete(state->families[at]));
  }
  free(state);
  return NULL;
}

static void answer(State* state, TRITONBACKEND_Request* request) {
  const int count = atomic_fetch_add(&state->count, 1) + 1;
  succeeds(TRITONSERVER_MetricIncrement(state->metrics[COUNTER], 1));
  succeeds(TRITONSERVER_MetricIncrement(state->metrics[GAUGE], -1));
  succeeds(TRITONSERVER_MetricObserve(state->metrics[HISTOGRAM], count));
  succeeds(TRITONSERVER_MetricSet(state->metrics[USED], count));
  fails(TRITONSERVER_MetricSet(state->metrics[COUNTER], 0), TRITONSERVER_ERROR_UNSUPPORTED,
      "TRITONSERVER_METRIC_KIND_COUNTER does not support Set");
  TRITONBACKEND_Response* response;
  TRITONBACKEND_Output* output;
  const int64_t shape[] = {1};
  void* buffer;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  succeeds(TRITONBACKEND_ResponseNew(&response, request));
  succeeds(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", TRITONSERVER_TYPE_INT32, shape, 1));
  succeeds(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof(int32_t), &memory_type, &memory_type_id));
  memcpy(buffer, &(int32_t){count}, sizeof(int32_t));
  succeeds(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
  succeeds(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
    TRITONBACKEND_Request** requests, const uint32_t count) {
  TRITONBACKEND_Model* model;
  State* state;
  succeeds(TRITONBACKEND_ModelInstanceModel(instance, &model));
  succeeds(TRITONBACKEND_ModelState(model, (void**)&state));
  for (uint32_t index = 0; index < count; index++) answer(state, requests[index]);
  return NULL;
}
