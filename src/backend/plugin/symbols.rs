//! The table that keeps Triton's functions in the program.
//!
//! Nothing in the program calls most of them; plug-ins do, by name. Without a reference the linker would drop them,
//! and a plug-in would fail to open or bind to another copy of the server.

use crate::abi;

/// Addresses of every function that plug-ins may bind to.
#[used]
static SYMBOLS: &[Address] = &[
    Address(abi::server::TRITONSERVER_ApiVersion as *const ()),
    Address(abi::server::TRITONSERVER_DataTypeString as *const ()),
    Address(abi::server::TRITONSERVER_StringToDataType as *const ()),
    Address(abi::server::TRITONSERVER_DataTypeByteSize as *const ()),
    Address(abi::server::TRITONSERVER_MemoryTypeString as *const ()),
    Address(abi::server::TRITONSERVER_ParameterTypeString as *const ()),
    Address(abi::server::TRITONSERVER_InstanceGroupKindString as *const ()),
    Address(abi::server::TRITONSERVER_ErrorNew as *const ()),
    Address(abi::server::TRITONSERVER_ErrorDelete as *const ()),
    Address(abi::server::TRITONSERVER_ErrorCode as *const ()),
    Address(abi::server::TRITONSERVER_ErrorCodeString as *const ()),
    Address(abi::server::TRITONSERVER_ErrorMessage as *const ()),
    Address(abi::server::TRITONSERVER_MessageNewFromSerializedJson as *const ()),
    Address(abi::server::TRITONSERVER_MessageDelete as *const ()),
    Address(abi::server::TRITONSERVER_MessageSerializeToJson as *const ()),
    Address(abi::server::TRITONSERVER_LogIsEnabled as *const ()),
    Address(abi::server::TRITONSERVER_LogMessage as *const ()),
    Address(abi::server::buffer_attributes::TRITONSERVER_BufferAttributesNew as *const ()),
    Address(abi::server::buffer_attributes::TRITONSERVER_BufferAttributesDelete as *const ()),
    Address(abi::server::buffer_attributes::TRITONSERVER_BufferAttributesSetMemoryType as *const ()),
    Address(abi::server::buffer_attributes::TRITONSERVER_BufferAttributesSetMemoryTypeId as *const ()),
    Address(abi::server::buffer_attributes::TRITONSERVER_BufferAttributesSetByteSize as *const ()),
    Address(abi::server::buffer_attributes::TRITONSERVER_BufferAttributesSetCudaIpcHandle as *const ()),
    Address(abi::server::buffer_attributes::TRITONSERVER_BufferAttributesMemoryType as *const ()),
    Address(abi::server::buffer_attributes::TRITONSERVER_BufferAttributesMemoryTypeId as *const ()),
    Address(abi::server::buffer_attributes::TRITONSERVER_BufferAttributesByteSize as *const ()),
    Address(abi::server::buffer_attributes::TRITONSERVER_BufferAttributesCudaIpcHandle as *const ()),
    Address(abi::server::trace::TRITONSERVER_InferenceTraceLevelString as *const ()),
    Address(abi::server::trace::TRITONSERVER_InferenceTraceActivityString as *const ()),
    Address(abi::server::trace::TRITONSERVER_InferenceTraceReportActivity as *const ()),
    Address(abi::server::trace::TRITONSERVER_InferenceTraceDelete as *const ()),
    Address(abi::server::trace::TRITONSERVER_InferenceTraceId as *const ()),
    Address(abi::server::trace::TRITONSERVER_InferenceTraceParentId as *const ()),
    Address(abi::server::trace::TRITONSERVER_InferenceTraceModelName as *const ()),
    Address(abi::server::trace::TRITONSERVER_InferenceTraceModelVersion as *const ()),
    Address(abi::server::trace::TRITONSERVER_InferenceTraceRequestId as *const ()),
    Address(abi::server::trace::TRITONSERVER_InferenceTraceSpawnChildTrace as *const ()),
    Address(abi::server::trace::TRITONSERVER_InferenceTraceContext as *const ()),
    Address(abi::server::trace::TRITONBACKEND_RequestTrace as *const ()),
    Address(abi::backend::TRITONBACKEND_BackendName as *const ()),
    Address(abi::backend::TRITONBACKEND_BackendConfig as *const ()),
    Address(abi::backend::TRITONBACKEND_BackendExecutionPolicy as *const ()),
    Address(abi::backend::TRITONBACKEND_BackendState as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelName as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelVersion as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelAutoCompleteConfig as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelBackend as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelState as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelInstanceName as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelInstanceKind as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelInstanceDeviceId as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelInstanceIsPassive as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelInstanceModel as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelInstanceState as *const ()),
    Address(abi::backend::TRITONBACKEND_BackendSetState as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelSetState as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelInstanceSetState as *const ()),
    Address(abi::backend::TRITONBACKEND_ApiVersion as *const ()),
    Address(abi::backend::TRITONBACKEND_BackendArtifacts as *const ()),
    Address(abi::backend::TRITONBACKEND_BackendSetExecutionPolicy as *const ()),
    Address(abi::backend::TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup as *const ()),
    Address(abi::backend::TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelRepository as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelConfig as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelSetConfig as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelInstanceReportStatistics as *const ()),
    Address(abi::backend::TRITONBACKEND_ModelInstanceReportBatchStatistics as *const ()),
    Address(abi::backend::memory_usage::TRITONBACKEND_ModelReportMemoryUsage as *const ()),
    Address(abi::backend::memory_usage::TRITONBACKEND_ModelInstanceReportMemoryUsage as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestId as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestIsCancelled as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestFlags as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_InferenceRequestTimeoutMicroseconds as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestParameterCount as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestInputCount as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestOutputCount as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestCorrelationId as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestCorrelationIdString as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestParameter as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestInputName as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestInput as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestInputByIndex as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestOutputName as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestRelease as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_InputProperties as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_InputBuffer as *const ()),
    Address(abi::backend::responses::TRITONBACKEND_ResponseNew as *const ()),
    Address(abi::backend::responses::TRITONBACKEND_ResponseDelete as *const ()),
    Address(abi::backend::responses::TRITONBACKEND_ResponseSetStringParameter as *const ()),
    Address(abi::backend::responses::TRITONBACKEND_ResponseSetIntParameter as *const ()),
    Address(abi::backend::responses::TRITONBACKEND_ResponseSetBoolParameter as *const ()),
    Address(abi::backend::responses::TRITONBACKEND_ResponseSetDoubleParameter as *const ()),
    Address(abi::backend::responses::TRITONBACKEND_ResponseOutput as *const ()),
    Address(abi::backend::responses::TRITONBACKEND_OutputBuffer as *const ()),
    Address(abi::backend::responses::TRITONBACKEND_ResponseSend as *const ()),
    Address(abi::backend::requests::TRITONBACKEND_RequestOutputBufferProperties as *const ()),
    Address(abi::backend::responses::TRITONBACKEND_InferenceResponseOutput as *const ()),
    Address(abi::backend::responses::TRITONBACKEND_InferenceResponseOutputByName as *const ()),
    Address(abi::backend::factories::TRITONBACKEND_ResponseFactoryNew as *const ()),
    Address(abi::backend::factories::TRITONBACKEND_ResponseFactoryDelete as *const ()),
    Address(abi::backend::factories::TRITONBACKEND_ResponseFactorySendFlags as *const ()),
    Address(abi::backend::factories::TRITONBACKEND_ResponseFactoryIsCancelled as *const ()),
    Address(abi::backend::factories::TRITONBACKEND_ResponseNewFromFactory as *const ()),
    Address(abi::backend::response_statistics::TRITONBACKEND_ModelInstanceResponseStatisticsNew as *const ()),
    Address(abi::backend::response_statistics::TRITONBACKEND_ModelInstanceResponseStatisticsDelete as *const ()),
    Address(
        abi::backend::response_statistics::TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance as *const (),
    ),
    Address(
        abi::backend::response_statistics::TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory as *const (),
    ),
    Address(
        abi::backend::response_statistics::TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart as *const (),
    ),
    Address(
        abi::backend::response_statistics::TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart
            as *const (),
    ),
    Address(
        abi::backend::response_statistics::TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd as *const (),
    ),
    Address(abi::backend::response_statistics::TRITONBACKEND_ModelInstanceResponseStatisticsSetError as *const ()),
    Address(abi::backend::response_statistics::TRITONBACKEND_ModelInstanceReportResponseStatistics as *const ()),
    Address(abi::backend::states::TRITONBACKEND_StateNew as *const ()),
    Address(abi::backend::states::TRITONBACKEND_StateUpdate as *const ()),
    Address(abi::backend::states::TRITONBACKEND_StateBuffer as *const ()),
    Address(abi::backend::states::TRITONBACKEND_StateBufferAttributes as *const ()),
];

struct Address(#[allow(dead_code)] *const ());
// SAFETY: addresses of functions never change.
unsafe impl Sync for Address {}

/// A use of the table that no optimisation removes.
pub(super) fn keep() {
    std::hint::black_box(SYMBOLS);
}

#[cfg(test)]
mod tests {
    /// Names of functions of the interface in a text.
    fn names(text: &str) -> std::collections::BTreeSet<&str> {
        let words = text.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
        words.filter(|word| word.starts_with("TRITONSERVER_") || word.starts_with("TRITONBACKEND_")).collect()
    }

    #[test]
    fn the_table_and_the_documentation_name_every_exported_function() {
        let mut exported = std::collections::BTreeSet::new();
        for source in [
            include_str!("../../abi/server.rs"),
            include_str!("../../abi/backend.rs"),
            include_str!("../../abi/backend/factories.rs"),
            include_str!("../../abi/backend/memory_usage.rs"),
            include_str!("../../abi/backend/requests.rs"),
            include_str!("../../abi/backend/response_statistics.rs"),
            include_str!("../../abi/backend/responses.rs"),
            include_str!("../../abi/backend/states.rs"),
            include_str!("../../abi/server/buffer_attributes.rs"),
            include_str!("../../abi/server/trace.rs"),
        ] {
            let defines = |line: &&str| line.contains("extern \"C\" fn TRITON") || line.starts_with("    TRITON");
            exported.extend(source.lines().filter(defines).filter_map(|line| names(line).first().copied()));
        }
        let table = include_str!("symbols.rs").split("mod tests").next().unwrap_or_default();
        assert!(exported.len() > 70, "{exported:?}");
        assert_eq!(names(table), exported);
        let documentation = include_str!("../../../docs/backends.md");
        let (_, listed) = documentation.split_once("Of the backend interface").unwrap();
        assert_eq!(names(listed), exported);
    }
}
