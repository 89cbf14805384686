/* Parameters: each type, and what is none. */

#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <unistd.h>

/* Bytes of this process that lie in memory. */
static long bytes_in_memory(void) {
  long pages = 0, resident = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  expect(file != NULL && fscanf(file, "%ld %ld", &pages, &resident) == 2);
  fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

enum { VALUE_BYTES = 256 << 10, ROUNDS = 1024 };

/* A deleted parameter gives its memory back: all of them together would be 256 MiB. */
static bool deleting_frees(void) {
  static char value[VALUE_BYTES];
  memset(value, 'x', sizeof(value) - 1);
  long before = bytes_in_memory();
  for (int round = 0; round < ROUNDS; ++round)
    TRITONSERVER_ParameterDelete(TRITONSERVER_ParameterNew("text", TRITONSERVER_PARAMETER_STRING, value));
  return bytes_in_memory() - before < (long)VALUE_BYTES * ROUNDS / 4;
}

/* NULL deletes nothing: what lives can be deleted still. */
static bool deleting_nothing_is_harmless(void) {
  TRITONSERVER_Parameter* kept = TRITONSERVER_ParameterNew("kept", TRITONSERVER_PARAMETER_STRING, "value");
  TRITONSERVER_ParameterDelete(NULL);
  TRITONSERVER_Parameter* other = TRITONSERVER_ParameterNew("other", TRITONSERVER_PARAMETER_STRING, "value");
  bool are_apart = kept != NULL && other != NULL && kept != other;
  TRITONSERVER_ParameterDelete(kept);
  TRITONSERVER_ParameterDelete(other);
  return are_apart;
}

int main(void) {
  int64_t number = -7;
  bool flag = true;
  double real = 0.5;
  TRITONSERVER_Parameter* parameters[] = {
      TRITONSERVER_ParameterNew("text", TRITONSERVER_PARAMETER_STRING, "value"),
      TRITONSERVER_ParameterNew("number", TRITONSERVER_PARAMETER_INT, &number),
      TRITONSERVER_ParameterNew("flag", TRITONSERVER_PARAMETER_BOOL, &flag),
      TRITONSERVER_ParameterNew("real", TRITONSERVER_PARAMETER_DOUBLE, &real),
      TRITONSERVER_ParameterBytesNew("bytes", "\0\1", 2),
      TRITONSERVER_ParameterBytesNew("nothing", NULL, 0),
  };
  for (size_t at = 0; at < sizeof(parameters) / sizeof(*parameters); ++at) expect(parameters[at] != NULL);
  holds(TRITONSERVER_ParameterNew, parameters[0] != NULL);
  holds(TRITONSERVER_ParameterBytesNew, parameters[4] != NULL);

  refuses(TRITONSERVER_ParameterNew, TRITONSERVER_ParameterNew(NULL, TRITONSERVER_PARAMETER_STRING, "value") == NULL);
  refuses(TRITONSERVER_ParameterNew, TRITONSERVER_ParameterNew("text", TRITONSERVER_PARAMETER_STRING, NULL) == NULL);
  refuses(TRITONSERVER_ParameterNew, TRITONSERVER_ParameterNew("bytes", TRITONSERVER_PARAMETER_BYTES, "value") == NULL);
  refuses(TRITONSERVER_ParameterNew, TRITONSERVER_ParameterNew("text", (TRITONSERVER_ParameterType)5, "value") == NULL);
  refuses(TRITONSERVER_ParameterBytesNew, TRITONSERVER_ParameterBytesNew(NULL, "value", 5) == NULL);
  refuses(TRITONSERVER_ParameterBytesNew, TRITONSERVER_ParameterBytesNew("bytes", NULL, 5) == NULL);
  refuses(TRITONSERVER_ParameterBytesNew, TRITONSERVER_ParameterBytesNew("bytes", "value", UINT64_MAX) == NULL);

  for (size_t at = 0; at < sizeof(parameters) / sizeof(*parameters); ++at) TRITONSERVER_ParameterDelete(parameters[at]);
  holds(TRITONSERVER_ParameterDelete, deleting_frees());
  refuses(TRITONSERVER_ParameterDelete, deleting_nothing_is_harmless());
  return 0;
}
