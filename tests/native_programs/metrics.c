/* Custom metrics: families, labels, buckets, and what each kind can do (contract/metrics.md section 2,
 * contract/c_api.md section 4). */

#include <pthread.h>

#include "check.h"

#define INVALID TRITONSERVER_ERROR_INVALID_ARG
#define UNSUPPORTED TRITONSERVER_ERROR_UNSUPPORTED

static TRITONSERVER_Parameter* label(const char* name, const char* value) {
  TRITONSERVER_Parameter* made = TRITONSERVER_ParameterNew(name, TRITONSERVER_PARAMETER_STRING, value);
  expect(made != NULL);
  return made;
}

static double value_of(TRITONSERVER_Metric* metric) {
  double value = -1;
  succeeds(TRITONSERVER_MetricValue(metric, &value));
  return value;
}

static TRITONSERVER_MetricFamily* family_of(TRITONSERVER_MetricKind kind, const char* name) {
  TRITONSERVER_MetricFamily* family = NULL;
  succeeds(TRITONSERVER_MetricFamilyNew(&family, kind, name, "What it counts"));
  TRITONSERVER_MetricKind found = (TRITONSERVER_MetricKind)99;
  succeeds(TRITONSERVER_GetMetricFamilyKind(family, &found));
  expect(found == kind);
  return family;
}

static void families(void) {
  TRITONSERVER_MetricFamily* family = NULL;
  const TRITONSERVER_MetricKind kind = TRITONSERVER_METRIC_KIND_COUNTER;
  fails(TRITONSERVER_MetricFamilyNew(NULL, kind, "name", ""), INVALID, NULL);
  fails(TRITONSERVER_MetricFamilyNew(&family, kind, NULL, ""), INVALID, NULL);
  fails(TRITONSERVER_MetricFamilyNew(&family, kind, "name", NULL), INVALID, NULL);
  fails(TRITONSERVER_MetricFamilyNew(&family, kind, "a name", ""), INVALID, "invalid metric name 'a name'");
  /* A family of the core: as Triton has it, of its own kind only. */
  fails(TRITONSERVER_MetricFamilyNew(&family, kind, "nv_gpu_power_limit", ""), INVALID,
      "metric family 'nv_gpu_power_limit' exists already as a gauge");
  TRITONSERVER_MetricFamily* core = NULL;
  succeeds(TRITONSERVER_MetricFamilyNew(&core, TRITONSERVER_METRIC_KIND_GAUGE, "nv_gpu_power_limit", ""));
  succeeds(TRITONSERVER_MetricFamilyDelete(core));
  fails(TRITONSERVER_MetricFamilyNew(&family, kind, "nereid_pool_bytes_in_use", ""), INVALID, NULL);
  fails(TRITONSERVER_MetricFamilyNew(&family, (TRITONSERVER_MetricKind)3, "name", ""), INVALID,
      "Unsupported kind passed to MetricFamily constructor.");
  expect(family == NULL);

  TRITONSERVER_MetricFamily* first = family_of(kind, "shared_total");
  TRITONSERVER_MetricFamily* second = family_of(kind, "shared_total");
  fails(TRITONSERVER_MetricFamilyNew(&family, TRITONSERVER_METRIC_KIND_GAUGE, "shared_total", ""), INVALID,
      "metric family 'shared_total' exists already as a counter");
  fails(TRITONSERVER_GetMetricFamilyKind(NULL, NULL), INVALID, NULL);
  fails(TRITONSERVER_GetMetricFamilyKind(first, NULL), INVALID, NULL);

  /* Handles with equal labels share a value, also through different handles of the family. */
  TRITONSERVER_Parameter* one[] = {label("a", "1"), label("b", "2")};
  TRITONSERVER_Parameter* other[] = {one[1], one[0]};
  TRITONSERVER_Metric *here = NULL, *there = NULL, *bare = NULL;
  succeeds(TRITONSERVER_MetricNew(&here, first, (const TRITONSERVER_Parameter**)one, 2));
  succeeds(TRITONSERVER_MetricNew(&there, second, (const TRITONSERVER_Parameter**)other, 2));
  succeeds(TRITONSERVER_MetricNewWithArgs(&bare, second, NULL, 0, NULL));
  TRITONSERVER_ParameterDelete(one[0]);
  TRITONSERVER_ParameterDelete(one[1]);
  succeeds(TRITONSERVER_MetricIncrement(here, 1.5));
  succeeds(TRITONSERVER_MetricIncrement(there, 2));
  expect(value_of(here) == 3.5 && value_of(there) == 3.5 && value_of(bare) == 0);
  const char* dependent = "Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete.";
  fails(TRITONSERVER_MetricFamilyDelete(first), TRITONSERVER_ERROR_INTERNAL, dependent);
  succeeds(TRITONSERVER_MetricDelete(here));
  succeeds(TRITONSERVER_MetricFamilyDelete(first));
  expect(value_of(there) == 3.5);
  fails(TRITONSERVER_MetricFamilyDelete(second), TRITONSERVER_ERROR_INTERNAL, dependent);
  succeeds(TRITONSERVER_MetricDelete(there));
  fails(TRITONSERVER_MetricFamilyDelete(second), TRITONSERVER_ERROR_INTERNAL, dependent);
  succeeds(TRITONSERVER_MetricDelete(bare));
  succeeds(TRITONSERVER_MetricFamilyDelete(second));
  fails(TRITONSERVER_MetricFamilyDelete(NULL), INVALID, NULL);
  fails(TRITONSERVER_MetricDelete(NULL), INVALID, NULL);

  /* The name is free again, for any kind. */
  succeeds(TRITONSERVER_MetricFamilyDelete(family_of(TRITONSERVER_METRIC_KIND_GAUGE, "shared_total")));
}

static void labels(void) {
  TRITONSERVER_MetricFamily* family = family_of(TRITONSERVER_METRIC_KIND_GAUGE, "labelled");
  TRITONSERVER_Metric* metric = NULL;
  int64_t number = 7;
  TRITONSERVER_Parameter* given[] = {
      label("fine", ""), TRITONSERVER_ParameterNew("number", TRITONSERVER_PARAMETER_INT, &number), NULL};
  const TRITONSERVER_Parameter** labels = (const TRITONSERVER_Parameter**)given;
  fails(TRITONSERVER_MetricNew(&metric, family, labels, 2), INVALID,
      "Parameter [number] must have a type of TRITONSERVER_PARAMETER_STRING to be added as a label.");
  fails(TRITONSERVER_MetricNew(&metric, family, labels + 2, 1), INVALID, NULL);
  fails(TRITONSERVER_MetricNew(&metric, family, NULL, 1), INVALID, NULL);
  fails(TRITONSERVER_MetricNew(&metric, family, labels, UINT64_MAX), INVALID, NULL);
  fails(TRITONSERVER_MetricNew(NULL, family, labels, 1), INVALID, NULL);
  fails(TRITONSERVER_MetricNew(&metric, NULL, labels, 1), INVALID, NULL);
  const TRITONSERVER_Parameter* twice[] = {given[0], given[0]};
  fails(TRITONSERVER_MetricNew(&metric, family, twice, 2), INVALID, "label 'fine' is given twice");
  const char* names[] = {"", "a b", "1a", "__a", "a:b", "\xff"};
  for (size_t index = 0; index < sizeof names / sizeof *names; index++) {
    TRITONSERVER_Parameter* bad = label(names[index], "x");
    const TRITONSERVER_Parameter* single[] = {bad};
    fails(TRITONSERVER_MetricNew(&metric, family, single, 1), INVALID, NULL);
    TRITONSERVER_ParameterDelete(bad);
  }
  expect(metric == NULL);
  succeeds(TRITONSERVER_MetricNew(&metric, family, labels, 1));
  succeeds(TRITONSERVER_MetricDelete(metric));
  succeeds(TRITONSERVER_MetricFamilyDelete(family));
  TRITONSERVER_ParameterDelete(given[0]);
  TRITONSERVER_ParameterDelete(given[1]);
}

static void kinds(void) {
  TRITONSERVER_MetricFamily* families[] = {family_of(TRITONSERVER_METRIC_KIND_COUNTER, "count_total"),
      family_of(TRITONSERVER_METRIC_KIND_GAUGE, "level"), family_of(TRITONSERVER_METRIC_KIND_HISTOGRAM, "spread")};
  TRITONSERVER_Metric *counter = NULL, *gauge = NULL, *histogram = NULL;
  TRITONSERVER_MetricArgs* args = NULL;
  const double bounds[] = {0.1, 1, 10}, unsorted[] = {1, 1};
  succeeds(TRITONSERVER_MetricArgsNew(&args));
  fails(TRITONSERVER_MetricArgsNew(NULL), INVALID, NULL);
  fails(TRITONSERVER_MetricNew(&histogram, families[2], NULL, 0), INVALID,
      "Bucket boundaries not found in Metric args.");
  fails(TRITONSERVER_MetricNewWithArgs(&histogram, families[2], NULL, 0, NULL), INVALID,
      "Bucket boundaries not found in Metric args.");
  fails(TRITONSERVER_MetricNewWithArgs(&histogram, families[2], NULL, 0, args), INVALID,
      "Metric args not set to histogram kind.");
  fails(TRITONSERVER_MetricArgsSetHistogram(NULL, bounds, 3), INVALID, NULL);
  fails(TRITONSERVER_MetricArgsSetHistogram(args, NULL, 3), INVALID, NULL);
  fails(TRITONSERVER_MetricArgsSetHistogram(args, bounds, UINT64_MAX), INVALID, NULL);
  succeeds(TRITONSERVER_MetricArgsSetHistogram(args, unsorted, 2));
  fails(TRITONSERVER_MetricNewWithArgs(&histogram, families[2], NULL, 0, args), INVALID, NULL);
  succeeds(TRITONSERVER_MetricArgsSetHistogram(args, bounds, 3));
  fails(TRITONSERVER_MetricNewWithArgs(&counter, families[0], NULL, 0, args), INVALID,
      "Unexpected args found in counter Metric constructor.");
  fails(TRITONSERVER_MetricNewWithArgs(&gauge, families[1], NULL, 0, args), INVALID,
      "Unexpected args found in gauge Metric constructor.");
  expect(counter == NULL && gauge == NULL && histogram == NULL);
  succeeds(TRITONSERVER_MetricNewWithArgs(&histogram, families[2], NULL, 0, args));
  succeeds(TRITONSERVER_MetricArgsDelete(args));
  succeeds(TRITONSERVER_MetricArgsDelete(NULL));
  succeeds(TRITONSERVER_MetricNew(&counter, families[0], NULL, 0));
  succeeds(TRITONSERVER_MetricNew(&gauge, families[1], NULL, 0));

  TRITONSERVER_Metric* metrics[] = {counter, gauge, histogram};
  for (int kind = 0; kind < 3; kind++) {
    TRITONSERVER_MetricKind found = (TRITONSERVER_MetricKind)99;
    succeeds(TRITONSERVER_GetMetricKind(metrics[kind], &found));
    expect((int)found == kind);
  }
  fails(TRITONSERVER_GetMetricKind(NULL, NULL), INVALID, NULL);
  fails(TRITONSERVER_GetMetricKind(counter, NULL), INVALID, NULL);

  fails(TRITONSERVER_MetricIncrement(counter, -1), INVALID,
      "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.");
  fails(TRITONSERVER_MetricSet(counter, 1), UNSUPPORTED, "TRITONSERVER_METRIC_KIND_COUNTER does not support Set");
  fails(TRITONSERVER_MetricObserve(counter, 1), UNSUPPORTED,
      "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe");
  succeeds(TRITONSERVER_MetricIncrement(counter, 0));
  succeeds(TRITONSERVER_MetricIncrement(counter, 2.25));
  expect(value_of(counter) == 2.25);

  fails(TRITONSERVER_MetricObserve(gauge, 1), UNSUPPORTED, "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe");
  succeeds(TRITONSERVER_MetricSet(gauge, 10));
  succeeds(TRITONSERVER_MetricIncrement(gauge, -12.5));
  expect(value_of(gauge) == -2.5);

  double value = 7;
  fails(TRITONSERVER_MetricValue(histogram, &value), UNSUPPORTED,
      "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value");
  expect(value == 7);
  fails(TRITONSERVER_MetricIncrement(histogram, 1), UNSUPPORTED,
      "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment");
  fails(TRITONSERVER_MetricSet(histogram, 1), UNSUPPORTED, "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set");
  succeeds(TRITONSERVER_MetricObserve(histogram, 0.5));

  fails(TRITONSERVER_MetricValue(NULL, &value), INVALID, NULL);
  fails(TRITONSERVER_MetricValue(gauge, NULL), INVALID, NULL);
  fails(TRITONSERVER_MetricIncrement(NULL, 1), INVALID, NULL);
  fails(TRITONSERVER_MetricSet(NULL, 1), INVALID, NULL);
  fails(TRITONSERVER_MetricObserve(NULL, 1), INVALID, NULL);
  for (int kind = 0; kind < 3; kind++) {
    succeeds(TRITONSERVER_MetricDelete(metrics[kind]));
    succeeds(TRITONSERVER_MetricFamilyDelete(families[kind]));
  }
}

#define TIMES 20000

static void* add_often(void* metric) {
  for (int time = 0; time < TIMES; time++) {
    if (TRITONSERVER_MetricIncrement((TRITONSERVER_Metric*)metric, 0.5) != NULL) return metric;
  }
  return NULL;
}

static void at_once(void) {
  TRITONSERVER_MetricFamily* family = family_of(TRITONSERVER_METRIC_KIND_GAUGE, "busy");
  TRITONSERVER_Metric* metric = NULL;
  succeeds(TRITONSERVER_MetricNew(&metric, family, NULL, 0));
  pthread_t threads[4];
  for (int at = 0; at < 4; at++) expect(pthread_create(&threads[at], NULL, add_often, metric) == 0);
  for (int at = 0; at < 4; at++) {
    void* failed = NULL;
    expect(pthread_join(threads[at], &failed) == 0 && failed == NULL);
  }
  expect(value_of(metric) == 4 * TIMES / 2);
  succeeds(TRITONSERVER_MetricDelete(metric));
  succeeds(TRITONSERVER_MetricFamilyDelete(family));
}

int main(void) {
  families();
  labels();
  kinds();
  at_once();
  return 0;
}
