// An infer request of OpenVINO with tensors over prepared memory. BARE_THREADS: its threads.

#include "bare.hpp"

namespace {

struct Shape {
    std::int64_t rank;
    std::int64_t* dims;
};

template <typename... Arguments>
void call(const char* name, Arguments... arguments) {
    const int status = bare::symbol<int (*)(Arguments...)>(bare::library(), name)(arguments...);
    if (status != 0) {
        bare::fail(std::string(name) + ": " + std::to_string(status));
    }
}

// Its number in releases since 2025.
constexpr int kFloat32 = 4;

struct Request final : bare::Model {
    explicit Request(const bare::Names& names) {
        static void* const core = [] {
            void* made = nullptr;
            call("ov_core_create", &made);
            return made;
        }();
        void *model = nullptr, *compiled = nullptr;
        const void* of_process = core;
        call("ov_core_read_model", of_process, names.model.c_str(), static_cast<const char*>(nullptr), &model);
        using Compile = int (*)(const void*, const void*, const char*, std::size_t, void**, ...);
        const int status = bare::symbol<Compile>(bare::library(), "ov_core_compile_model")(
            core, model, "CPU", 6, &compiled, "INFERENCE_NUM_THREADS", std::getenv("BARE_THREADS"), "NUM_STREAMS", "1",
            "INFERENCE_PRECISION_HINT", "f32");
        if (status != 0) {
            bare::fail("ov_core_compile_model: " + std::to_string(status));
        }
        call("ov_compiled_model_create_infer_request", static_cast<const void*>(compiled), &request);
        infer = bare::symbol<int (*)(void*)>(bare::library(), "ov_infer_request_infer");
        set_input = bare::symbol<Set>(bare::library(), "ov_infer_request_set_input_tensor_by_index");
        set_output = bare::symbol<Set>(bare::library(), "ov_infer_request_set_output_tensor_by_index");
        input = bare::numbers(names.inputs * bare::kRows[1]);
        output.resize(names.outputs * bare::kRows[1]);
        for (std::size_t at = 0; at < 2; ++at) {
            inputs[at] = tensor(input, bare::kRows[at], names.inputs);
            outputs[at] = tensor(output, bare::kRows[at], names.outputs);
        }
    }

    static void* tensor(std::vector<float>& numbers, std::int64_t rows, std::int64_t columns) {
        std::int64_t dims[] = {rows, columns};
        void* made = nullptr;
        call("ov_tensor_create_from_host_ptr", kFloat32, Shape{2, dims}, static_cast<void*>(numbers.data()), &made);
        return made;
    }

    float run(std::size_t at) override {
        if (set != at) {
            if (set_input(request, 0, inputs[at]) != 0 || set_output(request, 0, outputs[at]) != 0) {
                bare::fail("a tensor cannot be set");
            }
            set = at;
        }
        if (infer(request) != 0) {
            bare::fail("ov_infer_request_infer");
        }
        return output[0];
    }

    using Set = int (*)(void*, std::size_t, const void*);
    std::size_t set = 2;
    void* request = nullptr;
    int (*infer)(void*);
    Set set_input, set_output;
    std::vector<float> input, output;
    void *inputs[2], *outputs[2];
};

}  // namespace

std::unique_ptr<bare::Model> bare::load(const Names& names) {
    return std::make_unique<Request>(names);
}
