/* The threads of a process, for programs that want to see the server's go. */

#ifndef THREADS_H
#define THREADS_H

#include "check.h"

#include <dirent.h>
#include <time.h>

static int threads(void) {
  int count = 0;
  DIR* directory = opendir("/proc/self/task");
  expect(directory != NULL);
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

/* Until no more are there than `count`. A thread that has ended leaves the list a moment later, which may also be why
 * one was counted. */
static void wait_for_threads(int count) {
  for (int attempt = 0; threads() > count; ++attempt) {
    if (attempt == 30000) check_failed(__FILE__, __LINE__, "wait_for_threads", "threads are left");
    nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
  }
}

#endif
