// An extension of OpenVINO with one operation: three times its input.

#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>

namespace {

class Triple : public ov::op::Op {
public:
    OPENVINO_OP("Triple", "nereid_test");

    Triple() = default;
    explicit Triple(const ov::Output<ov::Node>& of) : Op({of}) { constructor_validate_and_infer_types(); }

    void validate_and_infer_types() override {
        set_output_type(0, get_input_element_type(0), get_input_partial_shape(0));
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        return std::make_shared<Triple>(inputs.at(0));
    }

    bool visit_attributes(ov::AttributeVisitor&) override { return true; }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        outputs[0].set_shape(inputs[0].get_shape());
        const float* from = inputs[0].data<const float>();
        float* to = outputs[0].data<float>();
        for (size_t at = 0; at < inputs[0].get_size(); at++) {
            to[at] = 3 * from[at];
        }
        return true;
    }
};

}  // namespace

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<Triple>>()}));
