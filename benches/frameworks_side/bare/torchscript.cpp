// `forward` of a TorchScript module with a prepared tensor, in inference mode and with one thread.

#include "bare.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

namespace {

struct Module final : bare::Model {
    explicit Module(const bare::Names& names) {
        at::set_num_threads(1);
        const c10::InferenceMode guard;
        module = torch::jit::load(names.model);
        forward = module.get_method("forward");
        input = bare::numbers(names.inputs * bare::kRows[1]);
        for (const std::int64_t rows : bare::kRows) {
            inputs.push_back(at::from_blob(input.data(), {rows, names.inputs}));
        }
    }

    float run(std::size_t at) override {
        const c10::InferenceMode guard;
        const at::Tensor result = (*forward)({inputs[at]}).toTensor();
        return *result.const_data_ptr<float>();
    }

    torch::jit::Module module;
    std::optional<torch::jit::Method> forward;
    std::vector<float> input;
    std::vector<at::Tensor> inputs;
};

}  // namespace

std::unique_ptr<bare::Model> bare::load(const Names& names) {
    return std::make_unique<Module>(names);
}
