// `Run` of ONNX Runtime with values over prepared memory.
//
// The packages of Python have no headers. The table of functions never changes its order, so that functions are taken by
// their places.

#include "bare.hpp"

namespace {

using Status = void*;

struct Api {
    void* const* table;

    template <typename... Arguments>
    void call(std::size_t place, Arguments... arguments) const {
        const Status status = reinterpret_cast<Status (*)(Arguments...)>(table[place])(arguments...);
        if (status != nullptr) {
            bare::fail(reinterpret_cast<const char* (*)(Status)>(table[kGetErrorMessage])(status));
        }
    }

    enum Place : std::size_t {
        kGetErrorMessage = 2, kCreateEnv = 3, kCreateSession = 7, kRun = 9, kCreateSessionOptions = 10,
        kSetIntraOpNumThreads = 24, kSetInterOpNumThreads = 25, kCreateTensorWithData = 49, kCreateCpuMemoryInfo = 69,
    };
};

Api api() {
    struct Base {
        const void* (*get)(std::uint32_t);
        const char* (*version)();
    };
    static const Api found{static_cast<void* const*>(
        bare::symbol<const Base* (*)()>(bare::library(), "OrtGetApiBase")()->get(17))};
    return found;
}

void* environment() {
    static void* const made = [] {
        void* environment = nullptr;
        api().call(Api::kCreateEnv, 3, "bare", &environment);
        return environment;
    }();
    return made;
}

struct Session final : bare::Model {
    explicit Session(const bare::Names& names) : input_name(names.input), output_name(names.output) {
        void *options = nullptr, *memory = nullptr;
        api().call(Api::kCreateSessionOptions, &options);
        api().call(Api::kSetIntraOpNumThreads, options, 1);
        api().call(Api::kSetInterOpNumThreads, options, 1);
        const void* of_process = environment();
        api().call(Api::kCreateSession, of_process, names.model.c_str(), static_cast<const void*>(options), &session);
        api().call(Api::kCreateCpuMemoryInfo, 1, 0, &memory);
        input = bare::numbers(names.inputs * bare::kRows[1]);
        output.resize(names.outputs * bare::kRows[1]);
        for (std::size_t at = 0; at < 2; ++at) {
            inputs[at] = value(memory, input, bare::kRows[at], names.inputs);
            outputs[at] = value(memory, output, bare::kRows[at], names.outputs);
        }
    }

    static void* value(void* memory, std::vector<float>& numbers, std::int64_t rows, std::int64_t columns) {
        const std::int64_t shape[] = {rows, columns};
        void* made = nullptr;
        const std::size_t bytes = static_cast<std::size_t>(rows * columns) * sizeof(float);
        api().call(
            Api::kCreateTensorWithData, static_cast<const void*>(memory), static_cast<void*>(numbers.data()), bytes,
            static_cast<const std::int64_t*>(shape), std::size_t{2}, 1, &made);
        return made;
    }

    float run(std::size_t at) override {
        const char *from = input_name.c_str(), *to = output_name.c_str();
        const void* given = inputs[at];
        api().call(
            Api::kRun, session, static_cast<const void*>(nullptr), static_cast<const char* const*>(&from),
            static_cast<const void* const*>(&given), std::size_t{1}, static_cast<const char* const*>(&to),
            std::size_t{1}, &outputs[at]);
        return output[0];
    }

    std::string input_name, output_name;
    void* session = nullptr;
    std::vector<float> input, output;
    void *inputs[2], *outputs[2];
};

}  // namespace

std::unique_ptr<bare::Model> bare::load(const Names& names) {
    return std::make_unique<Session>(names);
}
