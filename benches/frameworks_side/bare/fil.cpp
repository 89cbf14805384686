// The prediction of treelite.

#include "bare.hpp"

namespace {

using Handle = void*;

void check(int status) {
    if (status != 0) {
        bare::fail(bare::symbol<const char* (*)()>(bare::library(), "TreeliteGetLastError")());
    }
}

struct Forest final : bare::Model {
    explicit Forest(const bare::Names& names) : features(names.inputs), outputs(names.outputs) {
        void* library = bare::library();
        predict = bare::symbol<decltype(predict)>(library, "TreeliteGTILPredict");
        auto parse = bare::symbol<int (*)(const char*, Handle*)>(library, "TreeliteGTILParseConfig");
        auto read = bare::symbol<int (*)(const char*, const char*, Handle*)>(library, "TreeliteLoadLightGBMModel");
        check(read(names.model.c_str(), "{}", &model));
        check(parse("{\"predict_type\":\"default\",\"nthread\":1}", &configuration));
        input = bare::numbers(features * bare::kRows[1]);
        output.resize(outputs * bare::kRows[1]);
    }

    float run(std::size_t at) override {
        check(predict(model, input.data(), "float32", bare::kRows[at], output.data(), configuration));
        return output[0];
    }

    std::int64_t features, outputs;
    Handle model = nullptr, configuration = nullptr;
    std::vector<float> input, output;
    int (*predict)(Handle, const void*, const char*, std::uint64_t, void*, Handle);
};

}  // namespace

std::unique_ptr<bare::Model> bare::load(const Names& names) {
    return std::make_unique<Forest>(names);
}
