// A backend that does what a plug-in must not do, where its settings and its requests tell it to.
//
// --backend-config=culprit,throw_in=EXPORT and crash_in=EXPORT: the export without its prefix, for example
// ModelInitialize. --backend-config=culprit,crash_by=segv|abort|bus|fpe|ill.
//
// Request parameter "do": one of the names in `deeds` at the end, which says what each does. Deeds that abuse handles
// are for a server with NEREID_CHECK_HANDLES=1 only. Each answers its request with parameter "told", the messages of
// the calls that failed, one a line.

#include <signal.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "triton/core/tritonbackend.h"
#include "triton/core/tritonserver.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Error = TRITONSERVER_Error;

std::string throw_in, crash_in, crash_by;

// What nobody catches in here and no std::exception.
struct Odd {};

void expect(Error* error) {
  if (error == nullptr) return;
  std::fprintf(stderr, "culprit.cc: unexpected error: %s\n", TRITONSERVER_ErrorMessage(error));
  std::_Exit(3);
}

// The message of an error, which is deleted; `fine` for none.
std::string message(Error* error) {
  if (error == nullptr) return "fine";
  const std::string text =
      std::string(TRITONSERVER_ErrorCodeString(error)) + ": " + TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_ErrorDelete(error);
  return text;
}

void undefined_instruction() {
#if defined(__aarch64__)
  __asm__ volatile("udf #0");
#else
  __builtin_trap();
#endif
}

// What __builtin_trap is on Arm.
void breakpoint() {
#if defined(__aarch64__)
  __builtin_trap();
#else
  __asm__ volatile("int3");
#endif
}

[[noreturn]] void crash() {
  if (crash_by == "abort") std::abort();
  if (crash_by == "bus") raise(SIGBUS);
  if (crash_by == "fpe") raise(SIGFPE);
  if (crash_by == "ill") undefined_instruction();
  if (crash_by == "trap") breakpoint();
  volatile int* volatile nowhere = nullptr;
  *nowhere = 1;
  std::_Exit(4);
}

void reached(const std::string& place) {
  if (place == throw_in) {
    if (place == "ModelFinalize") throw Odd();
    throw std::runtime_error("thrown in " + place);
  }
  if (place == crash_in) crash();
}

std::string setting(const std::string& json, const std::string& key) {
  const std::string start = "\"" + key + "\":\"";
  const size_t at = json.find(start);
  if (at == std::string::npos) return {};
  const size_t from = at + start.size();
  return json.substr(from, json.find('"', from) - from);
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

TRITONBACKEND_Response* response_of(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = nullptr;
  expect(TRITONBACKEND_ResponseNew(&response, request));
  return response;
}

TRITONBACKEND_Output* output_of(TRITONBACKEND_Response* response) {
  TRITONBACKEND_Output* output = nullptr;
  const int64_t dim = 1;
  expect(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", TRITONSERVER_TYPE_INT32, &dim, 1));
  return output;
}

Error* buffer_of(TRITONBACKEND_Output* output) {
  void* buffer = nullptr;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  Error* error = TRITONBACKEND_OutputBuffer(output, &buffer, 4, &type, &id);
  if (error == nullptr) std::memset(buffer, 0, 4);
  return error;
}

// Answers with what was told, and releases.
void answer(TRITONBACKEND_Request* request, const std::string& told) {
  TRITONBACKEND_Response* response = response_of(request);
  expect(buffer_of(output_of(response)));
  expect(TRITONBACKEND_ResponseSetStringParameter(response, "told", told.c_str()));
  expect(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr));
  expect(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

template <class To, class From>
To* as(From* handle) {
  return reinterpret_cast<To*>(handle);
}

// What single deeds found; kept from request to request, as a request that was released cannot tell of it.
std::string found;

using Deed = std::function<void(TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request*)>;

const std::map<std::string, Deed> deeds = {
    {"tell", [](TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request* request) {
       const std::string told = found;
       found.clear();
       answer(request, told);
     }},
    {"request after release", [](TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request* request) {
       TRITONBACKEND_Input* input = nullptr;
       uint32_t count = 0;
       expect(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
       answer(request, "");
       found += message(TRITONBACKEND_RequestInputCount(request, &count)) + "\n";
       found += message(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL)) + "\n";
       found += message(TRITONBACKEND_InputProperties(
                    input, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr)) + "\n";
     }},
    {"response after send", [](TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request* request) {
       TRITONBACKEND_Response* response = response_of(request);
       TRITONBACKEND_Output* output = output_of(response);
       expect(buffer_of(output));
       expect(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr));
       found += message(TRITONBACKEND_ResponseSetIntParameter(response, "late", 1)) + "\n";
       found += message(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr)) + "\n";
       found += message(TRITONBACKEND_ResponseDelete(response)) + "\n";
       found += message(buffer_of(output)) + "\n";
       expect(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
     }},
    {"factory after delete", [](TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request* request) {
       TRITONBACKEND_ResponseFactory* factory = nullptr;
       TRITONBACKEND_Response* response = nullptr;
       bool is_cancelled = false;
       expect(TRITONBACKEND_ResponseFactoryNew(&factory, request));
       expect(TRITONBACKEND_ResponseFactoryDelete(factory));
       found += message(TRITONBACKEND_ResponseNewFromFactory(&response, factory)) + "\n";
       found += message(TRITONBACKEND_ResponseFactorySendFlags(factory, 1)) + "\n";
       found += message(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &is_cancelled)) + "\n";
       found += message(TRITONBACKEND_ResponseFactoryDelete(factory)) + "\n";
       answer(request, "");
     }},
    {"errors and messages", [](TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request* request) {
       Error* error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "lost");
       TRITONSERVER_ErrorDelete(error);
       TRITONSERVER_ErrorDelete(error);
       found += std::string(TRITONSERVER_ErrorMessage(error)) + "|" + TRITONSERVER_ErrorCodeString(error) + "\n";
       TRITONSERVER_Message* text = nullptr;
       const char* base = nullptr;
       size_t size = 0;
       expect(TRITONSERVER_MessageNewFromSerializedJson(&text, "{}", 2));
       expect(TRITONSERVER_MessageDelete(text));
       found += message(TRITONSERVER_MessageSerializeToJson(text, &base, &size)) + "\n";
       found += message(TRITONSERVER_MessageDelete(text)) + "\n";
       TRITONSERVER_BufferAttributes* attributes = nullptr;
       expect(TRITONSERVER_BufferAttributesNew(&attributes));
       expect(TRITONSERVER_BufferAttributesDelete(attributes));
       found += message(TRITONSERVER_BufferAttributesSetByteSize(attributes, 1)) + "\n";
       TRITONSERVER_MetricFamily* family = nullptr;
       TRITONSERVER_MetricArgs* arguments = nullptr;
       TRITONSERVER_Metric* metric = nullptr;
       expect(TRITONSERVER_MetricFamilyNew(&family, TRITONSERVER_METRIC_KIND_HISTOGRAM, "culprit", "help"));
       expect(TRITONSERVER_MetricArgsNew(&arguments));
       expect(TRITONSERVER_MetricArgsDelete(arguments));
       found += message(TRITONSERVER_MetricNewWithArgs(&metric, family, nullptr, 0, arguments)) + "\n";
       expect(TRITONSERVER_MetricFamilyDelete(family));
       TRITONBACKEND_Response* response = response_of(request);
       expect(buffer_of(output_of(response)));
       found += message(TRITONBACKEND_ResponseSend(response, 1, error)) + "\n";
       // A send that was refused leaves the response with its holder.
       expect(TRITONBACKEND_ResponseSend(response, 1, nullptr));
       expect(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
     }},
    {"other kinds", [](TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
       const char* name = nullptr;
       uint32_t count = 0;
       found += message(TRITONBACKEND_ModelName(as<TRITONBACKEND_Model>(instance), &name)) + "\n";
       found += message(TRITONBACKEND_RequestInputCount(as<TRITONBACKEND_Request>(instance), &count)) + "\n";
       found += message(TRITONBACKEND_ResponseDelete(as<TRITONBACKEND_Response>(request))) + "\n";
       found += message(TRITONBACKEND_ModelInstanceName(as<TRITONBACKEND_ModelInstance>(&count), &name)) + "\n";
       found += message(TRITONBACKEND_RequestRelease(as<TRITONBACKEND_Request>(&count), 1)) + "\n";
       answer(request, "");
     }},
    {"not its own", [](TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
       TRITONBACKEND_Model* model = nullptr;
       TRITONBACKEND_Backend* backend = nullptr;
       const char* name = nullptr;
       expect(TRITONBACKEND_ModelInstanceModel(instance, &model));
       expect(TRITONBACKEND_ModelBackend(model, &backend));
       expect(TRITONBACKEND_BackendName(backend, &name));
       expect(TRITONBACKEND_ModelName(model, &name));
       answer(request, name);
     }},
    {"late final", [](TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request* request) {
       TRITONBACKEND_ResponseFactory* factory = nullptr;
       expect(TRITONBACKEND_ResponseFactoryNew(&factory, request));
       answer(request, "first");
       // What comes after the last response is dropped, whatever it is.
       for (uint32_t flags : {0u, 1u}) {
         TRITONBACKEND_Response* response = nullptr;
         expect(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
         found += message(buffer_of(output_of(response))) + "\n";
         found += message(TRITONBACKEND_ResponseSend(response, flags, nullptr)) + "\n";
       }
       found += message(TRITONBACKEND_ResponseFactorySendFlags(factory, 1)) + "\n";
       expect(TRITONBACKEND_ResponseFactoryDelete(factory));
     }},
    {"numbers", [](TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
       std::string told;
       TRITONBACKEND_Output* output = nullptr;
       TRITONBACKEND_Input* input = nullptr;
       TRITONBACKEND_State* state = nullptr;
       TRITONBACKEND_Model* model = nullptr;
       TRITONBACKEND_Backend* backend = nullptr;
       TRITONSERVER_Message* text = nullptr;
       const char* name = nullptr;
       const void* base = nullptr;
       void* buffer = nullptr;
       uint64_t size = 0;
       TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
       int64_t id = 0;
       const int64_t dim = 1;
       expect(TRITONBACKEND_ModelInstanceModel(instance, &model));
       expect(TRITONBACKEND_ModelBackend(model, &backend));
       expect(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
       TRITONBACKEND_Response* response = response_of(request);
       for (uint32_t number : {15u, 99u, 0x80000000u, 0xffffffffu}) {
         told += message(TRITONBACKEND_RequestInputName(request, number, &name)) + "\n";
         told += message(TRITONBACKEND_RequestInputByIndex(request, number, &input)) + "\n";
         told += message(TRITONBACKEND_RequestOutputName(request, number, &name)) + "\n";
         told += message(TRITONBACKEND_InputBuffer(input, number, &base, &size, &type, &id)) + "\n";
         told += message(TRITONBACKEND_ResponseOutput(
                     response, &output, "X", static_cast<TRITONSERVER_DataType>(number), &dim, 1)) + "\n";
         told += message(TRITONBACKEND_RequestRelease(request, number)) + "\n";
         told += message(TRITONBACKEND_ModelConfig(model, number, &text)) + "\n";
         told += message(TRITONBACKEND_BackendSetExecutionPolicy(
                     backend, static_cast<TRITONBACKEND_ExecutionPolicy>(number))) + "\n";
         told += message(TRITONBACKEND_StateNew(
                     &state, request, "S", static_cast<TRITONSERVER_DataType>(number), &dim, 1)) + "\n";
         told += message(TRITONBACKEND_ModelReportMemoryUsage(model, nullptr, number)) + "\n";
         told += message(TRITONSERVER_LogMessage(
                     static_cast<TRITONSERVER_LogLevel>(number), __FILE__, __LINE__, "never seen")) + "\n";
       }
       expect(TRITONBACKEND_ResponseOutput(response, &output, "Y", TRITONSERVER_TYPE_INT8, &dim, 1));
       for (uint64_t bytes : {UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 2 + 1, uint64_t{1} << 56, uint64_t{1} << 48}) {
         told += message(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &type, &id)) + "\n";
       }
       expect(TRITONBACKEND_ResponseDelete(response));
       answer(request, told);
     }},
    {"stale text", [](TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request* request) {
       const char* name = nullptr;
       TRITONBACKEND_Input* input = nullptr;
       const void* base = nullptr;
       uint64_t size = 0;
       TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
       int64_t id = 0;
       TRITONBACKEND_ResponseFactory* factory = nullptr;
       expect(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
       expect(TRITONBACKEND_InputBuffer(input, 0, &base, &size, &type, &id));
       expect(TRITONBACKEND_RequestInputName(request, 0, &name));
       expect(TRITONBACKEND_ResponseFactoryNew(&factory, request));
       expect(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
       volatile char first = *static_cast<const volatile char*>(name);
       (void)first;
       expect(TRITONBACKEND_ResponseFactoryDelete(factory));
     }},
    {"leak", [](TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request* request) {
       TRITONBACKEND_ResponseFactory* factory = nullptr;
       TRITONSERVER_Message* text = nullptr;
       expect(TRITONBACKEND_ResponseFactoryNew(&factory, request));
       expect(TRITONSERVER_MessageNewFromSerializedJson(&text, "{}", 2));
       TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "left behind");
       response_of(request);
       answer(request, "");
     }},
    {"crash", [](TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request*) { crash(); }},
    {"crash elsewhere", [](TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request*) { std::thread(crash).join(); }},
};

}  // namespace

EXPORT Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  TRITONSERVER_Message* config = nullptr;
  const char* base = nullptr;
  size_t size = 0;
  expect(TRITONBACKEND_BackendConfig(backend, &config));
  expect(TRITONSERVER_MessageSerializeToJson(config, &base, &size));
  // The message stays the server's.
  const std::string json(base, size);
  throw_in = setting(json, "throw_in");
  crash_in = setting(json, "crash_in");
  crash_by = setting(json, "crash_by");
  reached("Initialize");
  return nullptr;
}

EXPORT Error* TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend*, TRITONBACKEND_BackendAttribute* attributes) {
  reached("GetBackendAttribute");
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, false);
}

EXPORT Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model*) {
  reached("ModelInitialize");
  return nullptr;
}

EXPORT Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model*) {
  reached("ModelFinalize");
  return nullptr;
}

EXPORT Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance*) {
  reached("ModelInstanceInitialize");
  return nullptr;
}

EXPORT Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance*) {
  reached("ModelInstanceFinalize");
  return nullptr;
}

EXPORT Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend*) {
  reached("Finalize");
  return nullptr;
}

EXPORT Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t at = 0; at < count; ++at) {
    const std::string what = parameter(requests[at], "do");
    if (what == "throw") throw std::runtime_error("thrown in Execute");
    if (what == "error") {
      expect(TRITONBACKEND_RequestRelease(requests[at], TRITONSERVER_REQUEST_RELEASE_ALL));
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "failed after the release");
    }
    if (what == "refuse") return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "not now");
    const auto deed = deeds.find(what);
    if (deed != deeds.end()) {
      deed->second(instance, requests[at]);
    } else {
      answer(requests[at], "nothing");
    }
  }
  return nullptr;
}
