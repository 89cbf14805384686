// Every entry into a plug-in goes through here: a C++ exception must not unwind into Rust, where it would end the
// process. It becomes text for the caller instead.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>

namespace {

template <class Call>
void* guarded(char* thrown, size_t capacity, Call call) {
  thrown[0] = 0;
  try {
    return call();
  } catch (const std::exception& exception) {
    std::snprintf(thrown, capacity, "%s", exception.what());
    if (thrown[0] == 0) std::snprintf(thrown, capacity, "an exception without a message");
  } catch (...) {
    std::snprintf(thrown, capacity, "an exception that is no std::exception");
  }
  return nullptr;
}

}  // namespace

extern "C" void* nereid_guard_call(void* (*function)(void*), void* handle, char* thrown, size_t capacity) {
  return guarded(thrown, capacity, [&] { return function(handle); });
}

extern "C" void* nereid_guard_describe(
    void* (*function)(void*, void*), void* handle, void* into, char* thrown, size_t capacity) {
  return guarded(thrown, capacity, [&] { return function(handle, into); });
}

extern "C" void* nereid_guard_execute(
    void* (*function)(void*, void**, uint32_t), void* instance, void** requests, uint32_t count, char* thrown,
    size_t capacity) {
  return guarded(thrown, capacity, [&] { return function(instance, requests, count); });
}
