/* A response cache and a repository agent that crash: in CacheInitialize, or in ModelAction; with -DOWN on a thread of
 * the library's own. */

#include <pthread.h>
#include <stdlib.h>

#include "triton/core/tritoncache.h"
#include "triton/core/tritonrepoagent.h"
#include "triton/core/tritonserver.h"

static void* crash(void* nothing) {
  volatile int* volatile nowhere = nothing;
  *nowhere = 1;
  return NULL;
}

static TRITONSERVER_Error* end(void) {
#ifdef OWN
  pthread_t thread;
  if (pthread_create(&thread, NULL, crash, NULL) == 0) pthread_join(thread, NULL);
#else
  crash(NULL);
#endif
  abort();
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** cache, const char* config) {
  (void)cache, (void)config;
  return end();
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheFinalize(TRITONCACHE_Cache* cache) {
  (void)cache;
  return NULL;
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
  (void)cache, (void)key, (void)entry, (void)allocator;
  return NULL;
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInsert(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
  (void)cache, (void)key, (void)entry, (void)allocator;
  return NULL;
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action) {
  (void)agent, (void)model, (void)action;
  return end();
}
