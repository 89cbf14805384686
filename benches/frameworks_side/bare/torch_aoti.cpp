// A run of PyTorch's loader for packages of AOTInductor with a prepared tensor, with one thread.

#include "bare.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

namespace {

struct Package final : bare::Model {
    explicit Package(const bare::Names& names) : loader(names.model) {
        at::set_num_threads(1);
        input = bare::numbers(names.inputs * bare::kRows[1]);
        const c10::InferenceMode guard;
        for (const std::int64_t rows : bare::kRows) {
            inputs.push_back({at::from_blob(input.data(), {rows, names.inputs})});
        }
    }

    float run(std::size_t at) override {
        const c10::InferenceMode guard;
        const std::vector<at::Tensor> result = loader.run(inputs[at]);
        return *result[0].const_data_ptr<float>();
    }

    torch::inductor::AOTIModelPackageLoader loader;
    std::vector<float> input;
    std::vector<std::vector<at::Tensor>> inputs;
};

}  // namespace

std::unique_ptr<bare::Model> bare::load(const Names& names) {
    return std::make_unique<Package>(names);
}
