// A cache and an agent in one, which throw where they are told to: the cache by its configuration, the agent by its
// parameter `throw`.

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

extern "C" {
#include "triton/core/tritoncache.h"
#include "triton/core/tritonrepoagent.h"
}

namespace {

int cache_itself;
bool throws_at_lookup, throws_at_insert, throws_at_finalize;

void maybe_throw(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* place) {
  uint32_t count = 0;
  TRITONREPOAGENT_ModelParameterCount(agent, model, &count);
  for (uint32_t at = 0; at < count; ++at) {
    const char *name, *value;
    TRITONREPOAGENT_ModelParameter(agent, model, at, &name, &value);
    if (std::strcmp(name, "throw") == 0 && std::strcmp(value, place) == 0) {
      throw std::runtime_error(std::string("thrown at ") + place);
    }
  }
}

}  // namespace

extern "C" {

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** cache, const char* config) {
  const std::string text(config);
  if (text.find("initialize") != text.npos) throw std::runtime_error("thrown at initialize");
  throws_at_lookup = text.find("lookup") != text.npos;
  throws_at_insert = text.find("insert") != text.npos;
  throws_at_finalize = text.find("finalize") != text.npos;
  *cache = reinterpret_cast<TRITONCACHE_Cache*>(&cache_itself);
  return nullptr;
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheFinalize(TRITONCACHE_Cache*) {
  if (throws_at_finalize) throw std::runtime_error("thrown at finalize");
  return nullptr;
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInsert(
    TRITONCACHE_Cache*, const char*, TRITONCACHE_CacheEntry*, TRITONCACHE_Allocator*) {
  if (throws_at_insert) throw std::runtime_error("thrown at insert");
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "full");
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache*, const char*, TRITONCACHE_CacheEntry*, TRITONCACHE_Allocator*) {
  if (throws_at_lookup) throw std::runtime_error("thrown at lookup");
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "empty");
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
  maybe_throw(agent, model, "initialize");
  return nullptr;
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
  maybe_throw(agent, model, "finalize");
  return nullptr;
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action) {
  static const char* const places[] = {"load", "load_complete", "load_fail", "unload", "unload_complete"};
  maybe_throw(agent, model, places[action]);
  return nullptr;
}

}  // extern "C"
