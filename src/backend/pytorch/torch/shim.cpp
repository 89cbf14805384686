// The part of PyTorch's C++ interface that the server needs, as C functions: TorchScript modules are loaded and run, and
// process-wide switches are set. The server compiles this file against the headers of the PyTorch that it has found,
// because the C++ interface of one version is not that of another; shim.rs declares the same functions and structures.
//
// Every exception is caught here and returned as text, which the caller releases. A function that returns text returns
// nullptr if it succeeded.

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/profiling_graph_executor_impl.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/version.h>

#if __has_include(<c10/core/CachingDeviceAllocator.h>)
#include <c10/core/CachingDeviceAllocator.h>
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
#define NEREID_HAS_DEVICE_ALLOCATORS
#endif
#endif

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

char* copy_text(const char* text) {
    const std::size_t bytes = std::strlen(text) + 1;
    char* copy = static_cast<char*>(std::malloc(bytes));
    if (copy == nullptr) {
        std::abort();
    }
    std::memcpy(copy, text, bytes);
    return copy;
}

// Calls `body` and returns the text of its exception, or nullptr.
template <typename Body>
char* caught(Body body) noexcept {
    try {
        body();
        return nullptr;
    } catch (const c10::Error& error) {
        // Without the addresses of this process's stack.
        return copy_text(error.what_without_backtrace());
    } catch (const std::exception& error) {
        return copy_text(error.what());
    } catch (...) {
        return copy_text("unknown exception");
    }
}

// A model's file that lies in memory.
class Memory final : public caffe2::serialize::ReadAdapterInterface {
public:
    Memory(const char* bytes, std::size_t size) : bytes_(bytes), size_(size) {}

    std::size_t size() const override { return size_; }

    std::size_t read(std::uint64_t at, void* to, std::size_t count, const char* what = "") const override {
        if (at > size_ || count > size_ - at) {
            throw std::out_of_range(std::string("the file ends within ") + what);
        }
        std::memcpy(to, bytes_ + at, count);
        return count;
    }

private:
    const char* bytes_;
    std::size_t size_;
};

enum ArgumentKind : std::int32_t { kTensor = 0, kList = 1, kDict = 2, kOther = 3 };

struct Argument {
    std::string name;
    std::string type;
    ArgumentKind kind;
    // The model writes to the tensor or keeps it beyond the call: it must not get the memory of a request.
    bool is_copied;
};

ArgumentKind kind_of(const c10::TypePtr& type) {
    switch (type->kind()) {
        case c10::TypeKind::TensorType:
            return kTensor;
        case c10::TypeKind::ListType:
            return kList;
        case c10::TypeKind::DictType:
            return kDict;
        default:
            return kOther;
    }
}

// What of a graph decides whether tensors of its arguments can outlive a call or are written to.
struct Effects {
    bool has_writes = false;
    bool may_keep = false;

    void read(torch::jit::Block* block, const torch::jit::AliasDb& aliases) {
        for (torch::jit::Node* node : block->nodes()) {
            if (aliases.isMutable(node)) {
                has_writes = true;
                // A write to anything but a tensor, such as an attribute or a list, may store a tensor there.
                const c10::FunctionSchema* schema = node->maybeSchema();
                if (schema == nullptr) {
                    may_keep = true;
                } else {
                    for (const c10::Argument& argument : schema->arguments()) {
                        const c10::AliasInfo* alias = argument.alias_info();
                        const bool is_written = alias != nullptr && alias->isWrite();
                        may_keep |= is_written && argument.type()->kind() != c10::TypeKind::TensorType;
                    }
                }
            }
            const c10::Symbol kind = node->kind();
            may_keep |= kind == c10::prim::SetAttr || kind == c10::prim::CallMethod ||
                kind == c10::prim::CallFunction || kind == c10::prim::fork;
            for (torch::jit::Block* inner : node->blocks()) {
                read(inner, aliases);
            }
        }
    }
};

}  // namespace

struct NereidModule {
    torch::jit::Module module;
    std::optional<torch::jit::Method> forward;
    std::vector<Argument> arguments;
    // Calls may change the module, so that they run one after the other where instances share it.
    bool has_memory = true;
    mutable std::mutex running;

    void describe() {
        forward = module.get_method("forward");
        const std::vector<c10::Argument>& declared = forward->function().getSchema().arguments();
        for (std::size_t index = 1; index < declared.size(); ++index) {
            const c10::TypePtr& type = declared[index].type();
            arguments.push_back({declared[index].name(), type->str(), kind_of(type), true});
        }
        try {
            const std::shared_ptr<torch::jit::Graph> graph = forward->graph()->copy();
            torch::jit::Inline(*graph);
            const torch::jit::AliasDb aliases(graph);
            Effects effects;
            effects.read(graph->block(), aliases);
            has_memory = effects.may_keep;
            for (std::size_t index = 0; index < arguments.size(); ++index) {
                const torch::jit::Value* value = graph->inputs().at(index + 1);
                const bool is_written = arguments[index].kind == kTensor ? aliases.hasWriters(value) : effects.has_writes;
                arguments[index].is_copied = effects.may_keep || is_written;
            }
        } catch (const std::exception&) {
            // The arguments of a graph that cannot be analysed are copied.
        }
    }
};

// A GPU, and the stream of an instance there.
struct NereidPlace {
    c10::Stream stream;

    explicit NereidPlace(c10::Device device)
        : stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}
};

struct NereidText {
    const char* bytes;
    std::size_t size;
};

// A tensor over the caller's memory, or a list of strings.
struct NereidInput {
    std::size_t argument;
    // The key in a Dict(str, Tensor); `argument` is that of the dictionary.
    NereidText key;
    bool is_strings;
    // c10::ScalarType
    std::int8_t type;
    void* data;
    const std::int64_t* sizes;
    std::size_t rank;
    const NereidText* strings;
    std::size_t string_count;
};

// How a module is run. Switches of the whole process: -1 leaves one as it is.
struct NereidOptions {
    bool is_optimized;
    bool is_inference;
    bool has_cudnn;
    // After each run the memory that the library keeps on GPUs is returned.
    bool returns_memory;
    std::int8_t tensor_fuser;
    std::int8_t jit_profiling;
    std::int8_t jit_executor;
};

struct NereidOutput {
    bool is_strings;
    std::int8_t type;
    const void* data;
    std::size_t byte_size;
    const std::int64_t* sizes;
    std::size_t rank;
    const NereidText* strings;
    std::size_t string_count;
};

namespace {

struct Output {
    at::Tensor tensor;
    std::vector<c10::IValue> kept;
    std::vector<NereidText> strings;
    bool is_strings;
};

at::Tensor tensor_of(const NereidInput& input, bool is_copied, const NereidPlace* place) {
    const at::IntArrayRef sizes(input.sizes, input.rank);
    const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(input.type)).device(at::kCPU);
    for (std::int64_t size : sizes) {
        if (size == 0) {
            return at::zeros(sizes, place == nullptr ? options : options.device(place->stream.device()));
        }
    }
    const at::Tensor tensor = at::from_blob(input.data, sizes, options);
    if (place != nullptr) {
        // The copy may go on when this returns: the memory of inputs lives as long as the result, which waits for it.
        return tensor.to(place->stream.device(), true, true);
    }
    return is_copied ? tensor.clone() : tensor;
}

c10::IValue value_of(const NereidInput& input, bool is_copied, const NereidPlace* place) {
    if (!input.is_strings) {
        return tensor_of(input, is_copied, place);
    }
    c10::List<std::string> list;
    list.reserve(input.string_count);
    for (std::size_t index = 0; index < input.string_count; ++index) {
        list.emplace_back(std::string(input.strings[index].bytes, input.strings[index].size));
    }
    return list;
}

// `at`: where the value is in the result, for errors.
Output output_of(const c10::IValue& value, const std::string& at) {
    Output output{};
    if (!value.isList()) {
        // Where the model has computed on a GPU, this waits for it.
        output.tensor = value.toTensor().to(at::kCPU).contiguous().resolve_conj().resolve_neg();
        return output;
    }
    const c10::List<c10::IValue> list = value.toList();
    if (list.elementType()->kind() != c10::TypeKind::StringType) {
        throw std::invalid_argument(
            "output " + at + "must be of type Tensor or List[str], received List[" + list.elementType()->str() + "]");
    }
    output.is_strings = true;
    for (std::size_t index = 0; index < list.size(); ++index) {
        output.kept.push_back(list.get(index));
        const std::string& text = output.kept.back().toStringRef();
        output.strings.push_back({text.data(), text.size()});
    }
    return output;
}

std::vector<Output> outputs_of(const c10::IValue& result) {
    std::vector<Output> outputs;
    if (result.isTuple()) {
        const auto tuple = result.toTuple();
        for (const c10::IValue& value : tuple->elements()) {
            outputs.push_back(output_of(value, "at index " + std::to_string(outputs.size()) + " "));
        }
    } else if (result.isTensor() || result.isList()) {
        outputs.push_back(output_of(result, ""));
    } else {
        throw std::invalid_argument(
            "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a "
            "List / Dictionary of Tensors or a Scalar");
    }
    return outputs;
}

void set_switches(const NereidOptions& options) {
    torch::jit::setGraphExecutorOptimize(options.is_optimized);
    if (at::globalContext().userEnabledCuDNN() != options.has_cudnn) {
        at::globalContext().setUserEnabledCuDNN(options.has_cudnn);
    }
    if (options.tensor_fuser >= 0) {
        torch::jit::setTensorExprFuserEnabled(options.tensor_fuser != 0);
    }
    if (options.jit_profiling >= 0) {
        torch::jit::getProfilingMode() = options.jit_profiling != 0;
    }
    if (options.jit_executor >= 0) {
        torch::jit::getExecutorMode() = options.jit_executor != 0;
    }
}

}  // namespace

struct NereidResult {
    std::vector<Output> outputs;
};

namespace {

// The current stream of this thread during a run, if the run has a place. It is empty when this ends, in any case: also
// after an exception no copy reads the memory of inputs any more.
class Current {
public:
    explicit Current(const NereidPlace* place) {
        if (place != nullptr) {
            guard_.emplace(place->stream);
        }
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

    ~Current() {
        if (guard_) {
            try {
                guard_->current_stream().synchronize();
            } catch (...) {
                // A GPU that is lost reads nothing; its next call returns the error.
            }
        }
    }

private:
    std::optional<c10::StreamGuard> guard_;
};

void return_memory(c10::DeviceType type) {
#ifdef NEREID_HAS_DEVICE_ALLOCATORS
    c10::getDeviceAllocator(type)->emptyCache();
#else
    (void)type;
#endif
}

}  // namespace

extern "C" {

// Increases with every change of a declaration here.
std::uint32_t nereid_torch_interface() {
    return 2;
}

// Whether `nereid_torch_run` can return memory of GPUs.
bool nereid_torch_returns_memory() {
#ifdef NEREID_HAS_DEVICE_ALLOCATORS
    return true;
#else
    return false;
#endif
}

void nereid_torch_release_text(char* text) {
    std::free(text);
}

// `device`: where the module's tensors are placed, or nullptr for where the file has them.
char* nereid_torch_load(
    const char* bytes, std::size_t size, const char* device, bool is_inference, NereidModule** module) {
    return caught([&] {
        const c10::InferenceMode guard(is_inference);
        std::optional<c10::Device> place;
        if (device != nullptr) {
            place = c10::Device(device);
        }
        auto loaded = std::make_unique<NereidModule>();
        loaded->module = torch::jit::load(std::make_shared<Memory>(bytes, size), place);
        loaded->describe();
        *module = loaded.release();
    });
}

void nereid_torch_release_module(NereidModule* module) {
    delete module;
}

std::size_t nereid_torch_argument_count(const NereidModule* module) {
    return module->arguments.size();
}

// `index` is below the count. The texts live as long as the module.
void nereid_torch_argument(
    const NereidModule* module, std::size_t index, NereidText* name, NereidText* type, std::int32_t* kind) {
    const Argument& argument = module->arguments[index];
    *name = {argument.name.data(), argument.name.size()};
    *type = {argument.type.data(), argument.type.size()};
    *kind = argument.kind;
}

// `device`: "cuda:0". The part of the library for such devices must be open in the process.
char* nereid_torch_place(const char* device, NereidPlace** place) {
    return caught([&] { *place = new NereidPlace(c10::Device(device)); });
}

void nereid_torch_release_place(NereidPlace* place) {
    delete place;
}

// Runs `forward`. The memory of `inputs` must live as long as the result, whose tensors may be views of it. `place`:
// where inputs go and the module's tensors are, or nullptr for the host.
char* nereid_torch_run(
    const NereidModule* module,
    const NereidPlace* place,
    const NereidOptions* options,
    const NereidInput* inputs,
    std::size_t count,
    NereidResult** result) {
    return caught([&] {
        const c10::InferenceMode guard(options->is_inference);
        const at::NoGradGuard without_gradients;
        const Current current(place);
        set_switches(*options);
        const std::vector<Argument>& arguments = module->arguments;
        std::vector<c10::IValue> values(arguments.size());
        std::optional<c10::Dict<std::string, at::Tensor>> dictionary;
        for (const NereidInput* input = inputs; input != inputs + count; ++input) {
            const Argument& argument = arguments.at(input->argument);
            if (argument.kind == kDict) {
                const std::string key(input->key.bytes, input->key.size);
                if (!dictionary) {
                    dictionary.emplace();
                    values[input->argument] = *dictionary;
                }
                dictionary->insert_or_assign(key, tensor_of(*input, argument.is_copied, place));
            } else {
                values[input->argument] = value_of(*input, argument.is_copied, place);
            }
        }
        std::unique_lock<std::mutex> alone(module->running, std::defer_lock);
        if (module->has_memory) {
            alone.lock();
        }
        torch::jit::Method forward = *module->forward;
        auto made = std::make_unique<NereidResult>();
        made->outputs = outputs_of(forward(std::move(values)));
        if (place != nullptr && options->returns_memory) {
            dictionary.reset();
            return_memory(place->stream.device_type());
        }
        *result = made.release();
    });
}

std::size_t nereid_torch_output_count(const NereidResult* result) {
    return result->outputs.size();
}

// `index` is below the count. The memory lives as long as the result.
void nereid_torch_output(const NereidResult* result, std::size_t index, NereidOutput* into) {
    const Output& output = result->outputs[index];
    *into = {};
    into->is_strings = output.is_strings;
    if (output.is_strings) {
        into->strings = output.strings.data();
        into->string_count = output.strings.size();
        return;
    }
    into->type = static_cast<std::int8_t>(output.tensor.scalar_type());
    into->data = output.tensor.const_data_ptr();
    into->byte_size = output.tensor.nbytes();
    into->sizes = output.tensor.sizes().data();
    into->rank = output.tensor.sizes().size();
}

void nereid_torch_release_result(NereidResult* result) {
    delete result;
}

char* nereid_torch_set_intra_op_threads(std::int32_t count) {
    return caught([&] { at::set_num_threads(count); });
}

char* nereid_torch_set_inter_op_threads(std::int32_t count) {
    return caught([&] { at::set_num_interop_threads(count); });
}

std::int32_t nereid_torch_intra_op_threads() {
    return at::get_num_threads();
}

std::int32_t nereid_torch_inter_op_threads() {
    return static_cast<std::int32_t>(at::get_num_interop_threads());
}

}  // extern "C"
