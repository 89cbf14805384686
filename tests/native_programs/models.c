/* What a server says of its models, and how they come and go.
 *
 * Arguments: a repository with `echo` (batches), `stream` (decoupled), `pair` (an ensemble of `echo`); another one with
 * the directory `other`; the path of a third one that is empty.
 *
 * The documents are told as `= <path of HTTP> <document>`, to be held against those of a server with ports. */

#include "check.h"

#include <sys/stat.h>
#include <unistd.h>

#define INVALID TRITONSERVER_ERROR_INVALID_ARG
#define NOT_FOUND TRITONSERVER_ERROR_NOT_FOUND

static const char* no_server = "server must not be NULL";
static const char* no_name = "model_name must not be NULL";
static const char* unknown = "Request for unknown model: 'nosuch' is not found";

static TRITONSERVER_Server* start(const char* repository, TRITONSERVER_ModelControlMode mode, const char** models) {
  TRITONSERVER_ServerOptions* options = NULL;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  succeeds(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repository));
  succeeds(TRITONSERVER_ServerOptionsSetBackendDirectory(options, "/nonexistent/backends"));
  succeeds(TRITONSERVER_ServerOptionsSetModelControlMode(options, mode));
  succeeds(TRITONSERVER_ServerOptionsSetStrictModelConfig(options, false));
  for (; models != NULL && *models != NULL; ++models)
    succeeds(TRITONSERVER_ServerOptionsSetStartupModel(options, *models));
  TRITONSERVER_Server* server = NULL;
  succeeds(TRITONSERVER_ServerNew(&server, options));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
  return server;
}

static bool contains(const char* text, size_t size, const char* part) {
  size_t length = strlen(part);
  for (size_t at = 0; at + length <= size; ++at)
    if (memcmp(text + at, part, length) == 0) return true;
  return false;
}

/* Tells a document and deletes it. */
static void tell(const char* path, TRITONSERVER_Message* message) {
  const char* base = NULL;
  size_t size = 0;
  succeeds(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  printf("= %s %.*s\n", path, (int)size, base);
  fflush(stdout);
  succeeds(TRITONSERVER_MessageDelete(message));
}

static void properties(TRITONSERVER_Server* server) {
  uint32_t flags = 0;
  void* more = &flags;
  succeeds(TRITONSERVER_ServerModelBatchProperties(server, "echo", -1, &flags, &more));
  expect(flags == TRITONSERVER_BATCH_FIRST_DIM && more == NULL);
  succeeds(TRITONSERVER_ServerModelBatchProperties(server, "stream", 1, &flags, NULL));
  expect(flags == TRITONSERVER_BATCH_UNKNOWN);
  fails(TRITONSERVER_ServerModelBatchProperties(server, "nosuch", -1, &flags, NULL), NOT_FOUND, unknown);
  fails(TRITONSERVER_ServerModelBatchProperties(server, "echo", -1, NULL, NULL), INVALID, NULL);
  more = &flags;
  succeeds(TRITONSERVER_ServerModelTransactionProperties(server, "stream", -1, &flags, &more));
  expect(flags == TRITONSERVER_TXN_DECOUPLED && more == NULL);
  succeeds(TRITONSERVER_ServerModelTransactionProperties(server, "echo", -1, &flags, NULL));
  expect(flags == TRITONSERVER_TXN_ONE_TO_ONE);
  fails(TRITONSERVER_ServerModelTransactionProperties(server, "echo", -2, &flags, NULL), NOT_FOUND,
        "Request for unknown model: 'echo' version -2 is not found");
}

static void documents(TRITONSERVER_Server* server) {
  TRITONSERVER_Message* message = NULL;
  succeeds(TRITONSERVER_ServerMetadata(server, &message));
  tell("/v2", message);
  fails(TRITONSERVER_ServerMetadata(NULL, &message), INVALID, no_server);
  expect(message == NULL);
  succeeds(TRITONSERVER_ServerModelMetadata(server, "echo", -1, &message));
  tell("/v2/models/echo", message);
  succeeds(TRITONSERVER_ServerModelMetadata(server, "stream", 1, &message));
  tell("/v2/models/stream/versions/1", message);
  fails(TRITONSERVER_ServerModelMetadata(server, "nosuch", -1, &message), NOT_FOUND, unknown);
  succeeds(TRITONSERVER_ServerModelStatistics(server, "", -1, &message));
  tell("/v2/models/stats", message);
  succeeds(TRITONSERVER_ServerModelStatistics(server, "echo", 1, &message));
  tell("/v2/models/echo/versions/1/stats", message);
  fails(TRITONSERVER_ServerModelStatistics(server, "nosuch", -1, &message), INVALID,
        "requested model 'nosuch' is not available");
  fails(TRITONSERVER_ServerModelStatistics(server, "echo", 9, &message), INVALID,
        "requested model version is not available for model 'echo'");
  fails(TRITONSERVER_ServerModelStatistics(server, NULL, -1, &message), INVALID, no_name);
  succeeds(TRITONSERVER_ServerModelConfig(server, "echo", -1, 1, &message));
  tell("/v2/models/echo/config", message);
  fails(TRITONSERVER_ServerModelConfig(server, "echo", -1, 2, &message), INVALID,
        "model configuration version 2 not supported, supported versions are: 1");
  fails(TRITONSERVER_ServerModelConfig(server, "nosuch", -1, 1, &message), NOT_FOUND, unknown);
  succeeds(TRITONSERVER_ServerModelIndex(server, 0, &message));
  tell("/v2/repository/index", message);
  fails(TRITONSERVER_ServerModelIndex(server, 0, NULL), INVALID, NULL);
}

static void metrics(TRITONSERVER_Server* server) {
  TRITONSERVER_Metrics* metrics = NULL;
  const char* base = NULL;
  size_t size = 0;
  succeeds(TRITONSERVER_ServerMetrics(server, &metrics));
  fails(TRITONSERVER_ServerMetrics(server, NULL), INVALID, "metrics must not be NULL");
  fails(TRITONSERVER_ServerMetrics(NULL, &metrics), INVALID, no_server);
  succeeds(TRITONSERVER_MetricsFormatted(metrics, TRITONSERVER_METRIC_PROMETHEUS, &base, &size));
  expect(contains(base, size, "nv_inference_request_success{model=\"echo\",version=\"1\"} 0"));
  fails(TRITONSERVER_MetricsFormatted(metrics, (TRITONSERVER_MetricFormat)1, &base, &size), INVALID,
        "unknown metrics format '1'");
  fails(TRITONSERVER_MetricsFormatted(metrics, TRITONSERVER_METRIC_PROMETHEUS, &base, NULL), INVALID, NULL);
  succeeds(TRITONSERVER_MetricsDelete(metrics));
  fails(TRITONSERVER_MetricsDelete(NULL), INVALID, "metrics must not be NULL");
}

static bool is_ready(TRITONSERVER_Server* server, const char* model) {
  bool ready = false;
  succeeds(TRITONSERVER_ServerModelIsReady(server, model, -1, &ready));
  return ready;
}

/* Whether the index says so, of all models or of those that are ready. */
static bool lists(TRITONSERVER_Server* server, uint32_t flags, const char* part) {
  TRITONSERVER_Message* message = NULL;
  const char* base = NULL;
  size_t size = 0;
  succeeds(TRITONSERVER_ServerModelIndex(server, flags, &message));
  succeeds(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  bool found = contains(base, size, part);
  succeeds(TRITONSERVER_MessageDelete(message));
  return found;
}

static void comings_and_goings(const char* repository, const char* other) {
  const char* first[] = {"echo", NULL};
  TRITONSERVER_Server* server = start(repository, TRITONSERVER_MODEL_CONTROL_EXPLICIT, first);
  expect(is_ready(server, "echo") && !is_ready(server, "stream"));
  expect(lists(server, 0, "\"stream\"") && !lists(server, TRITONSERVER_INDEX_FLAG_READY, "\"stream\""));
  succeeds(TRITONSERVER_ServerLoadModel(server, "stream"));
  expect(is_ready(server, "stream") && lists(server, TRITONSERVER_INDEX_FLAG_READY, "\"stream\""));
  fails(TRITONSERVER_ServerLoadModel(server, "nosuch"), TRITONSERVER_ERROR_INTERNAL,
        "failed to load 'nosuch', failed to poll from model repository");
  fails(TRITONSERVER_ServerLoadModel(server, " "), INVALID,
        "Model name cannot be empty. Please enter a valid name to deploy.");
  succeeds(TRITONSERVER_ServerUnloadModel(server, "stream"));
  expect(!is_ready(server, "stream"));
  fails(TRITONSERVER_ServerUnloadModel(server, NULL), INVALID, no_name);
  succeeds(TRITONSERVER_ServerUnloadModel(server, "echo"));
  succeeds(TRITONSERVER_ServerLoadModel(server, "pair"));
  expect(is_ready(server, "pair") && is_ready(server, "echo"));
  succeeds(TRITONSERVER_ServerUnloadModelAndDependents(server, "pair"));
  expect(!is_ready(server, "pair") && !is_ready(server, "echo"));
  fails(TRITONSERVER_ServerUnloadModelAndDependents(NULL, "pair"), INVALID, no_server);

  const char* config =
      "{\"backend\":\"identity\",\"max_batch_size\":3,"
      "\"input\":[{\"name\":\"INPUT0\",\"data_type\":\"TYPE_INT32\",\"dims\":[-1]}],"
      "\"output\":[{\"name\":\"OUTPUT0\",\"data_type\":\"TYPE_INT32\",\"dims\":[-1]}]}";
  const char* failed = "failed to load 'fresh', failed to poll from model repository";
  int64_t number = 1;
  double real = 1.5;
  TRITONSERVER_Parameter* text = TRITONSERVER_ParameterNew("config", TRITONSERVER_PARAMETER_STRING, config);
  TRITONSERVER_Parameter* file = TRITONSERVER_ParameterBytesNew("file:1/file", "\0\1\2", 3);
  TRITONSERVER_Parameter* escape = TRITONSERVER_ParameterBytesNew("file:../file", "\0\1\2", 3);
  TRITONSERVER_Parameter* wrong = TRITONSERVER_ParameterNew("config", TRITONSERVER_PARAMETER_INT, &number);
  TRITONSERVER_Parameter* odd = TRITONSERVER_ParameterNew("odd", TRITONSERVER_PARAMETER_DOUBLE, &real);
  const TRITONSERVER_Parameter* both[] = {text, file};
  succeeds(TRITONSERVER_ServerLoadModelWithParameters(server, "fresh", both, 2));
  expect(is_ready(server, "fresh"));
  succeeds(TRITONSERVER_ServerLoadModelWithParameters(server, "echo", both, 1));
  uint32_t flags = 0;
  succeeds(TRITONSERVER_ServerModelBatchProperties(server, "echo", -1, &flags, NULL));
  succeeds(TRITONSERVER_ServerLoadModelWithParameters(server, "echo", NULL, 0));
  const TRITONSERVER_Parameter* bad[] = {escape, wrong, odd};
  for (int at = 0; at < 3; ++at) {
    const TRITONSERVER_Parameter* given[] = {text, bad[at]};
    fails(TRITONSERVER_ServerLoadModelWithParameters(server, "fresh", given, 2), TRITONSERVER_ERROR_INTERNAL, failed);
  }
  expect(is_ready(server, "fresh"));
  const TRITONSERVER_Parameter* none[] = {text, NULL};
  fails(TRITONSERVER_ServerLoadModelWithParameters(server, "fresh", none, 2), INVALID, "parameters must not be NULL");
  fails(TRITONSERVER_ServerLoadModelWithParameters(server, "fresh", NULL, 2), INVALID,
        "load parameters are not provided while parameter count is non-zero");
  fails(TRITONSERVER_ServerLoadModelWithParameters(server, "fresh", both, UINT64_MAX), INVALID, NULL);

  TRITONSERVER_Parameter* alias = TRITONSERVER_ParameterNew("other", TRITONSERVER_PARAMETER_STRING, "alias");
  const TRITONSERVER_Parameter* mapping[] = {alias};
  const TRITONSERVER_Parameter* unnamed[] = {wrong};
  fails(TRITONSERVER_ServerRegisterModelRepository(server, other, unnamed, 1), INVALID,
        "Mapped model name must be a string, found another type for config");
  fails(TRITONSERVER_ServerRegisterModelRepository(server, "/nonexistent/repository", NULL, 0), INVALID,
        "failed to register '/nonexistent/repository', repository not found");
  succeeds(TRITONSERVER_ServerRegisterModelRepository(server, other, mapping, 1));
  fails(TRITONSERVER_ServerRegisterModelRepository(server, other, NULL, 0), TRITONSERVER_ERROR_ALREADY_EXISTS, NULL);
  succeeds(TRITONSERVER_ServerLoadModel(server, "alias"));
  expect(is_ready(server, "alias"));
  fails(TRITONSERVER_ServerLoadModel(server, "other"), TRITONSERVER_ERROR_INTERNAL, NULL);
  succeeds(TRITONSERVER_ServerUnregisterModelRepository(server, other));
  fails(TRITONSERVER_ServerUnregisterModelRepository(server, other), INVALID, NULL);
  expect(is_ready(server, "alias"));
  TRITONSERVER_Parameter* all[] = {text, file, escape, wrong, odd, alias};
  for (int at = 0; at < 6; ++at) TRITONSERVER_ParameterDelete(all[at]);

  fails(TRITONSERVER_ServerPollModelRepository(server), TRITONSERVER_ERROR_UNAVAILABLE, "polling is disabled");
  succeeds(TRITONSERVER_ServerStop(server));
  const char* gone = "Server not ready";
  TRITONSERVER_Message* message = NULL;
  fails(TRITONSERVER_ServerLoadModel(server, "echo"), TRITONSERVER_ERROR_UNAVAILABLE, gone);
  fails(TRITONSERVER_ServerUnloadModel(server, "echo"), TRITONSERVER_ERROR_UNAVAILABLE, gone);
  succeeds(TRITONSERVER_ServerMetadata(server, &message));
  succeeds(TRITONSERVER_MessageDelete(message));
  fails(TRITONSERVER_ServerModelMetadata(server, "echo", -1, &message), TRITONSERVER_ERROR_UNAVAILABLE, gone);
  fails(TRITONSERVER_ServerModelIndex(server, 0, &message), TRITONSERVER_ERROR_UNAVAILABLE, gone);
  fails(TRITONSERVER_ServerRegisterModelRepository(server, other, NULL, 0), TRITONSERVER_ERROR_UNAVAILABLE, gone);
  succeeds(TRITONSERVER_ServerDelete(server));
}

static void write_model(const char* repository, const char* name) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", repository, name);
  expect(mkdir(path, 0755) == 0);
  snprintf(path, sizeof(path), "%s/%s/1", repository, name);
  expect(mkdir(path, 0755) == 0);
  snprintf(path, sizeof(path), "%s/%s/config.pbtxt", repository, name);
  FILE* file = fopen(path, "w");
  expect(file != NULL);
  fputs("backend: \"identity\" input { name: \"INPUT0\" data_type: TYPE_INT8 dims: 1 }\n"
        "output { name: \"OUTPUT0\" data_type: TYPE_INT8 dims: 1 }\n", file);
  expect(fclose(file) == 0);
}

static void polls(const char* repository) {
  TRITONSERVER_Server* server = start(repository, TRITONSERVER_MODEL_CONTROL_POLL, NULL);
  fails(TRITONSERVER_ServerLoadModel(server, "late"), TRITONSERVER_ERROR_UNAVAILABLE,
        "explicit model load / unload is not allowed if polling is enabled");
  fails(TRITONSERVER_ServerRegisterModelRepository(server, repository, NULL, 0), TRITONSERVER_ERROR_UNSUPPORTED,
        "repository registration is not allowed if model control mode is not EXPLICIT");
  fails(TRITONSERVER_ServerUnregisterModelRepository(server, repository), TRITONSERVER_ERROR_UNSUPPORTED,
        "repository unregistration is not allowed if model control mode is not EXPLICIT");
  write_model(repository, "late");
  succeeds(TRITONSERVER_ServerPollModelRepository(server));
  expect(is_ready(server, "late"));
  char path[4096], away[4096];
  snprintf(path, sizeof(path), "%s/late", repository);
  snprintf(away, sizeof(away), "%s.late", repository);
  expect(rename(path, away) == 0);
  succeeds(TRITONSERVER_ServerPollModelRepository(server));
  expect(!is_ready(server, "late"));
  fails(TRITONSERVER_ServerPollModelRepository(NULL), INVALID, no_server);
  succeeds(TRITONSERVER_ServerDelete(server));
}

int main(int argc, char** argv) {
  expect(argc == 4);
  TRITONSERVER_Server* server = start(argv[1], TRITONSERVER_MODEL_CONTROL_NONE, NULL);
  properties(server);
  documents(server);
  metrics(server);
  succeeds(TRITONSERVER_ServerDelete(server));
  comings_and_goings(argv[1], argv[2]);
  polls(argv[3]);
  return 0;
}
