/* Every option of a server: once as it should be, once as it must not be. Argument: a directory to write to. */

#include "check.h"

#define INVALID TRITONSERVER_ERROR_INVALID_ARG

static void texts(TRITONSERVER_ServerOptions* options) {
  succeeds(TRITONSERVER_ServerOptionsSetServerId(options, "me"));
  fails(TRITONSERVER_ServerOptionsSetServerId(options, NULL), INVALID, "server_id must not be NULL");
  succeeds(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, "/models"));
  fails(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, NULL), INVALID,
        "model_repository_path must not be NULL");
  succeeds(TRITONSERVER_ServerOptionsSetStartupModel(options, "model"));
  fails(TRITONSERVER_ServerOptionsSetStartupModel(options, NULL), INVALID, "model_name must not be NULL");
  succeeds(TRITONSERVER_ServerOptionsSetModelConfigName(options, "fast"));
  fails(TRITONSERVER_ServerOptionsSetModelConfigName(options, NULL), INVALID, "model_config_name must not be NULL");
  succeeds(TRITONSERVER_ServerOptionsSetCacheDirectory(options, "/caches"));
  fails(TRITONSERVER_ServerOptionsSetCacheDirectory(options, NULL), INVALID, "cache_dir must not be NULL");
  succeeds(TRITONSERVER_ServerOptionsSetBackendDirectory(options, "/backends"));
  fails(TRITONSERVER_ServerOptionsSetBackendDirectory(options, NULL), INVALID, "backend_dir must not be NULL");
  succeeds(TRITONSERVER_ServerOptionsSetRepoAgentDirectory(options, "/agents"));
  fails(TRITONSERVER_ServerOptionsSetRepoAgentDirectory(options, NULL), INVALID, "repoagent_dir must not be NULL");
  succeeds(TRITONSERVER_ServerOptionsSetBackendConfig(options, "", "key", "value"));
  fails(TRITONSERVER_ServerOptionsSetBackendConfig(options, NULL, "key", "value"), INVALID,
        "backend_name must not be NULL");
  succeeds(TRITONSERVER_ServerOptionsSetHostPolicy(options, "policy", "numa-node", "0"));
  fails(TRITONSERVER_ServerOptionsSetHostPolicy(options, "policy", "numa-node", "zero"), INVALID,
        "Invalid host policy 'policy': numa-node must be the number of a NUMA node, got 'zero'");
  succeeds(TRITONSERVER_ServerOptionsSetMetricsConfig(options, "", "summary_latencies", "true"));
  /* Of a group that the server does not have: taken, and without effect. */
  succeeds(TRITONSERVER_ServerOptionsSetMetricsConfig(options, "metrics_group", "setting", "value"));
  fails(TRITONSERVER_ServerOptionsSetMetricsConfig(options, NULL, "setting", "value"), TRITONSERVER_ERROR_INVALID_ARG,
        "name must not be NULL");
  succeeds(TRITONSERVER_ServerOptionsSetCacheConfig(options, "local", "{\"size\":\"1048576\"}"));
  fails(TRITONSERVER_ServerOptionsSetCacheConfig(options, "local", "[]"), INVALID,
        "failed to parse the cache's configuration: it is no JSON object");
  fails(TRITONSERVER_ServerOptionsSetCacheConfig(options, "local", "{"), INVALID, NULL);
}

static void choices(TRITONSERVER_ServerOptions* options) {
  succeeds(TRITONSERVER_ServerOptionsSetModelControlMode(options, TRITONSERVER_MODEL_CONTROL_POLL));
  fails(TRITONSERVER_ServerOptionsSetModelControlMode(options, (TRITONSERVER_ModelControlMode)3), INVALID,
        "unknown control mode '3'");
  succeeds(TRITONSERVER_ServerOptionsSetRateLimiterMode(options, TRITONSERVER_RATE_LIMIT_EXEC_COUNT));
  fails(TRITONSERVER_ServerOptionsSetRateLimiterMode(options, (TRITONSERVER_RateLimitMode)2), INVALID,
        "unknown rate limit mode '2'");
  succeeds(TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(options, TRITONSERVER_INSTANCEGROUPKIND_GPU, 0, 0.5));
  fails(TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(options, TRITONSERVER_INSTANCEGROUPKIND_GPU, -1, 0.5),
        INVALID, "expects device ID >= 0, got -1");
  fails(TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(options, TRITONSERVER_INSTANCEGROUPKIND_GPU, 0, 1.5),
        INVALID, "expects limit fraction to be in range [0.0, 1.0], got 1.500000");
  fails(TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(options, TRITONSERVER_INSTANCEGROUPKIND_CPU, 0, 0.5),
        INVALID, "given device kind is not supported, got: CPU");
}

/* There is nothing that a number or a flag may not be: only the options may be missing. */
static void numbers(TRITONSERVER_ServerOptions* options) {
  const char* missing = "options must not be NULL";
  succeeds(TRITONSERVER_ServerOptionsSetStrictModelConfig(options, true));
  fails(TRITONSERVER_ServerOptionsSetStrictModelConfig(NULL, true), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsAddRateLimiterResource(options, "R", 4, -1));
  fails(TRITONSERVER_ServerOptionsAddRateLimiterResource(options, NULL, 4, -1), INVALID,
        "resource_name must not be NULL");
  succeeds(TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(options, 0));
  fails(TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(NULL, 0), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(options, 0, 1 << 20));
  fails(TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(NULL, 0, 1 << 20), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(options, 0, 1 << 20));
  fails(TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(NULL, 0, 1 << 20), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetResponseCacheByteSize(options, 1 << 20));
  fails(TRITONSERVER_ServerOptionsSetResponseCacheByteSize(NULL, 1 << 20), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(options, 7.5));
  fails(TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(NULL, 7.5), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetExitOnError(options, false));
  fails(TRITONSERVER_ServerOptionsSetExitOnError(NULL, false), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetStrictReadiness(options, false));
  fails(TRITONSERVER_ServerOptionsSetStrictReadiness(NULL, false), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetExitTimeout(options, 5));
  fails(TRITONSERVER_ServerOptionsSetExitTimeout(NULL, 5), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(options, 2));
  fails(TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(NULL, 2), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetModelLoadThreadCount(options, 2));
  fails(TRITONSERVER_ServerOptionsSetModelLoadThreadCount(NULL, 2), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetModelLoadRetryCount(options, 1));
  fails(TRITONSERVER_ServerOptionsSetModelLoadRetryCount(NULL, 1), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetModelNamespacing(options, true));
  fails(TRITONSERVER_ServerOptionsSetModelNamespacing(NULL, true), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetEnablePeerAccess(options, false));
  fails(TRITONSERVER_ServerOptionsSetEnablePeerAccess(NULL, false), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetMetrics(options, true));
  fails(TRITONSERVER_ServerOptionsSetMetrics(NULL, true), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetGpuMetrics(options, false));
  fails(TRITONSERVER_ServerOptionsSetGpuMetrics(NULL, false), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetCpuMetrics(options, false));
  fails(TRITONSERVER_ServerOptionsSetCpuMetrics(NULL, false), INVALID, missing);
  succeeds(TRITONSERVER_ServerOptionsSetMetricsInterval(options, 500));
  fails(TRITONSERVER_ServerOptionsSetMetricsInterval(NULL, 500), INVALID, missing);
}

static bool enabled(TRITONSERVER_LogLevel level) { return TRITONSERVER_LogIsEnabled(level); }

/* How often a text stands in a file. */
static int occurrences(const char* path, const char* text) {
  static char contents[1 << 16];
  FILE* file = fopen(path, "r");
  if (file == NULL) return 0;
  contents[fread(contents, 1, sizeof(contents) - 1, file)] = 0;
  fclose(file);
  int count = 0;
  for (const char* at = contents; (at = strstr(at, text)) != NULL; at += strlen(text)) ++count;
  return count;
}

/* The log is the process's: silent until an option speaks of it, and as the last option said from then on. */
static void logs(TRITONSERVER_ServerOptions* options, const char* directory) {
  const char* missing = "options must not be NULL";
  char first[4096], second[4096];
  snprintf(first, sizeof(first), "%s/first.log", directory);
  snprintf(second, sizeof(second), "%s/second.log", directory);

  expect(!enabled(TRITONSERVER_LOG_INFO) && !enabled(TRITONSERVER_LOG_ERROR) && !enabled(TRITONSERVER_LOG_VERBOSE));
  succeeds(TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, "options.c", 1, "nobody hears this"));
  fails(TRITONSERVER_ServerOptionsSetLogFormat(options, (TRITONSERVER_LogFormat)2), INVALID, "unknown log format 2");
  expect(!enabled(TRITONSERVER_LOG_ERROR));

  succeeds(TRITONSERVER_ServerOptionsSetLogFile(options, first));
  fails(TRITONSERVER_ServerOptionsSetLogFile(options, "/nonexistent/directory/log"), TRITONSERVER_ERROR_INTERNAL, NULL);
  holds(TRITONSERVER_LogIsEnabled, enabled(TRITONSERVER_LOG_INFO));
  refuses(TRITONSERVER_LogIsEnabled, !enabled((TRITONSERVER_LogLevel)4));
  expect(enabled(TRITONSERVER_LOG_WARN) && enabled(TRITONSERVER_LOG_ERROR) && !enabled(TRITONSERVER_LOG_VERBOSE));
  succeeds(TRITONSERVER_ServerOptionsSetLogInfo(options, false));
  fails(TRITONSERVER_ServerOptionsSetLogInfo(NULL, false), INVALID, missing);
  expect(!enabled(TRITONSERVER_LOG_INFO) && enabled(TRITONSERVER_LOG_WARN));
  succeeds(TRITONSERVER_ServerOptionsSetLogWarn(options, false));
  fails(TRITONSERVER_ServerOptionsSetLogWarn(NULL, false), INVALID, missing);
  expect(!enabled(TRITONSERVER_LOG_WARN) && enabled(TRITONSERVER_LOG_ERROR));
  succeeds(TRITONSERVER_ServerOptionsSetLogVerbose(options, 1));
  fails(TRITONSERVER_ServerOptionsSetLogVerbose(NULL, 1), INVALID, missing);
  expect(enabled(TRITONSERVER_LOG_VERBOSE));
  succeeds(TRITONSERVER_ServerOptionsSetLogFormat(options, TRITONSERVER_LOG_ISO8601));

  succeeds(TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, "some/options.c", 1, "an error to be read"));
  succeeds(TRITONSERVER_LogMessage(TRITONSERVER_LOG_VERBOSE, "options.c", 2, "a detail to be read"));
  succeeds(TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, "options.c", 3, "an information to be left out"));
  fails(TRITONSERVER_LogMessage((TRITONSERVER_LogLevel)4, "options.c", 4, "of no level"), INVALID,
        "unknown logging level '4'");
  fails(TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, NULL, 5, "of no file"), INVALID, "filename must not be NULL");
  fails(TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, "options.c", 6, NULL), INVALID, "msg must not be NULL");

  succeeds(TRITONSERVER_ServerOptionsSetLogFile(options, second));
  succeeds(TRITONSERVER_ServerOptionsSetLogError(options, false));
  fails(TRITONSERVER_ServerOptionsSetLogError(NULL, false), INVALID, missing);
  expect(!enabled(TRITONSERVER_LOG_ERROR));
  succeeds(TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, "options.c", 7, "an error to be left out"));
  succeeds(TRITONSERVER_ServerOptionsSetLogVerbose(options, -1));
  expect(!enabled(TRITONSERVER_LOG_VERBOSE));
  succeeds(TRITONSERVER_ServerOptionsSetLogInfo(options, true));
  succeeds(TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, "options.c", 8, "an information to be read"));
  /* Nobody is left who could log: what there was is written now. */
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
  expect(occurrences(first, "an error to be read") == 1 && occurrences(first, "a detail to be read") == 1);
  expect(occurrences(first, "Z E ") == 1 && occurrences(first, "left out") == 0);
  expect(occurrences(first, " options.c:1] \"an error to be read\"\n") == 1);
  expect(occurrences(second, "an information to be read") == 1 && occurrences(second, "\n") == 1);

  /* And the log goes on for whoever comes. */
  succeeds(TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, "options.c", 9, "an afterthought"));
  TRITONSERVER_ServerOptions* later = NULL;
  succeeds(TRITONSERVER_ServerOptionsNew(&later));
  succeeds(TRITONSERVER_ServerOptionsSetLogFile(later, ""));
  succeeds(TRITONSERVER_ServerOptionsDelete(later));
  expect(occurrences(second, "an afterthought") == 1);
}

int main(int argc, char** argv) {
  expect(argc == 2);
  TRITONSERVER_ServerOptions* options = NULL;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  texts(options);
  choices(options);
  numbers(options);
  logs(options, argv[1]);
  return 0;
}
