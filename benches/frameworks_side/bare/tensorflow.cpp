// `TF_SessionRun` with prepared tensors; the results are deleted.

#include "bare.hpp"

namespace {

struct Output {
    void* operation;
    int index;
};

template <typename Function>
Function of(const char* name) {
    return bare::symbol<Function>(bare::library(), name);
}

void no_release(void*, std::size_t, void*) {}

struct Session final : bare::Model {
    explicit Session(const bare::Names& names) {
        status = of<void* (*)()>("TF_NewStatus")();
        code = of<int (*)(const void*)>("TF_GetCode");
        void* options = of<void* (*)()>("TF_NewSessionOptions")();
        // ConfigProto: one thread within operations and one between them.
        const unsigned char config[] = {0x10, 1, 0x28, 1};
        of<void (*)(void*, const void*, std::size_t, void*)>("TF_SetConfig")(options, config, sizeof config, status);
        check();
        void* graph = of<void* (*)()>("TF_NewGraph")();
        const char* tags[] = {"serve"};
        using Load = void* (*)(const void*, const void*, const char*, const char* const*, int, void*, void*, void*);
        session = of<Load>("TF_LoadSessionFromSavedModel")(
            options, nullptr, names.model.c_str(), tags, 1, graph, nullptr, status);
        check();
        auto operation = of<void* (*)(void*, const char*)>("TF_GraphOperationByName");
        from = {operation(graph, names.input.c_str()), 0};
        to = {operation(graph, names.output.c_str()), 0};
        run_session = of<Run>("TF_SessionRun");
        delete_tensor = of<void (*)(void*)>("TF_DeleteTensor");
        tensor_data = of<void* (*)(const void*)>("TF_TensorData");
        const std::size_t count = static_cast<std::size_t>(names.inputs * bare::kRows[1]);
        // The library copies tensors that do not begin at a multiple of 64 bytes.
        input = static_cast<float*>(std::aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64));
        const std::vector<float> numbers = bare::numbers(names.inputs * bare::kRows[1]);
        std::copy(numbers.begin(), numbers.end(), input);
        using New = void* (*)(int, const std::int64_t*, int, void*, std::size_t, void (*)(void*, std::size_t, void*), void*);
        for (std::size_t at = 0; at < 2; ++at) {
            const std::int64_t shape[] = {bare::kRows[at], names.inputs};
            const std::size_t bytes = static_cast<std::size_t>(shape[0] * shape[1]) * sizeof(float);
            inputs[at] = of<New>("TF_NewTensor")(1, shape, 2, input, bytes, no_release, nullptr);
        }
    }

    void check() {
        if (code(status) != 0) {
            bare::fail(of<const char* (*)(const void*)>("TF_Message")(status));
        }
    }

    float run(std::size_t at) override {
        void* result = nullptr;
        run_session(session, nullptr, &from, &inputs[at], 1, &to, &result, 1, nullptr, 0, nullptr, status);
        check();
        const float first = *static_cast<const float*>(tensor_data(result));
        delete_tensor(result);
        return first;
    }

    using Run = void (*)(
        void*, const void*, const Output*, void* const*, int, const Output*, void**, int, const void* const*, int, void*,
        void*);
    void *status = nullptr, *session = nullptr;
    int (*code)(const void*);
    Run run_session;
    void (*delete_tensor)(void*);
    void* (*tensor_data)(const void*);
    Output from{}, to{};
    float* input = nullptr;
    void* inputs[2];
};

}  // namespace

std::unique_ptr<bare::Model> bare::load(const Names& names) {
    return std::make_unique<Session>(names);
}
