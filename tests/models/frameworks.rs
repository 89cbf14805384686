//! The conformance suite of the backends that run models of frameworks (contract/frameworks.md): every row of
//! [`table::FRAMEWORKS`] passes the same cases, and one network gives the same numbers in every format.
//!
//! Each framework is a module here with one test per case, so that a filter runs one backend or one case. Most cases do
//! not depend on the I/O engine and run once; see [`table`] for what a row states.

mod agreement;
mod batching;
mod bench;
mod broken_files;
mod cancellation;
mod datatypes;
mod files;
mod forests;
mod instances;
mod loads;
mod metadata;
mod missing_runtimes;
mod orders;
mod reference;
pub mod shared_memory;
mod table;
mod tensors;
mod threads;
mod wrong_inputs;

/// Tests of each framework. A case is a function of a row of the table.
macro_rules! suite {
    ($($framework:ident = $row:expr;)*) => {
        $(mod $framework {
            suite!(@cases $row;
                metadata::a_model_is_described_as_its_file_and_its_configuration_state;
                datatypes::every_datatype_comes_back_as_it_was_sent;
                batching::requests_are_joined_and_each_gets_its_rows;
                batching::shapes_may_change_from_request_to_request;
                batching::ragged_requests_are_joined_flat;
                batching::an_optional_input_may_be_left_out;
                wrong_inputs::a_wrong_request_is_refused_and_the_next_one_is_served;
                instances::instances_answer_in_parallel_and_mix_nothing_up;
                shared_memory::tensors_in_system_shared_memory_are_read_and_written_there;
                shared_memory::a_model_that_computes_in_place_does_not_write_to_its_input;
                cancellation::a_client_that_is_gone_costs_the_others_nothing;
                broken_files::a_file_that_cannot_be_loaded_is_an_error_of_its_load_alone;
                loads::a_hundred_loads_leave_nothing_behind;
            );
        })*
    };
    (@cases $row:expr; $($module:ident::$case:ident;)*) => {
        $(#[test]
        fn $case() {
            super::$module::$case(&$row);
        })*
    };
}

suite! {
    identity = super::table::IDENTITY;
    python = super::table::PYTHON;
    onnxruntime = super::table::ONNXRUNTIME;
    openvino = super::table::OPENVINO;
    fil = super::table::FIL;
    torchscript = super::table::TORCHSCRIPT;
    torch_aoti = super::table::TORCH_AOTI;
    savedmodel = super::table::SAVEDMODEL;
    graphdef = super::table::GRAPHDEF;
}
