// A backend that breaks the rules of Triton's C interface, or goes to their edges, as its requests tell it to. Whatever
// it does, the server must answer every request once, keep its counts, and end in order.
//
// Model parameter "load": `throw` and `throw_odd` throw in ModelInitialize, `throw_instance` in
// ModelInstanceInitialize, `decoupled` completes the configuration with a decoupled transaction policy, `complete`
// with one input and one output of INT32.
//
// Request parameter "do":
//   throw, throw_odd   nothing is answered or released, an exception leaves Execute;
//   throw_late         the request is answered and released first;
//   fail_late          the same, and then the call returns an error as if it had taken nothing;
//   silent             released without an answer;
//   first              released first, answered afterwards;
//   twice              two responses, both marked as the last;
//   unfinished         one response that is not marked as the last, then the release;
//   hold               kept until another execution says flush;
//   flush              answers what is held, from a thread of its own, and itself;
//   forget             neither answered nor released;
//   null               calls the interface with NULL handles, reports how many calls did not refuse that;
//   flags              releases with unknown flags first, reports how many calls did not refuse that;
//   late_config        sets the configuration of a model that is initialised;
//   short              an output of one element whose shape says a million;
//   bare               an output without a buffer;
//   negative           an output with a negative dimension;
//   times              reports known times;
//   otherwise          answers with parameter "alignment": what the addresses of all input buffers are a multiple of.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

extern "C" {
#include "triton/core/tritonbackend.h"
}

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Error = TRITONSERVER_Error;

std::mutex held_mutex;
std::vector<TRITONBACKEND_Request*> held;
std::vector<std::thread> threads;

// Ends the process where the interface fails although it may not: the test sees the log and the signal.
void expect(Error* error) {
  if (error == nullptr) return;
  TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error));
  std::abort();
}

// 1 if the call was accepted, 0 if it was refused as it should be.
int accepted(Error* error) {
  if (error == nullptr) return 1;
  TRITONSERVER_ErrorDelete(error);
  return 0;
}

std::string parameter(TRITONBACKEND_Request* request, const std::string& name) {
  uint32_t count = 0;
  expect(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t at = 0; at < count; ++at) {
    const char* key = nullptr;
    TRITONSERVER_ParameterType type;
    const void* value = nullptr;
    expect(TRITONBACKEND_RequestParameter(request, at, &key, &type, &value));
    if (name == key && type == TRITONSERVER_PARAMETER_STRING) return static_cast<const char*>(value);
  }
  return {};
}

TRITONBACKEND_Output* output(TRITONBACKEND_Response* response, int64_t dim, uint64_t byte_size) {
  TRITONBACKEND_Output* made = nullptr;
  expect(TRITONBACKEND_ResponseOutput(response, &made, "OUTPUT0", static_cast<TRITONSERVER_DataType>(8), &dim, 1));
  if (byte_size > 0) {
    void* buffer = nullptr;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    expect(TRITONBACKEND_OutputBuffer(made, &buffer, byte_size, &type, &id));
    std::memset(buffer, 0, byte_size);
  }
  return made;
}

TRITONBACKEND_Response* response_of(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = nullptr;
  expect(TRITONBACKEND_ResponseNew(&response, request));
  return response;
}

void send(TRITONBACKEND_Response* response, uint32_t flags = TRITONSERVER_RESPONSE_COMPLETE_FINAL) {
  expect(TRITONBACKEND_ResponseSend(response, flags, nullptr));
}

void release(TRITONBACKEND_Request* request) {
  expect(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

void answer(TRITONBACKEND_Request* request, const char* name = nullptr, int64_t value = 0) {
  TRITONBACKEND_Response* response = response_of(request);
  output(response, 1, 4);
  if (name != nullptr) expect(TRITONBACKEND_ResponseSetIntParameter(response, name, value));
  send(response);
  release(request);
}

int64_t alignment(TRITONBACKEND_Request* request) {
  uint32_t inputs = 0;
  uintptr_t bits = 4096;
  expect(TRITONBACKEND_RequestInputCount(request, &inputs));
  for (uint32_t at = 0; at < inputs; ++at) {
    const char* name = nullptr;
    TRITONBACKEND_Input* input = nullptr;
    uint32_t buffers = 0;
    expect(TRITONBACKEND_RequestInputName(request, at, &name));
    expect(TRITONBACKEND_RequestInput(request, name, &input));
    expect(TRITONBACKEND_InputProperties(input, nullptr, nullptr, nullptr, nullptr, nullptr, &buffers));
    for (uint32_t index = 0; index < buffers; ++index) {
      const void* buffer = nullptr;
      uint64_t size = 0;
      TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
      int64_t id = 0;
      expect(TRITONBACKEND_InputBuffer(input, index, &buffer, &size, &type, &id));
      bits |= reinterpret_cast<uintptr_t>(buffer);
    }
  }
  return static_cast<int64_t>(bits & (~bits + 1));
}

int64_t null_handles(TRITONBACKEND_Request* request) {
  int wrong = 0;
  const char* name = nullptr;
  uint32_t count = 0;
  void* state = nullptr;
  const void* buffer = nullptr;
  uint64_t size = 0;
  int64_t id = 0, dim = 1;
  TRITONSERVER_MemoryType type;
  TRITONSERVER_ParameterType kind;
  TRITONBACKEND_Input* input = nullptr;
  TRITONBACKEND_Output* made = nullptr;
  TRITONBACKEND_Response* response = nullptr;
  TRITONSERVER_Message* message = nullptr;
  size_t length = 0;
  const auto int32 = static_cast<TRITONSERVER_DataType>(8);
  wrong += accepted(TRITONBACKEND_ApiVersion(nullptr, &count));
  wrong += accepted(TRITONBACKEND_BackendName(nullptr, &name));
  wrong += accepted(TRITONBACKEND_BackendConfig(nullptr, &message));
  wrong += accepted(TRITONBACKEND_BackendState(nullptr, &state));
  wrong += accepted(TRITONBACKEND_BackendSetState(nullptr, nullptr));
  wrong += accepted(TRITONBACKEND_ModelName(nullptr, &name));
  wrong += accepted(TRITONBACKEND_ModelConfig(nullptr, 1, &message));
  wrong += accepted(TRITONBACKEND_ModelSetState(nullptr, nullptr));
  wrong += accepted(TRITONBACKEND_ModelInstanceName(nullptr, &name));
  wrong += accepted(TRITONBACKEND_ModelInstanceSetState(nullptr, nullptr));
  wrong += accepted(TRITONBACKEND_ModelInstanceReportStatistics(nullptr, request, true, 1, 2, 3, 4));
  wrong += accepted(TRITONBACKEND_ModelInstanceReportBatchStatistics(nullptr, 1, 1, 2, 3, 4));
  wrong += accepted(TRITONBACKEND_RequestId(nullptr, &name));
  wrong += accepted(TRITONBACKEND_RequestId(request, nullptr));
  wrong += accepted(TRITONBACKEND_RequestInputCount(nullptr, &count));
  wrong += accepted(TRITONBACKEND_RequestInputName(request, 99, &name));
  wrong += accepted(TRITONBACKEND_RequestInput(request, nullptr, &input));
  wrong += accepted(TRITONBACKEND_RequestInput(request, "NO_SUCH", &input));
  wrong += accepted(TRITONBACKEND_RequestOutputName(request, 99, &name));
  wrong += accepted(TRITONBACKEND_RequestParameter(request, 99, &name, &kind, &buffer));
  wrong += accepted(TRITONBACKEND_RequestRelease(nullptr, TRITONSERVER_REQUEST_RELEASE_ALL));
  wrong += accepted(TRITONBACKEND_InputProperties(nullptr, &name, nullptr, nullptr, nullptr, nullptr, nullptr));
  wrong += accepted(TRITONBACKEND_InputBuffer(nullptr, 0, &buffer, &size, &type, &id));
  expect(TRITONBACKEND_RequestInput(request, "INPUT0", &input));
  wrong += accepted(TRITONBACKEND_InputBuffer(input, 99, &buffer, &size, &type, &id));
  wrong += accepted(TRITONBACKEND_ResponseNew(nullptr, request));
  wrong += accepted(TRITONBACKEND_ResponseNew(&response, nullptr));
  wrong += accepted(TRITONBACKEND_ResponseSetStringParameter(nullptr, "k", "v"));
  wrong += accepted(TRITONBACKEND_ResponseOutput(nullptr, &made, "OUTPUT0", int32, &dim, 1));
  wrong += accepted(TRITONBACKEND_ResponseSend(nullptr, 1, nullptr));
  wrong += accepted(TRITONBACKEND_OutputBuffer(nullptr, &state, 4, &type, &id));
  wrong += accepted(TRITONSERVER_MessageSerializeToJson(nullptr, &name, &length));
  wrong += accepted(TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, nullptr));
  // A response that is used wrongly and then given up leaves the request as it was.
  response = response_of(request);
  wrong += accepted(TRITONBACKEND_ResponseSetStringParameter(response, nullptr, "v"));
  wrong += accepted(TRITONBACKEND_ResponseSetStringParameter(response, "k", nullptr));
  wrong += accepted(TRITONBACKEND_ResponseOutput(response, &made, nullptr, int32, &dim, 1));
  wrong += accepted(TRITONBACKEND_ResponseOutput(response, &made, "OUTPUT0", TRITONSERVER_TYPE_INVALID, &dim, 1));
  wrong += accepted(TRITONBACKEND_ResponseOutput(response, &made, "OUTPUT0", int32, nullptr, 1));
  wrong += accepted(TRITONBACKEND_ResponseOutput(response, nullptr, "OUTPUT0", int32, &dim, 1));
  wrong += accepted(TRITONBACKEND_OutputBuffer(output(response, 1, 4), &state, 4, &type, &id));
  wrong += accepted(TRITONBACKEND_OutputBuffer(output(response, 1, 0), &state, UINT64_MAX, &type, &id));
  expect(TRITONBACKEND_ResponseDelete(response));
  TRITONSERVER_ErrorDelete(nullptr);
  return wrong;
}

int64_t wrong_flags(TRITONBACKEND_Request* request) {
  int wrong = 0;
  for (uint32_t flags : {0u, 2u, 3u, 7u, UINT32_MAX}) wrong += accepted(TRITONBACKEND_RequestRelease(request, flags));
  return wrong;
}

void flush() {
  std::lock_guard<std::mutex> lock(held_mutex);
  std::vector<TRITONBACKEND_Request*> requests;
  std::swap(requests, held);
  threads.emplace_back([requests] {
    for (TRITONBACKEND_Request* request : requests) answer(request, "thread", 1);
  });
}

const char* const COMPLETE = R"({"max_batch_size":0,
  "input":[{"name":"INPUT0","data_type":"TYPE_INT32","dims":[-1]}],
  "output":[{"name":"OUTPUT0","data_type":"TYPE_INT32","dims":[-1]}],
  "model_transaction_policy":{"decoupled":)";

Error* set_config(TRITONBACKEND_Model* model, bool decoupled) {
  const std::string json = std::string(COMPLETE) + (decoupled ? "true}}" : "false}}");
  TRITONSERVER_Message* message = nullptr;
  expect(TRITONSERVER_MessageNewFromSerializedJson(&message, json.data(), json.size()));
  Error* error = TRITONBACKEND_ModelSetConfig(model, 1, message);
  expect(TRITONSERVER_MessageDelete(message));
  return error;
}

}  // namespace

EXPORT Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* message = nullptr;
  const char* base = nullptr;
  size_t length = 0;
  expect(TRITONBACKEND_ModelConfig(model, 1, &message));
  expect(TRITONSERVER_MessageSerializeToJson(message, &base, &length));
  const std::string config(base, length);
  expect(TRITONSERVER_MessageDelete(message));
  const auto has = [&](const char* word) { return config.find(std::string("\"") + word + "\"") != std::string::npos; };
  if (has("throw")) throw std::runtime_error("no such luck: \"quoted\"");
  if (has("throw_odd")) throw 42;
  if (has("decoupled_please")) return set_config(model, true);
  if (has("complete_please")) return set_config(model, false);
  return nullptr;
}

EXPORT Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_Model* model = nullptr;
  const char* name = nullptr;
  expect(TRITONBACKEND_ModelInstanceModel(instance, &model));
  expect(TRITONBACKEND_ModelName(model, &name));
  if (std::string(name) == "throw_instance") throw std::logic_error("no instance today");
  return nullptr;
}

EXPORT Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance*) {
  std::lock_guard<std::mutex> lock(held_mutex);
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  throw std::runtime_error("even the end is an exception");
}

EXPORT Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t at = 0; at < count; ++at) {
    TRITONBACKEND_Request* request = requests[at];
    const std::string what = parameter(request, "do");
    if (what == "throw") throw std::runtime_error("thrown in Execute");
    if (what == "throw_odd") throw 42;
    if (what == "throw_late") {
      answer(request);
      throw std::runtime_error("thrown after the answer");
    }
    if (what == "fail_late") {
      answer(request);
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "failed after the answer");
    }
    if (what == "silent") {
      release(request);
    } else if (what == "first") {
      TRITONBACKEND_Response* response = response_of(request);
      release(request);
      output(response, 1, 4);
      send(response);
    } else if (what == "twice") {
      TRITONBACKEND_Response* one = response_of(request);
      TRITONBACKEND_Response* two = response_of(request);
      output(one, 1, 4);
      output(two, 1, 4);
      send(one);
      send(two);
      release(request);
    } else if (what == "unfinished") {
      TRITONBACKEND_Response* response = response_of(request);
      output(response, 1, 4);
      send(response, 0);
      release(request);
    } else if (what == "hold") {
      std::lock_guard<std::mutex> lock(held_mutex);
      held.push_back(request);
    } else if (what == "flush") {
      flush();
      answer(request);
    } else if (what == "forget") {
      // Nothing at all.
    } else if (what == "null") {
      answer(request, "wrong", null_handles(request));
    } else if (what == "flags") {
      answer(request, "wrong", wrong_flags(request));
    } else if (what == "late_config") {
      TRITONBACKEND_Model* model = nullptr;
      expect(TRITONBACKEND_ModelInstanceModel(instance, &model));
      answer(request, "wrong", accepted(set_config(model, false)));
    } else if (what == "short" || what == "bare" || what == "negative") {
      TRITONBACKEND_Response* response = response_of(request);
      output(response, what == "negative" ? -3 : 1000000, what == "bare" ? 0 : 4);
      send(response);
      release(request);
    } else if (what == "times") {
      expect(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, true, 1000, 3000, 7000, 15000));
      expect(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 5, 1000, 3000, 7000, 15000));
      answer(request);
    } else {
      answer(request, "alignment", alignment(request));
    }
  }
  return nullptr;
}
