/* A response cache that keeps what it is given in a list, and misbehaves as its setting `do` says:
 *
 *   check         calls every function of the interface, rightly and wrongly
 *   refuse        does not initialise
 *   nothing       initialises without making a cache
 *   no_copy       takes entries without copying them
 *   shift         finds buffers of another size than it was given
 *   twice         offers each buffer twice
 *   garbage       finds other bytes than it was given
 *   fail_lookup   answers lookups with an error
 *   fail_insert   answers insertions with an error
 *   forget        finds nothing and says that all is well
 *   keep          asks the entry of a former call: only where the server checks handles
 *
 * Lines: `~ cache <what>`. */

#include "check.h"

#include <pthread.h>

struct kept {
  struct kept* next;
  char* key;
  size_t count;
  void** bases;
  size_t* sizes;
};

static TRITONCACHE_CacheEntry* former;

struct cache {
  pthread_mutex_t lock;
  struct kept* first;
  char mode[32];
  int checked_insert, checked_lookup;
};

static void tell(const char* what) {
  printf("~ cache %s\n", what);
  fflush(stdout);
}

static int is(const struct cache* cache, const char* mode) { return strcmp(cache->mode, mode) == 0; }

static TRITONSERVER_Error* failure(TRITONSERVER_Error_Code code, const char* text) {
  return TRITONSERVER_ErrorNew(code, text);
}

static TRITONSERVER_BufferAttributes* attributes_of(size_t size) {
  TRITONSERVER_BufferAttributes* attributes = NULL;
  expect(TRITONSERVER_BufferAttributesNew(&attributes) == NULL);
  expect(TRITONSERVER_BufferAttributesSetByteSize(attributes, size) == NULL);
  return attributes;
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** cache, const char* config) {
  printf("~ cache config %s\n", config);
  struct cache* made = calloc(1, sizeof *made);
  expect(made != NULL);
  pthread_mutex_init(&made->lock, NULL);
  const char* mode = strstr(config, "\"do\":\"");
  if (mode != NULL) sscanf(mode + 6, "%31[^\"]", made->mode);
  if (is(made, "refuse") || is(made, "nothing")) {
    int fails = is(made, "refuse");
    free(made);
    return fails ? failure(TRITONSERVER_ERROR_INVALID_ARG, "this is no size for a cache") : NULL;
  }
  if (is(made, "check")) {
    uint32_t major = 9, minor = 9;
    succeeds(TRITONCACHE_ApiVersion(&major, &minor));
    expect(major == TRITONCACHE_API_VERSION_MAJOR && minor == TRITONCACHE_API_VERSION_MINOR);
    fails(TRITONCACHE_ApiVersion(NULL, &minor), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  }
  tell("initialize");
  *cache = (TRITONCACHE_Cache*)made;
  return NULL;
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheFinalize(TRITONCACHE_Cache* handle) {
  struct cache* cache = (struct cache*)handle;
  while (cache->first != NULL) {
    struct kept* kept = cache->first;
    cache->first = kept->next;
    for (size_t at = 0; at < kept->count; ++at) free(kept->bases[at]);
    free(kept->bases);
    free(kept->sizes);
    free(kept->key);
    free(kept);
  }
  pthread_mutex_destroy(&cache->lock);
  free(cache);
  tell("finalize");
  return NULL;
}

/* What an entry that is inserted answers. */
static void check_inserted(TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
  size_t count = 0;
  succeeds(TRITONCACHE_CacheEntryBufferCount(entry, &count));
  expect(count == 1);
  fails(TRITONCACHE_CacheEntryBufferCount(NULL, &count), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONCACHE_CacheEntryBufferCount(entry, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  void* base = &base;
  TRITONSERVER_BufferAttributes* attributes = attributes_of(0);
  succeeds(TRITONCACHE_CacheEntryGetBuffer(entry, 0, &base, attributes));
  expect(base == NULL);
  size_t size = 0;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
  expect(TRITONSERVER_BufferAttributesByteSize(attributes, &size) == NULL && size > 0);
  expect(TRITONSERVER_BufferAttributesMemoryType(attributes, &type) == NULL && type == TRITONSERVER_MEMORY_CPU);
  fails(TRITONCACHE_CacheEntryGetBuffer(entry, 1, &base, attributes), TRITONSERVER_ERROR_INVALID_ARG,
        "index was greater than count");
  fails(TRITONCACHE_CacheEntryGetBuffer(entry, 0, NULL, attributes), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONCACHE_CacheEntryGetBuffer(entry, 0, &base, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  char room[4096];
  expect(size <= sizeof room);
  fails(TRITONCACHE_CacheEntryAddBuffer(entry, room, attributes), TRITONSERVER_ERROR_INVALID_ARG,
        "buffers can be added only to an entry that is looked up");
  fails(TRITONCACHE_Copy(allocator, entry), TRITONSERVER_ERROR_INVALID_ARG, "buffer 0 was not set");
  fails(TRITONCACHE_Copy(NULL, entry), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONCACHE_Copy(allocator, NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  succeeds(TRITONCACHE_CacheEntrySetBuffer(entry, 0, room, NULL));
  expect(TRITONCACHE_CacheEntrySetBuffer(entry, 0, room, attributes) == NULL);
  fails(TRITONCACHE_CacheEntrySetBuffer(entry, 0, NULL, attributes), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  fails(TRITONCACHE_CacheEntrySetBuffer(entry, 9, room, NULL), TRITONSERVER_ERROR_INVALID_ARG,
        "index was greater than count");
  expect(TRITONSERVER_BufferAttributesSetByteSize(attributes, size - 1) == NULL);
  fails(TRITONCACHE_CacheEntrySetBuffer(entry, 0, room, attributes), TRITONSERVER_ERROR_INVALID_ARG, NULL);
  expect(TRITONSERVER_BufferAttributesSetByteSize(attributes, size) == NULL);
  expect(TRITONSERVER_BufferAttributesSetMemoryType(attributes, TRITONSERVER_MEMORY_GPU) == NULL);
  fails(TRITONCACHE_CacheEntrySetBuffer(entry, 0, room, attributes), TRITONSERVER_ERROR_INVALID_ARG,
        "Only buffers in CPU memory are allowed in cache currently");
  expect(TRITONSERVER_BufferAttributesDelete(attributes) == NULL);
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInsert(
    TRITONCACHE_Cache* handle, const char* key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
  struct cache* cache = (struct cache*)handle;
  if (is(cache, "fail_insert")) return failure(TRITONSERVER_ERROR_INTERNAL, "nothing fits in here");
  if (is(cache, "no_copy")) return NULL;
  if (is(cache, "keep")) {
    if (former != NULL) {
      size_t count = 0;
      fails(TRITONCACHE_CacheEntryBufferCount(former, &count), TRITONSERVER_ERROR_INVALID_ARG, NULL);
      fails(TRITONCACHE_Copy(allocator, former), TRITONSERVER_ERROR_INVALID_ARG, NULL);
      tell("former entry refused");
    }
    former = entry;
    return failure(TRITONSERVER_ERROR_UNAVAILABLE, "full");
  }
  pthread_mutex_lock(&cache->lock);
  for (struct kept* kept = cache->first; kept != NULL; kept = kept->next) {
    if (strcmp(kept->key, key) == 0) {
      pthread_mutex_unlock(&cache->lock);
      return failure(TRITONSERVER_ERROR_ALREADY_EXISTS, "key already exists");
    }
  }
  if (is(cache, "check") && !cache->checked_insert) {
    cache->checked_insert = 1;
    check_inserted(entry, allocator);
  }
  struct kept* kept = calloc(1, sizeof *kept);
  expect(kept != NULL && TRITONCACHE_CacheEntryBufferCount(entry, &kept->count) == NULL);
  kept->key = malloc(strlen(key) + 1);
  kept->bases = calloc(kept->count, sizeof *kept->bases);
  kept->sizes = calloc(kept->count, sizeof *kept->sizes);
  expect(kept->key != NULL && kept->bases != NULL && kept->sizes != NULL);
  strcpy(kept->key, key);
  for (size_t at = 0; at < kept->count; ++at) {
    void* none = NULL;
    TRITONSERVER_BufferAttributes* attributes = attributes_of(0);
    expect(TRITONCACHE_CacheEntryGetBuffer(entry, at, &none, attributes) == NULL);
    expect(TRITONSERVER_BufferAttributesByteSize(attributes, &kept->sizes[at]) == NULL);
    expect(TRITONSERVER_BufferAttributesDelete(attributes) == NULL);
    kept->bases[at] = malloc(kept->sizes[at]);
    expect(kept->bases[at] != NULL);
    expect(TRITONCACHE_CacheEntrySetBuffer(entry, at, kept->bases[at], NULL) == NULL);
  }
  if (is(cache, "check")) {
    succeeds(TRITONCACHE_Copy(allocator, entry));
    fails(TRITONCACHE_Copy(allocator, entry), TRITONSERVER_ERROR_INVALID_ARG, "the entry was copied already");
  } else {
    expect(TRITONCACHE_Copy(allocator, entry) == NULL);
  }
  kept->next = cache->first;
  cache->first = kept;
  pthread_mutex_unlock(&cache->lock);
  return NULL;
}

static TRITONSERVER_Error* find(
    struct cache* cache, const struct kept* kept, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
  int checks = is(cache, "check") && !cache->checked_lookup;
  for (size_t at = 0; at < kept->count; ++at) {
    if (is(cache, "garbage")) memset(kept->bases[at], 0xa5, kept->sizes[at]);
    TRITONSERVER_BufferAttributes* attributes = attributes_of(kept->sizes[at] - (is(cache, "shift") ? 1 : 0));
    if (checks) {
      cache->checked_lookup = 1;
      fails(TRITONCACHE_CacheEntryAddBuffer(entry, NULL, attributes), TRITONSERVER_ERROR_INVALID_ARG, NULL);
      fails(TRITONCACHE_CacheEntryAddBuffer(entry, kept->bases[at], NULL), TRITONSERVER_ERROR_INVALID_ARG, NULL);
      fails(TRITONCACHE_CacheEntryAddBuffer(NULL, kept->bases[at], attributes), TRITONSERVER_ERROR_INVALID_ARG, NULL);
      TRITONSERVER_BufferAttributes* huge = attributes_of((size_t)-1);
      fails(TRITONCACHE_CacheEntryAddBuffer(entry, kept->bases[at], huge), TRITONSERVER_ERROR_INVALID_ARG,
            "an entry may have at most 67108864 bytes");
      expect(TRITONSERVER_BufferAttributesDelete(huge) == NULL);
      succeeds(TRITONCACHE_CacheEntryAddBuffer(entry, kept->bases[at], attributes));
    } else {
      expect(TRITONCACHE_CacheEntryAddBuffer(entry, kept->bases[at], attributes) == NULL);
    }
    if (is(cache, "twice")) expect(TRITONCACHE_CacheEntryAddBuffer(entry, kept->bases[at], attributes) == NULL);
    expect(TRITONSERVER_BufferAttributesDelete(attributes) == NULL);
  }
  return TRITONCACHE_Copy(allocator, entry);
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache* handle, const char* key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
  struct cache* cache = (struct cache*)handle;
  if (is(cache, "fail_lookup")) return failure(TRITONSERVER_ERROR_INTERNAL, "nobody looks into this");
  if (is(cache, "forget")) return NULL;
  pthread_mutex_lock(&cache->lock);
  TRITONSERVER_Error* error = NULL;
  const struct kept* kept = cache->first;
  while (kept != NULL && strcmp(kept->key, key) != 0) kept = kept->next;
  error = kept == NULL ? failure(TRITONSERVER_ERROR_NOT_FOUND, "key not found") : find(cache, kept, entry, allocator);
  pthread_mutex_unlock(&cache->lock);
  return error;
}
