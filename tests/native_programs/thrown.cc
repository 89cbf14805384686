// An application whose functions throw: each is called by the server, the exception is told, and the server goes on.
//
// Arguments: a repository, whose model `m` has one INT32 input and output of any length; `leaves` for a message that is
// given back too late, `tidy` for none.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

namespace {

enum Where { NOWHERE, START, ALLOC, ATTRIBUTES, FREE, COMPLETE, RELEASE, ACTIVITY, TENSOR, LET_GO };

struct Client {
  Where where = NOWHERE;
  std::mutex lock;
  std::condition_variable changed;
  int finals = 0, releases = 0, frees = 0, traces = 0, allocations = 0;
  std::vector<TRITONSERVER_InferenceResponse*> responses;

  void count(int& counter) {
    std::lock_guard<std::mutex> locked(lock);
    ++counter;
    changed.notify_all();
  }

  void wait(const int& counter) {
    std::unique_lock<std::mutex> locked(lock);
    expect(changed.wait_for(locked, std::chrono::minutes(1), [&] { return counter == 1; }));
  }

  // What no destructor of the server's may be in the way of, and nobody catches.
  void maybe_throw(Where here) const {
    if (where != here) return;
    if (here == TENSOR) throw 7;
    throw std::runtime_error("thrown on purpose");
  }
};

TRITONSERVER_Error* on_alloc(
    TRITONSERVER_ResponseAllocator*, const char*, size_t size, TRITONSERVER_MemoryType, int64_t, void* userp,
    void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual, int64_t* actual_id) {
  Client* client = static_cast<Client*>(userp);
  client->maybe_throw(ALLOC);
  *buffer = size > 0 ? new char[size] : nullptr;
  *buffer_userp = userp;
  *actual = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  client->count(client->allocations);
  return nullptr;
}

TRITONSERVER_Error* on_free(
    TRITONSERVER_ResponseAllocator*, void* buffer, void* userp, size_t, TRITONSERVER_MemoryType, int64_t) {
  Client* client = static_cast<Client*>(userp);
  delete[] static_cast<char*>(buffer);
  client->count(client->frees);
  client->maybe_throw(FREE);
  return nullptr;
}

TRITONSERVER_Error* on_start(TRITONSERVER_ResponseAllocator*, void* userp) {
  static_cast<Client*>(userp)->maybe_throw(START);
  return nullptr;
}

TRITONSERVER_Error* on_attributes(
    TRITONSERVER_ResponseAllocator*, const char*, TRITONSERVER_BufferAttributes*, void* userp, void*) {
  static_cast<Client*>(userp)->maybe_throw(ATTRIBUTES);
  return nullptr;
}

void on_complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  Client* client = static_cast<Client*>(userp);
  const bool throws = client->where == COMPLETE;
  if (response != nullptr) client->responses.push_back(response);
  // From here on the client may be gone.
  if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) client->count(client->finals);
  if (throws) throw std::runtime_error("thrown on purpose");
}

void on_release(TRITONSERVER_InferenceRequest*, const uint32_t, void* userp) {
  Client* client = static_cast<Client*>(userp);
  const bool throws = client->where == RELEASE;
  client->count(client->releases);
  if (throws) throw 7;
}

void on_activity(TRITONSERVER_InferenceTrace*, TRITONSERVER_InferenceTraceActivity, uint64_t, void* userp) {
  static_cast<Client*>(userp)->maybe_throw(ACTIVITY);
}

void on_tensor(
    TRITONSERVER_InferenceTrace*, TRITONSERVER_InferenceTraceActivity, const char*, TRITONSERVER_DataType, const void*,
    size_t, const int64_t*, uint64_t, TRITONSERVER_MemoryType, int64_t, void* userp) {
  static_cast<Client*>(userp)->maybe_throw(TENSOR);
}

void on_let_go(TRITONSERVER_InferenceTrace*, void* userp) {
  Client* client = static_cast<Client*>(userp);
  const bool throws = client->where == LET_GO;
  client->count(client->traces);
  if (throws) throw std::runtime_error("thrown on purpose");
}

void infer(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, Where where) {
  Client client;
  client.where = where;
  TRITONSERVER_InferenceRequest* request = nullptr;
  TRITONSERVER_InferenceTrace* trace = nullptr;
  const int32_t values[2] = {3, 4};
  const int64_t shape = 2;
  const auto level = static_cast<TRITONSERVER_InferenceTraceLevel>(
      TRITONSERVER_TRACE_LEVEL_TIMESTAMPS | TRITONSERVER_TRACE_LEVEL_TENSORS);
  succeeds(TRITONSERVER_InferenceTraceTensorNew(&trace, level, 0, on_activity, on_tensor, on_let_go, &client));
  succeeds(TRITONSERVER_InferenceRequestNew(&request, server, "m", -1));
  succeeds(TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_release, &client));
  succeeds(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, &client, on_complete, &client));
  succeeds(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, &shape, 1));
  succeeds(TRITONSERVER_InferenceRequestAppendInputData(
      request, "INPUT0", values, sizeof values, TRITONSERVER_MEMORY_CPU, 0));
  succeeds(TRITONSERVER_ServerInferAsync(server, request, trace));
  client.wait(client.finals);
  client.wait(client.releases);
  client.wait(client.traces);
  expect(client.responses.size() == 1);

  TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(client.responses[0]);
  const char* call = where == ALLOC        ? "TRITONSERVER_ResponseAllocatorAllocFn_t"
                     : where == ATTRIBUTES ? "TRITONSERVER_ResponseAllocatorBufferAttributesFn_t"
                                           : nullptr;
  if (call != nullptr) {
    const std::string text = std::string("the application threw an exception in ") + call + ": thrown on purpose";
    expect(error != nullptr && TRITONSERVER_ErrorCode(error) == TRITONSERVER_ERROR_INTERNAL);
    if (text != TRITONSERVER_ErrorMessage(error))
      check_failed(__FILE__, __LINE__, call, TRITONSERVER_ErrorMessage(error));
  } else {
    if (error != nullptr) check_failed(__FILE__, __LINE__, "infer", TRITONSERVER_ErrorMessage(error));
    const void* base = nullptr;
    size_t size = 0;
    succeeds(TRITONSERVER_InferenceResponseOutput(
        client.responses[0], 0, nullptr, nullptr, nullptr, nullptr, &base, &size, nullptr, nullptr, nullptr));
    expect(size == sizeof values && std::memcmp(base, values, size) == 0);
  }
  succeeds(TRITONSERVER_InferenceResponseDelete(client.responses[0]));
  succeeds(TRITONSERVER_InferenceRequestDelete(request));
  succeeds(TRITONSERVER_InferenceTraceDelete(trace));
  expect(client.frees == client.allocations && client.allocations == (where == ALLOC ? 0 : 1));
}

}  // namespace

int main(int argc, char** argv) {
  expect(argc == 3);
  TRITONSERVER_ServerOptions* options = nullptr;
  TRITONSERVER_Server* server = nullptr;
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  TRITONSERVER_Message* kept = nullptr;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  succeeds(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, argv[1]));
  succeeds(TRITONSERVER_ServerOptionsSetLogInfo(options, true));
  succeeds(TRITONSERVER_ServerNew(&server, options));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
  succeeds(TRITONSERVER_ResponseAllocatorNew(&allocator, on_alloc, on_free, on_start));
  succeeds(TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(allocator, on_attributes));
  for (int round = 0; round < 3; ++round)
    for (int where = NOWHERE; where <= LET_GO; ++where) infer(server, allocator, static_cast<Where>(where));
  succeeds(TRITONSERVER_ResponseAllocatorDelete(allocator));
  if (std::string(argv[2]) == "leaves") succeeds(TRITONSERVER_MessageNewFromSerializedJson(&kept, "{}", 2));
  succeeds(TRITONSERVER_ServerDelete(server));
  if (kept != nullptr) succeeds(TRITONSERVER_MessageDelete(kept));
  return 0;
}
