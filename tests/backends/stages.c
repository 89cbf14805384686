/* A backend that tells the log how its instances are made and what they are given.
 *
 * Backend settings (--backend-config=stages,<key>=<value>):
 *   parallel=true  GetBackendAttribute allows instances of a model to be initialised side by side;
 *   groups=<n>     and prefers n CPU instances;
 *   device=true    asks for one thread for each device;
 *   meet=<n>       no instance leaves its initialisation before n of them are inside at once.
 * Model parameter "run": "refuse" makes every execution fail with UNAVAILABLE "too cold" and keep no request; "fail"
 * answers every request with INVALID_ARG "cold"; anything else answers each with a response without outputs. */

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "triton/core/tritonbackend.h"

#define EXPORT __attribute__((visibility("default")))

#define TRY(call)                        \
  do {                                   \
    TRITONSERVER_Error* failed = (call); \
    if (failed != NULL) return failed;   \
  } while (0)

enum Run { ANSWER, FAIL, REFUSE };

static bool parallel;
static bool blocks_device;
static int preferred_count;
static int meeting_size;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int inside;
static int most_inside;

static void note(const char* line) {
  TRITONSERVER_Error* failed = TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, line);
  if (failed != NULL) TRITONSERVER_ErrorDelete(failed);
}

/* Runs `use` on the JSON of a message, with a NUL behind it. */
static TRITONSERVER_Error* with_json(TRITONSERVER_Message* message, void (*use)(const char*, void*), void* context) {
  const char* base = NULL;
  size_t length = 0;
  TRY(TRITONSERVER_MessageSerializeToJson(message, &base, &length));
  char* text = calloc(1, length + 1);
  if (text == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "stages.c: out of memory");
  memcpy(text, base, length);
  use(text, context);
  free(text);
  return NULL;
}

static int number_after(const char* json, const char* key) {
  const char* at = strstr(json, key);
  return at == NULL ? 0 : atoi(at + strlen(key));
}

static void read_settings(const char* json, void* context) {
  (void)context;
  parallel = strstr(json, "\"parallel\":\"true\"") != NULL;
  blocks_device = strstr(json, "\"device\":\"true\"") != NULL;
  preferred_count = number_after(json, "\"groups\":\"");
  meeting_size = number_after(json, "\"meet\":\"");
}

static void read_run(const char* json, void* context) {
  enum Run* run = context;
  if (strstr(json, "\"string_value\":\"fail\"") != NULL) *run = FAIL;
  if (strstr(json, "\"string_value\":\"refuse\"") != NULL) *run = REFUSE;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  TRITONSERVER_Message* message = NULL;
  TRY(TRITONBACKEND_BackendConfig(backend, &message));
  TRY(with_json(message, read_settings, NULL));
  if (!blocks_device) return NULL;
  return TRITONBACKEND_BackendSetExecutionPolicy(backend, TRITONBACKEND_EXECUTION_DEVICE_BLOCKING);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend* backend,
    TRITONBACKEND_BackendAttribute* attributes) {
  (void)backend;
  if (preferred_count > 0)
    TRY(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU,
        (uint64_t)preferred_count, NULL, 0));
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, parallel);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* message = NULL;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
  enum Run run = ANSWER;
  TRITONSERVER_Error* failed = with_json(message, read_run, &run);
  TRY(TRITONSERVER_MessageDelete(message));
  if (failed != NULL) return failed;
  return TRITONBACKEND_ModelSetState(model, (void*)(uintptr_t)run);
}

/* The value of a line of /proc/thread-self/status. */
static void own_status(const char* key, char* value, size_t room) {
  char line[256];
  FILE* status = fopen("/proc/thread-self/status", "r");
  snprintf(value, room, "?");
  while (status != NULL && fgets(line, sizeof line, status) != NULL) {
    if (strncmp(line, key, strlen(key)) != 0) continue;
    snprintf(value, room, "%.200s", line + strlen(key));
    value[strcspn(value, "\n")] = '\0';
  }
  if (status != NULL) fclose(status);
}

/* Goes in; where a meeting is wanted, waits until enough others are inside. False after five minutes without them. */
static bool meet(void) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 300;
  int late = 0;
  pthread_mutex_lock(&lock);
  inside++;
  if (inside > most_inside) most_inside = inside;
  pthread_cond_broadcast(&changed);
  while (most_inside < meeting_size && late == 0) late = pthread_cond_timedwait(&changed, &lock, &until);
  pthread_mutex_unlock(&lock);
  return late == 0;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  const char* name = NULL;
  TRITONSERVER_InstanceGroupKind kind;
  int32_t device = -1;
  bool passive = false;
  TRY(TRITONBACKEND_ModelInstanceName(instance, &name));
  TRY(TRITONBACKEND_ModelInstanceKind(instance, &kind));
  TRY(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
  TRY(TRITONBACKEND_ModelInstanceIsPassive(instance, &passive));
  bool met = meet();
  if (meeting_size == 0) {
    /* Long enough for another one to come in, if the server let it. */
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
  }
  char thread[64], cpus[208], line[512];
  own_status("Name:\t", thread, sizeof thread);
  own_status("Cpus_allowed_list:\t", cpus, sizeof cpus);
  pthread_mutex_lock(&lock);
  snprintf(line, sizeof line, "stages: made %.64s kind %d device %d passive %d thread %s cpus %s most %d.", name,
      (int)kind, (int)device, (int)passive, thread, cpus, most_inside);
  inside--;
  pthread_mutex_unlock(&lock);
  note(line);
  return met ? NULL : TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "stages: nobody else came");
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  const char* name = NULL;
  char line[160], thread[64];
  TRY(TRITONBACKEND_ModelInstanceName(instance, &name));
  own_status("Name:\t", thread, sizeof thread);
  snprintf(line, sizeof line, "stages: ended %.64s thread %s.", name, thread);
  note(line);
  return NULL;
}

/* `<input>=<first four bytes in hex>` of every input. */
static TRITONSERVER_Error* describe(TRITONBACKEND_Request* request, char* text, size_t room) {
  uint32_t count = 0;
  TRY(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t i = 0; i < count; i++) {
    const char* name = NULL;
    TRITONBACKEND_Input* input = NULL;
    const int64_t* shape = NULL;
    uint32_t rank = 0;
    const void* buffer = NULL;
    uint64_t size = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    TRY(TRITONBACKEND_RequestInputName(request, i, &name));
    TRY(TRITONBACKEND_RequestInput(request, name, &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &rank, NULL, NULL));
    TRY(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &memory, &id));
    size_t used = strlen(text);
    snprintf(text + used, room - used, " %s rank %u", name, (unsigned)rank);
    for (uint64_t at = 0; at < size && at < 4; at++) {
      used = strlen(text);
      snprintf(text + used, room - used, "%s%02x", at == 0 ? " " : "", ((const unsigned char*)buffer)[at]);
    }
  }
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
    TRITONBACKEND_Request** requests, const uint32_t count) {
  const char* name = NULL;
  TRITONBACKEND_Model* model = NULL;
  void* state = NULL;
  char text[512] = "", line[640];
  TRY(TRITONBACKEND_ModelInstanceName(instance, &name));
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  TRY(describe(requests[0], text, sizeof text));
  snprintf(line, sizeof line, "stages: run %.64s requests %u%s.", name, (unsigned)count, text);
  note(line);
  enum Run run = (enum Run)(uintptr_t)state;
  if (run == REFUSE) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "too cold");
  for (uint32_t i = 0; i < count; i++) {
    TRITONBACKEND_Response* response = NULL;
    TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, requests[i]);
    if (failed != NULL) abort();
    TRITONSERVER_Error* cold =
        run == FAIL ? TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "cold") : NULL;
    failed = TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], cold == NULL, 1, 2, 3, 4);
    if (failed != NULL) TRITONSERVER_ErrorDelete(failed);
    failed = TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, cold);
    if (failed != NULL) TRITONSERVER_ErrorDelete(failed);
    if (cold != NULL) TRITONSERVER_ErrorDelete(cold);
    failed = TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL);
    if (failed != NULL) TRITONSERVER_ErrorDelete(failed);
  }
  TRITONSERVER_Error* failed = TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, 1, 2, 3, 4);
  if (failed != NULL) TRITONSERVER_ErrorDelete(failed);
  return NULL;
}
