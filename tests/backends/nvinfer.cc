// A library in the place of TensorRT's runtime, for tests on simulated GPUs.
//
// It has the interface of libnvinfer as far as callers of this server and NVIDIA's Python package use it: shells with
// virtual functions at the places of version 10, or of version 11 where its file name ends in ".11". In a folder
// "without-runtime" it creates no runtime. It reads plans of its own (text) and enqueues its computations in the
// streams of simulated devices (src/gpu/simulated/foreign.rs).
//
// A plan:
//   nereid-plan 1                         (2: needs the permission to run code of the plan)
//   input NAME TYPE [DIM ...]             TYPE is a number of nvinfer1::DataType
//   output NAME TYPE [DIM ...]
//   bounds PROFILE NAME MIN ... / OPT ... / MAX ...
//   shape NAME                            the tensor determines shapes, and lies on the host
//   values PROFILE NAME MIN ... / OPT ... / MAX ...
//   format NAME NUMBER
//   add OUT A B | sub OUT A B | copy OUT A | reshape OUT A SHAPE | shapeof OUT A | nonzero OUT A
//   fail TEXT                             every execution fails
#include <dlfcn.h>

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Dims {
  int32_t rank;
  int64_t sizes[8];
};

using Sizes = std::vector<int64_t>;

Dims dims_of(const Sizes& sizes) {
  Dims dims{};
  dims.rank = static_cast<int32_t>(sizes.size());
  for (size_t at = 0; at < sizes.size(); ++at) dims.sizes[at] = sizes[at];
  return dims;
}

Dims no_dims() {
  Dims dims{};
  dims.rank = -1;
  return dims;
}

// ---------------------------------------------------------------------------------------------------- simulated GPUs

struct Span {
  uint64_t at, len, writes;
};

struct StreamLink {
  int32_t (*launch)(const StreamLink*, void (*)(void*), void (*)(void*), void*, const Span*, uint64_t);
};

struct Work {
  std::string op;
  const char *a = nullptr, *b = nullptr;
  char* out = nullptr;
  size_t count = 0, size = 0;
  int32_t type = 0;
  std::shared_ptr<struct Gate> gate;
};

// Lets the host wait for work in a stream.
struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
  bool is_open = false;
};

template <typename T>
void combine(const Work& work) {
  auto a = reinterpret_cast<const T*>(work.a), b = reinterpret_cast<const T*>(work.b);
  auto out = reinterpret_cast<T*>(work.out);
  for (size_t at = 0; at < work.count; ++at) {
    out[at] = work.op == "add" ? static_cast<T>(a[at] + b[at]) : static_cast<T>(a[at] - b[at]);
  }
}

void run(void* argument) {
  const Work& work = *static_cast<Work*>(argument);
  if (work.gate) {
    std::lock_guard<std::mutex> lock(work.gate->mutex);
    work.gate->is_open = true;
    work.gate->opened.notify_all();
    return;
  }
  if (work.op == "add" || work.op == "sub") {
    switch (work.type) {
      case 0: return combine<float>(work);
      case 3: return combine<int32_t>(work);
      case 8: return combine<int64_t>(work);
      default: return combine<int8_t>(work);
    }
  }
  std::memmove(work.out, work.a, work.count * work.size);
}

void release(void* argument) { delete static_cast<Work*>(argument); }

bool launch(void* stream, Work* work, const std::vector<Span>& spans) {
  auto link = static_cast<const StreamLink*>(stream);
  return link->launch(link, run, release, work, spans.data(), spans.size()) == 0;
}

// --------------------------------------------------------------------------------------------------------- versions

std::string own_path() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&own_path), &info);
  return info.dli_fname ? info.dli_fname : "";
}

int32_t version() {
  auto name = own_path();
  return name.size() > 3 && name.substr(name.size() - 3) == ".11" ? 110400 : 101601;
}

bool is_eleven() { return version() >= 110000; }

// ----------------------------------------------------------------------------------------------------------- logger

void log(void* logger, int32_t severity, const std::string& text) {
  auto table = *static_cast<void***>(logger);
  auto place = is_eleven() ? 4 : 0;
  reinterpret_cast<void (*)(void*, int32_t, const char*)>(table[place])(logger, severity, text.c_str());
}

// ------------------------------------------------------------------------------------------------------------ plans

struct Bounds {
  Sizes selected[3];
};

struct Tensor {
  std::string name;
  bool is_input = false, is_shape = false;
  int32_t type = 0, format = 0;
  Sizes sizes;
  std::map<int32_t, Bounds> bounds, values;
};

struct Step {
  std::string op;
  std::vector<std::string> names;
};

struct Plan {
  int32_t format = 0, profiles = 0;
  std::vector<Tensor> tensors;
  std::vector<Step> steps;
  std::string failure;

  Tensor* find(const std::string& name) {
    for (auto& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
};

Bounds read_bounds(std::istringstream& words) {
  Bounds bounds;
  std::string word;
  int at = 0;
  while (words >> word) {
    if (word == "/") {
      ++at;
    } else if (at < 3) {
      bounds.selected[at].push_back(std::stoll(word));
    }
  }
  return bounds;
}

bool parse(const char* data, size_t size, Plan& plan, std::string& error) {
  std::istringstream lines(std::string(data, size));
  std::string line;
  if (!std::getline(lines, line) || line.rfind("nereid-plan ", 0) != 0) {
    error = "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Magic tag does not match)";
    return false;
  }
  plan.format = std::stoi(line.substr(12));
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string what, name;
    words >> what;
    if (what.empty()) continue;
    if (what == "input" || what == "output") {
      Tensor tensor;
      int64_t size_of = 0;
      words >> tensor.name >> tensor.type;
      while (words >> size_of) tensor.sizes.push_back(size_of);
      tensor.is_input = what == "input";
      plan.tensors.push_back(tensor);
    } else if (what == "bounds" || what == "values") {
      int32_t profile = 0;
      words >> profile >> name;
      auto tensor = plan.find(name);
      if (!tensor) return error = "bounds of no tensor", false;
      plan.profiles = std::max(plan.profiles, profile + 1);
      (what == "bounds" ? tensor->bounds : tensor->values)[profile] = read_bounds(words);
    } else if (what == "shape") {
      words >> name;
      if (auto tensor = plan.find(name)) tensor->is_shape = true;
    } else if (what == "format") {
      words >> name;
      if (auto tensor = plan.find(name)) words >> tensor->format;
    } else if (what == "fail") {
      std::getline(words >> std::ws, plan.failure);
    } else {
      Step step{what, {}};
      while (words >> name) step.names.push_back(name);
      plan.steps.push_back(step);
    }
  }
  if (plan.profiles == 0) plan.profiles = 1;
  return true;
}

size_t size_of_type(int32_t type) {
  switch (type) {
    case 0: case 3: return 4;
    case 1: case 7: return 2;
    case 8: return 8;
    default: return 1;
  }
}

size_t count_of(const Sizes& sizes) {
  size_t count = 1;
  for (auto size : sizes) count *= size < 0 ? 0 : static_cast<size_t>(size);
  return count;
}

// ---------------------------------------------------------------------------------------------------------- objects

[[noreturn]] void wrong(const std::string& text) {
  std::fprintf(stderr, "stand-in for TensorRT: %s\n", text.c_str());
  std::abort();
}

int live = 0;
std::mutex live_mutex;

void count_live(int change) {
  std::lock_guard<std::mutex> lock(live_mutex);
  live += change;
}

// The object of the library behind a shell; both begin with the pointer of a table.
struct Object {
  void** table;
  explicit Object(void** table) : table(table) {}
};

struct Shell {
  void** table;
  Object* implementation;
  Shell(void** table, Object* implementation) : table(table), implementation(implementation) { count_live(1); }
  ~Shell() { count_live(-1); }
};

struct Runtime : Object {
  Shell shell;
  void* logger;
  int32_t dla_core = -1, max_threads = 1;
  bool allows_host_code = false;
  int engines = 0;
  Runtime(void** shells, void** methods, void* logger) : Object(methods), shell(shells, this), logger(logger) {}
};

struct Engine : Object {
  Shell shell;
  Runtime* runtime;
  Plan plan;
  int contexts = 0;
  Engine(void** shells, void** methods, Runtime* runtime) : Object(methods), shell(shells, this), runtime(runtime) {}
};

struct Context : Object {
  Shell shell;
  Engine* engine;
  int32_t profile = 0;
  std::map<std::string, Sizes> sizes;
  std::map<std::string, uint64_t> addresses;
  std::map<std::string, void*> allocators;
  Context(void** shells, void** methods, Engine* engine) : Object(methods), shell(shells, this), engine(engine) {}

  // The sizes of an input, or the values of a shape tensor.
  Sizes input(const std::string& name) {
    auto found = sizes.find(name);
    return found == sizes.end() ? engine->plan.find(name)->sizes : found->second;
  }

  Sizes values(const std::string& name) {
    auto tensor = engine->plan.find(name);
    Sizes found;
    auto at = addresses.find(name);
    if (at == addresses.end()) return found;
    for (size_t index = 0; index < count_of(tensor->sizes); ++index) {
      found.push_back(tensor->type == 8 ? reinterpret_cast<int64_t*>(at->second)[index]
                                        : reinterpret_cast<int32_t*>(at->second)[index]);
    }
    return found;
  }

  Sizes output(const std::string& name) {
    for (auto& step : engine->plan.steps) {
      if (step.names[0] != name) continue;
      if (step.op == "reshape") return values(step.names[2]);
      if (step.op == "nonzero" || step.op == "shapeof") return engine->plan.find(name)->sizes;
      return input(step.names[1]);
    }
    return engine->plan.find(name)->sizes;
  }
};

// ---------------------------------------------------------------------------------------------------------- methods

void* unknown(void* object) { wrong("a method without a place here was called on " + std::to_string(reinterpret_cast<uintptr_t>(object))); }

Context* as_context(void* object) { return static_cast<Context*>(static_cast<Object*>(object)); }
Engine* as_engine(void* object) { return static_cast<Engine*>(static_cast<Object*>(object)); }
Runtime* as_runtime(void* object) { return static_cast<Runtime*>(static_cast<Object*>(object)); }

Object* behind(void* shell) { return static_cast<Shell*>(shell)->implementation; }

void delete_runtime(void* shell) {
  auto runtime = as_runtime(behind(shell));
  if (runtime->engines != 0) wrong("a runtime is deleted before its engines");
  delete runtime;
}

void delete_engine(void* shell) {
  auto engine = as_engine(behind(shell));
  if (engine->contexts != 0) wrong("an engine is deleted before its contexts");
  --engine->runtime->engines;
  delete engine;
}

void delete_context(void* shell) {
  auto context = as_context(behind(shell));
  --context->engine->contexts;
  delete context;
}

using Table = std::vector<void*>;

// Tables have two words in front: the offset of the object, and its type. Callers may read both.
constexpr size_t FRONT = 2;

Table shell_table(void (*destroy)(void*)) {
  return Table{nullptr, nullptr, reinterpret_cast<void*>(destroy), reinterpret_cast<void*>(destroy)};
}

template <typename F>
void put(Table& table, size_t place, F function) {
  if (table.empty()) table.resize(FRONT, nullptr);
  if (table.size() <= FRONT + place) table.resize(FRONT + place + 1, reinterpret_cast<void*>(&unknown));
  table[FRONT + place] = reinterpret_cast<void*>(function);
}

// A place of version 10, and that of version 11.
size_t place(size_t ten, size_t eleven) { return is_eleven() ? eleven : ten; }

Tensor& tensor_of(void* engine, const char* name) {
  static Tensor none;
  auto found = as_engine(engine)->plan.find(name);
  return found ? *found : none;
}

bool set_profile(void* object, int32_t profile, void*) {
  auto context = as_context(object);
  if (profile < 0 || profile >= context->engine->plan.profiles) return false;
  context->profile = profile;
  return true;
}

bool set_input_shape(void* object, const char* name, const Dims* dims) {
  auto context = as_context(object);
  auto tensor = context->engine->plan.find(name);
  Sizes sizes(dims->sizes, dims->sizes + dims->rank);
  auto refuse = [&](const std::string& text) {
    log(context->engine->runtime->logger, 1, "IExecutionContext::setInputShape: Error Code 3: API Usage Error (" + text + ")");
    return false;
  };
  if (!tensor || !tensor->is_input || sizes.size() != tensor->sizes.size()) return refuse("no such input");
  auto bounds = tensor->bounds.find(context->profile);
  for (size_t at = 0; at < sizes.size(); ++at) {
    auto least = tensor->sizes[at], most = tensor->sizes[at];
    if (bounds != tensor->bounds.end()) least = bounds->second.selected[0][at], most = bounds->second.selected[2][at];
    if (least >= 0 && (sizes[at] < least || sizes[at] > most)) return refuse("the shape leaves the profile");
  }
  context->sizes[name] = sizes;
  return true;
}

Dims context_shape(void* object, const char* name) {
  auto context = as_context(object);
  auto tensor = context->engine->plan.find(name);
  if (!tensor) return no_dims();
  return dims_of(tensor->is_input ? context->input(name) : context->output(name));
}

bool set_address(void* object, const char* name, void* address) {
  auto context = as_context(object);
  if (!context->engine->plan.find(name) || !address) return false;
  context->addresses[name] = reinterpret_cast<uint64_t>(address);
  context->allocators.erase(name);
  return true;
}

int32_t infer_shapes(void* object, int32_t, const char**) {
  auto context = as_context(object);
  int32_t missing = 0;
  for (auto& tensor : context->engine->plan.tensors) {
    if (!tensor.is_input) continue;
    for (auto size : context->input(tensor.name)) missing += size < 0;
    missing += tensor.is_shape && !context->addresses.count(tensor.name);
  }
  return missing;
}

bool set_allocator(void* object, const char* name, void* allocator) {
  as_context(object)->allocators[name] = allocator;
  return true;
}

// The elements that are not zero, read by the host when the stream has come there.
bool nonzero(Context& context, void* stream, const Step& step) {
  auto in = context.engine->plan.find(step.names[1]);
  auto sizes = context.input(in->name);
  auto count = count_of(sizes);
  auto from = context.addresses[in->name];
  auto gate = std::make_shared<Gate>();
  auto wait = new Work;
  wait->gate = gate;
  if (!launch(stream, wait, {{from, count * 4, 0}})) return false;
  {
    std::unique_lock<std::mutex> lock(gate->mutex);
    gate->opened.wait(lock, [&] { return gate->is_open; });
  }
  Sizes found{0};
  auto floats = reinterpret_cast<const float*>(from);
  auto kept = std::make_unique<std::vector<float>>();
  for (size_t at = 0; at < count; ++at) {
    if (floats[at] != 0) kept->push_back(floats[at]);
  }
  found[0] = static_cast<int64_t>(kept->size());
  auto allocator = context.allocators.find(step.names[0]);
  if (allocator == context.allocators.end()) return false;
  auto object = allocator->second;
  auto table = *static_cast<void***>(object);
  auto reallocate = reinterpret_cast<void* (*)(void*, const char*, void*, uint64_t, uint64_t, void*)>(table[5]);
  auto notify = reinterpret_cast<void (*)(void*, const char*, const Dims*)>(table[6]);
  auto bytes = kept->size() * 4;
  // As a library that first estimates: the second call has the size.
  auto memory = reallocate(object, step.names[0].c_str(), nullptr, 4, 256, stream);
  memory = reallocate(object, step.names[0].c_str(), memory, bytes, 256, stream);
  if (!memory) return false;
  auto dims = dims_of(found);
  notify(object, step.names[0].c_str(), &dims);
  static std::vector<std::unique_ptr<std::vector<float>>> sources;
  sources.push_back(std::move(kept));
  auto work = new Work;
  work->op = "copy";
  work->a = reinterpret_cast<const char*>(sources.back()->data());
  work->out = static_cast<char*>(memory);
  work->count = bytes;
  work->size = 1;
  return launch(stream, work, {{reinterpret_cast<uint64_t>(memory), bytes, 1}});
}

bool enqueue(void* object, void* stream) {
  auto& context = *as_context(object);
  auto& plan = context.engine->plan;
  if (!plan.failure.empty()) {
    log(context.engine->runtime->logger, 1, plan.failure);
    return false;
  }
  if (!stream || infer_shapes(object, 0, nullptr) != 0) return false;
  for (auto& step : plan.steps) {
    if (step.op == "nonzero") {
      if (!nonzero(context, stream, step)) return false;
      continue;
    }
    auto out = plan.find(step.names[0]), in = plan.find(step.names[1]);
    if (step.op == "shapeof") {
      auto sizes = context.input(in->name);
      auto to = reinterpret_cast<int64_t*>(context.addresses[out->name]);
      for (size_t at = 0; at < sizes.size(); ++at) to[at] = sizes[at];
      continue;
    }
    auto work = new Work;
    work->op = step.op;
    work->type = in->type;
    work->size = size_of_type(in->type);
    work->count = count_of(context.input(in->name));
    work->a = reinterpret_cast<const char*>(context.addresses[in->name]);
    work->out = reinterpret_cast<char*>(context.addresses[out->name]);
    auto bytes = work->count * work->size;
    std::vector<Span> spans{{reinterpret_cast<uint64_t>(work->a), bytes, 0}, {reinterpret_cast<uint64_t>(work->out), bytes, 1}};
    if (step.op == "add" || step.op == "sub") {
      work->b = reinterpret_cast<const char*>(context.addresses[step.names[2]]);
      spans.push_back({reinterpret_cast<uint64_t>(work->b), bytes, 0});
    }
    if (!launch(stream, work, spans)) return false;
  }
  return true;
}

void** context_shells() {
  static Table table = shell_table(delete_context);
  return table.data() + FRONT;
}

void** context_methods() {
  static Table table = [] {
    Table table;
    put(table, 7, +[](void* object) -> void* { return &as_context(object)->engine->shell; });
    put(table, 11, +[](void* object) { return as_context(object)->profile; });
    put(table, place(17, 16), set_profile);
    put(table, place(21, 20), set_input_shape);
    put(table, place(22, 21), context_shape);
    put(table, place(24, 23), set_address);
    put(table, place(28, 27), infer_shapes);
    put(table, place(32, 31), set_allocator);
    put(table, place(37, 36), enqueue);
    return table;
  }();
  return table.data() + FRONT;
}

void* create_context(void* object, int32_t strategy) {
  auto engine = as_engine(object);
  if (strategy < 0 || strategy > 1) return nullptr;
  ++engine->contexts;
  return &(new Context(context_shells(), context_methods(), engine))->shell;
}

Dims profile_shape(void* object, const char* name, int32_t profile, int32_t selector) {
  auto& tensor = tensor_of(object, name);
  auto found = tensor.bounds.find(profile);
  if (found == tensor.bounds.end() || selector < 0 || selector > 2) return no_dims();
  return dims_of(found->second.selected[selector]);
}

const int64_t* profile_values(void* object, const char* name, int32_t profile, int32_t selector) {
  auto& tensor = tensor_of(object, name);
  auto found = tensor.values.find(profile);
  if (found == tensor.values.end() || selector < 0 || selector > 2) return nullptr;
  return found->second.selected[selector].data();
}

void** engine_shells() {
  static Table table = shell_table(delete_engine);
  return table.data() + FRONT;
}

void** engine_methods() {
  static Table table = [] {
    Table table;
    put(table, 3, +[](void* object) { return static_cast<int32_t>(as_engine(object)->plan.steps.size()); });
    put(table, 5, create_context);
    put(table, place(10, 8), +[](void* object) { return as_engine(object)->plan.profiles; });
    put(table, place(19, 15), +[](void* object, const char* name) { return dims_of(tensor_of(object, name).sizes); });
    put(table, place(20, 16), +[](void* object, const char* name) { return tensor_of(object, name).type; });
    put(table, place(21, 17), +[](void* object, const char* name) { return tensor_of(object, name).is_shape ? 1 : 0; });
    put(table, place(22, 18), +[](void* object, const char* name) { return tensor_of(object, name).is_shape; });
    put(table, place(23, 19), +[](void* object, const char* name) { return tensor_of(object, name).is_input ? 1 : 2; });
    put(table, place(29, 25), profile_shape);
    put(table, place(30, 26), +[](void* object) { return static_cast<int32_t>(as_engine(object)->plan.tensors.size()); });
    put(table, place(31, 27), +[](void* object, int32_t index) -> const char* {
      auto& tensors = as_engine(object)->plan.tensors;
      return index >= 0 && static_cast<size_t>(index) < tensors.size() ? tensors[index].name.c_str() : nullptr;
    });
    put(table, place(35, 31), +[](void*, const char*, int32_t) { return 1; });
    put(table, place(36, 32), +[](void* object, const char* name, int32_t) { return tensor_of(object, name).format; });
    put(table, place(38, 34), +[](void*, const char*, int32_t) { return -1; });
    put(table, place(54, 46), profile_values);
    return table;
  }();
  return table.data() + FRONT;
}

void* deserialize(void* object, const void* data, size_t size) {
  auto runtime = as_runtime(object);
  auto engine = std::make_unique<Engine>(engine_shells(), engine_methods(), runtime);
  std::string error;
  if (!parse(static_cast<const char*>(data), size, engine->plan, error)) {
    log(runtime->logger, 1, error);
    return nullptr;
  }
  if (engine->plan.format == 2 && !runtime->allows_host_code) {
    log(runtime->logger, 1,
        "IRuntime::deserializeCudaEngine: Error Code 4: API Usage Error (Cannot deserialize engine with lean runtime)");
    return nullptr;
  }
  ++runtime->engines;
  return &engine.release()->shell;
}

void** runtime_shells() {
  static Table table = shell_table(delete_runtime);
  return table.data() + FRONT;
}

void** runtime_methods() {
  static Table table = [] {
    Table table;
    put(table, 3, deserialize);
    put(table, place(5, 4), +[](void* object, int32_t core) { as_runtime(object)->dla_core = core; });
    put(table, place(6, 5), +[](void* object) { return as_runtime(object)->dla_core; });
    put(table, place(7, 6), +[](void*) { return 2; });
    put(table, place(11, 10), +[](void* object) { return as_runtime(object)->logger; });
    put(table, place(12, 11), +[](void* object, int32_t most) { as_runtime(object)->max_threads = most; return true; });
    put(table, place(13, 12), +[](void* object) { return as_runtime(object)->max_threads; });
    put(table, place(21, 20), +[](void* object, bool allows) { as_runtime(object)->allows_host_code = allows; });
    put(table, place(22, 21), +[](void* object) { return as_runtime(object)->allows_host_code; });
    return table;
  }();
  return table.data() + FRONT;
}

}  // namespace

EXPORT int32_t getInferLibVersion() { return version(); }

EXPORT void* createInferRuntime_INTERNAL(void* logger, int32_t) {
  if (own_path().find("/without-runtime/") != std::string::npos) {
    log(logger, 1, "createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure with error: 35)");
    // As TensorRT does: the offset of a base class is added to null.
    return reinterpret_cast<void*>(0x228);
  }
  return &(new Runtime(runtime_shells(), runtime_methods(), logger))->shell;
}

EXPORT int nereid_computes_on_simulated_gpus() { return 1; }

// Runtimes, engines and contexts that are not deleted.
EXPORT int nereid_live_objects() {
  std::lock_guard<std::mutex> lock(live_mutex);
  return live;
}

// What NVIDIA's Python package links besides.
EXPORT void* createInferRefitter_INTERNAL(void*, void*, int32_t) { return nullptr; }
EXPORT void* getPluginRegistry() { return nullptr; }
EXPORT void* getLogger() { return nullptr; }
EXPORT int32_t getInferLibMajorVersion() { return version() / 10000; }
EXPORT int32_t getInferLibMinorVersion() { return version() / 100 % 100; }
EXPORT int32_t getInferLibPatchVersion() { return version() % 100; }
EXPORT int32_t getInferLibBuildVersion() { return 0; }
