/* The log of an application: what it reads in its file right after a message, and what its own function gets.
 *
 * Argument: a file for the log. */

#include "client.h"

#include <unistd.h>

enum { MESSAGES_MAX = 256 };

typedef struct Heard {
  pthread_mutex_t lock;
  int count;
  TRITONSERVER_LogLevel level[MESSAGES_MAX];
  char file[MESSAGES_MAX][64];
  int line[MESSAGES_MAX];
  uint64_t at_us[MESSAGES_MAX];
  char text[MESSAGES_MAX][256];
} Heard;

static Heard heard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void hear(
    TRITONSERVER_LogLevel level, const char* filename, int line, uint64_t timestamp_us, const char* message,
    void* userp) {
  Heard* to = userp;
  /* A message from in here must not come here again. */
  expect(TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, "inner.c", 1, "from the function") == NULL);
  pthread_mutex_lock(&to->lock);
  if (to->count < MESSAGES_MAX) {
    to->level[to->count] = level;
    snprintf(to->file[to->count], sizeof(to->file[0]), "%s", filename);
    to->line[to->count] = line;
    to->at_us[to->count] = timestamp_us;
    snprintf(to->text[to->count], sizeof(to->text[0]), "%s", message);
    ++to->count;
  }
  pthread_mutex_unlock(&to->lock);
}

/* The place of a message that was heard, or -1. */
static int place_of(const char* text) {
  int found = -1;
  pthread_mutex_lock(&heard.lock);
  for (int i = 0; i < heard.count; ++i)
    if (strcmp(heard.text[i], text) == 0) found = i;
  pthread_mutex_unlock(&heard.lock);
  return found;
}

static bool file_has(const char* path, const char* text) {
  static char bytes[1 << 20];
  FILE* file = fopen(path, "r");
  expect(file != NULL);
  size_t length = fread(bytes, 1, sizeof(bytes) - 1, file);
  fclose(file);
  bytes[length] = 0;
  return strstr(bytes, text) != NULL;
}

static void message(TRITONSERVER_LogLevel level, const char* text) {
  succeeds(TRITONSERVER_LogMessage(level, "some/where/model.cc", 42, text));
}

/* A server without models; `callback` as for its options. */
static TRITONSERVER_Server* server_with(bool calls_back, const char* empty) {
  TRITONSERVER_ServerOptions* options = NULL;
  TRITONSERVER_Server* server = NULL;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  succeeds(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, empty));
  if (calls_back) {
    succeeds(TRITONSERVER_ServerOptionsSetLogCallback(options, hear, &heard));
    /* It is in effect at once, and none takes it away. */
    message(TRITONSERVER_LOG_ERROR, "without a server");
    expect(place_of("without a server") == 0);
    succeeds(TRITONSERVER_ServerOptionsSetLogCallback(options, NULL, NULL));
    message(TRITONSERVER_LOG_ERROR, "in between");
    expect(place_of("in between") == -1);
    succeeds(TRITONSERVER_ServerOptionsSetLogCallback(options, hear, &heard));
  }
  succeeds(TRITONSERVER_ServerNew(&server, options));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
  return server;
}

int main(int argc, char** argv) {
  expect(argc == 3);
  const char* path = argv[1];
  TRITONSERVER_ServerOptions* options = NULL;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  succeeds(TRITONSERVER_ServerOptionsSetLogFile(options, path));
  succeeds(TRITONSERVER_ServerOptionsSetLogInfo(options, true));
  succeeds(TRITONSERVER_ServerOptionsSetLogWarn(options, false));
  succeeds(TRITONSERVER_ServerOptionsSetLogError(options, true));
  succeeds(TRITONSERVER_ServerOptionsSetLogVerbose(options, 0));
  succeeds(TRITONSERVER_ServerOptionsSetLogFormat(options, TRITONSERVER_LOG_DEFAULT));
  /* What was logged stands in the file when the call is back. */
  for (int i = 0; i < 50; ++i) {
    char text[64];
    snprintf(text, sizeof(text), "message number %d", i);
    message(TRITONSERVER_LOG_INFO, text);
    expect(file_has(path, text));
  }
  message(TRITONSERVER_LOG_WARN, "not shown");
  message(TRITONSERVER_LOG_VERBOSE, "not shown either");
  message(TRITONSERVER_LOG_ERROR, "shown");
  expect(file_has(path, "model.cc:42] \"shown\"") && !file_has(path, "not shown"));
  succeeds(TRITONSERVER_ServerOptionsSetLogFormat(options, TRITONSERVER_LOG_ISO8601));
  message(TRITONSERVER_LOG_INFO, "in another format");
  expect(file_has(path, "model.cc:42] \"in another format\"") && file_has(path, "Z I "));

  fails(TRITONSERVER_ServerOptionsSetLogCallback(NULL, hear, &heard), TRITONSERVER_ERROR_INVALID_ARG,
        "options must not be NULL");
  succeeds(TRITONSERVER_ServerOptionsSetLogVerbose(options, 1));
  TRITONSERVER_Server* server = server_with(true, argv[2]);
  expect(file_has(path, "in between") && !file_has(path, "without a server"));
  expect(heard.count > 0);
  message(TRITONSERVER_LOG_ERROR, "an \"error\"\nin two lines");
  message(TRITONSERVER_LOG_VERBOSE, "verbose");
  message(TRITONSERVER_LOG_WARN, "filtered");
  int at = place_of("an \"error\"\nin two lines");
  expect(at >= 0 && heard.level[at] == TRITONSERVER_LOG_ERROR && heard.line[at] == 42);
  expect(strcmp(heard.file[at], "model.cc") == 0);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  uint64_t now_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
  expect(heard.at_us[at] <= now_us && heard.at_us[at] > now_us - 600000000);
  at = place_of("verbose");
  expect(at >= 0 && heard.level[at] == TRITONSERVER_LOG_VERBOSE);
  expect(place_of("filtered") == -1 && place_of("from the function") == -1);
  expect(!file_has(path, "in two lines"));
  /* A table comes below its heading. */
  bool has_table = false;
  for (int i = 0; i < heard.count; ++i) has_table = has_table || strstr(heard.text[i], "\n+--") != NULL;
  expect(has_table);
  client_end(server);

  /* A server whose options hold none takes the function away. */
  server = server_with(false, argv[2]);
  int before = heard.count;
  message(TRITONSERVER_LOG_ERROR, "to the file again");
  expect(heard.count == before && file_has(path, "to the file again"));
  client_end(server);
  succeeds(TRITONSERVER_ServerOptionsSetLogFile(options, ""));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
  return 0;
}
