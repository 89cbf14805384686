// A batching library: a batch has at most as many bytes of inputs as the model's parameter MAX_BYTES says.
//
// -DTHROWS: IncludeRequest and ModelBatchFinalize throw. -DFAILS: the batcher does not initialise. -DLACKS: one function
// is missing. -DREFUSES: nothing is ever included. Each call is told on stderr.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "triton/core/tritonbackend.h"
#include "triton/core/tritonserver.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

struct TRITONBACKEND_Batcher {
  uint64_t max_bytes;
};

namespace {

void expect(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  std::fprintf(stderr, "strategy.cc: unexpected error: %s\n", TRITONSERVER_ErrorMessage(error));
  std::_Exit(3);
}

struct Batch {
  uint64_t left;
};

}  // namespace

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(
    TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model) {
#ifdef FAILS
  (void)batcher;
  (void)model;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "not with me");
#else
  const char* name = nullptr;
  const char* base = nullptr;
  size_t size = 0;
  TRITONSERVER_Message* config = nullptr;
  expect(TRITONBACKEND_ModelName(model, &name));
  expect(TRITONBACKEND_ModelConfig(model, 1, &config));
  expect(TRITONSERVER_MessageSerializeToJson(config, &base, &size));
  const std::string json(base, size);
  expect(TRITONSERVER_MessageDelete(config));
  const std::string key = "\"MAX_BYTES\":{\"string_value\":\"";
  const size_t at = json.find(key);
  const uint64_t max_bytes = at == std::string::npos ? 1000 : std::strtoull(json.c_str() + at + key.size(), nullptr, 10);
  std::fprintf(stderr, "strategy.cc: batcher of %s begins with %d\n", name, static_cast<int>(max_bytes));
  *batcher = new TRITONBACKEND_Batcher{max_bytes};
  return nullptr;
#endif
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher) {
  std::fprintf(stderr, "strategy.cc: batcher ends\n");
  delete batcher;
  return nullptr;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** userp) {
  *userp = new Batch{batcher->max_bytes};
  std::fprintf(stderr, "strategy.cc: batch begins\n");
  return nullptr;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(
    TRITONBACKEND_Request* request, void* userp, bool* should_include) {
  Batch* batch = static_cast<Batch*>(userp);
  TRITONBACKEND_Input* input = nullptr;
  uint64_t bytes = 0;
  if (!*should_include) std::_Exit(5);
  expect(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  expect(TRITONBACKEND_InputProperties(input, nullptr, nullptr, nullptr, nullptr, &bytes, nullptr));
#ifdef THROWS
  throw std::runtime_error("no opinion");
#endif
#ifdef REFUSES
  bytes = UINT64_MAX;
#endif
  *should_include = bytes <= batch->left;
  if (*should_include) batch->left -= bytes;
  std::fprintf(stderr, "strategy.cc: %s\n", *should_include ? "in" : "out");
  return nullptr;
}

#ifndef LACKS
EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* userp) {
  delete static_cast<Batch*>(userp);
  std::fprintf(stderr, "strategy.cc: batch ends\n");
#ifdef THROWS
  throw 7;
#endif
  return nullptr;
}
#endif
