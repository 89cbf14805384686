/* A backend whose model has every metric that the server gives it: `hoarder_total` with its name, numbers
 * from 0 on and a long text as labels, until one is refused. A model that gets none at all fails to load, with the server's error.
 * Requests are not executed. */

#include "check.h"

#define EXPORT __attribute__((visibility("default")))

enum { METRICS_MAX = 1 << 20 };

typedef struct {
  TRITONSERVER_MetricFamily* family;
  TRITONSERVER_Metric** metrics;
  int count;
} State;

static TRITONSERVER_Parameter* label(const char* name, const char* value) {
  TRITONSERVER_Parameter* made = TRITONSERVER_ParameterNew(name, TRITONSERVER_PARAMETER_STRING, value);
  expect(made != NULL);
  return made;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const char* name;
  char padding[512] = {0};
  memset(padding, 'x', sizeof padding - 1);
  succeeds(TRITONBACKEND_ModelName(model, &name));
  State* state = calloc(1, sizeof *state);
  expect(state != NULL);
  TRITONSERVER_Error* error = TRITONSERVER_MetricFamilyNew(
      &state->family, TRITONSERVER_METRIC_KIND_COUNTER, "hoarder_total", "Of the backend in tests");
  if (error == NULL) {
    state->metrics = calloc(METRICS_MAX, sizeof *state->metrics);
    expect(state->metrics != NULL);
    while (error == NULL) {
      expect(state->count < METRICS_MAX);
      char number[16];
      snprintf(number, sizeof number, "%d", state->count);
      TRITONSERVER_Parameter* labels[] = {label("model", name), label("number", number), label("padding", padding)};
      error = TRITONSERVER_MetricNew(
          &state->metrics[state->count], state->family, (const TRITONSERVER_Parameter**)labels, 3);
      for (int at = 0; at < 3; at++) TRITONSERVER_ParameterDelete(labels[at]);
      state->count += error == NULL;
    }
    if (state->count > 0) {
      fails(error, TRITONSERVER_ERROR_UNAVAILABLE, "the server holds 16384 metrics at most");
      return TRITONBACKEND_ModelSetState(model, state);
    }
    succeeds(TRITONSERVER_MetricFamilyDelete(state->family));
  }
  free(state->metrics);
  free(state);
  return error;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  State* state;
  succeeds(TRITONBACKEND_ModelState(model, (void**)&state));
  if (state == NULL) return NULL;
  for (int at = 0; at < state->count; at++) expect(TRITONSERVER_MetricDelete(state->metrics[at]) == NULL);
  succeeds(TRITONSERVER_MetricFamilyDelete(state->family));
  free(state->metrics);
  free(state);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
    TRITONBACKEND_Request** requests, const uint32_t count) {
  (void)instance;
  for (uint32_t at = 0; at < count; at++) {
    succeeds(TRITONBACKEND_RequestRelease(requests[at], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
