// Every entry into code that is not ours goes through here: a C++ exception must not end in Rust, where it would end
// the process. It becomes text for the caller instead.
//
// There is one function for all signatures. The thunk is Rust's and calls the foreign function through the C-unwind
// interface, which lets an exception pass; it never panics, so nothing of Rust's own is ever caught here.

#include <cxxabi.h>

#include <cstddef>
#include <cstdio>
#include <exception>

extern "C" bool nereid_guard(void (*thunk)(void*), void* context, char* thrown, size_t capacity) {
  try {
    thunk(context);
    return false;
  } catch (const std::exception& exception) {
    std::snprintf(thrown, capacity, "%s", exception.what());
    if (thrown[0] == 0) std::snprintf(thrown, capacity, "an exception without a message");
  } catch (abi::__forced_unwind&) {
    // A thread that is being cancelled goes on being so: it must not be caught.
    throw;
  } catch (...) {
    std::snprintf(thrown, capacity, "an exception that is no std::exception");
  }
  return true;
}
