/* Checks of single calls, for programs and backends that are written against the header.
 *
 * Each check names the function that it calls. What was checked is told on stdout, a line each: `+ NAME` for a call that
 * succeeded, `- NAME` for one that failed as it should. The first check that does not hold ends the process, with exit
 * code 75 if the program was not run in time for it. */

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton/core/tritonbackend.h"
#include "triton/core/tritoncache.h"
#include "triton/core/tritonrepoagent.h"
#include "triton/core/tritonserver.h"

#ifdef __GNUC__
#define CHECK_MAYBE_UNUSED __attribute__((unused))
#else
#define CHECK_MAYBE_UNUSED
#endif

CHECK_MAYBE_UNUSED static void check_tell(char sign, const char* call) {
  printf("%c %.*s\n", sign, (int)strcspn(call, "(, "), call);
  fflush(stdout);
}

/* The milliseconds for which what is checked is so, since a time; 0: for ever. */
static long long check_window_ms, check_opened_ms;

CHECK_MAYBE_UNUSED static long long check_now_ms(void) {
  struct timespec now = {0, 0};
  timespec_get(&now, TIME_UTC);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* What is checked from here on is so for that long. */
CHECK_MAYBE_UNUSED static void check_within(long long ms) {
  check_window_ms = ms;
  check_opened_ms = check_now_ms();
}

CHECK_MAYBE_UNUSED static void check_at_leisure(void) { check_window_ms = 0; }

CHECK_MAYBE_UNUSED static void check_failed(const char* file, int line, const char* call, const char* found) {
  fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, found);
  fflush(stderr);
  _Exit(check_window_ms > 0 && check_now_ms() - check_opened_ms >= check_window_ms ? 75 : 1);
}

CHECK_MAYBE_UNUSED static void check_success(TRITONSERVER_Error* error, const char* file, int line, const char* call) {
  if (error != NULL) check_failed(file, line, call, TRITONSERVER_ErrorMessage(error));
  check_tell('+', call);
}

CHECK_MAYBE_UNUSED static void check_failure(
    TRITONSERVER_Error* error, TRITONSERVER_Error_Code code, const char* text, const char* file, int line,
    const char* call) {
  if (error == NULL) check_failed(file, line, call, "succeeded");
  const char* found = TRITONSERVER_ErrorMessage(error);
  if (TRITONSERVER_ErrorCode(error) != code) check_failed(file, line, call, found);
  if (text != NULL && strcmp(found, text) != 0) check_failed(file, line, call, found);
  TRITONSERVER_ErrorDelete(error);
  check_tell('-', call);
}

/* The call returns no error. */
#define succeeds(call) check_success((call), __FILE__, __LINE__, #call)

/* The call returns an error of that code and, unless it is NULL, exactly that text. */
#define fails(call, code, text) check_failure((call), (code), (text), __FILE__, __LINE__, #call)

/* For functions that return no error: what the condition says of a call of `function` that succeeded. */
#define holds(function, condition) \
  ((condition) ? check_tell('+', #function) : check_failed(__FILE__, __LINE__, #function, #condition))

/* The same of a call that was given what it cannot take. */
#define refuses(function, condition) \
  ((condition) ? check_tell('-', #function) : check_failed(__FILE__, __LINE__, #function, #condition))

/* A condition that is about no single function. */
#define expect(condition) \
  do {                    \
    if (!(condition)) check_failed(__FILE__, __LINE__, "expect", #condition); \
  } while (0)

#endif
