//! The functions of the C interface that the package uses, as include/triton/core/tritonserver.h declares them.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Types of which only the addresses are known.
macro_rules! opaque {
    ($($name:ident)*) => { $(pub enum $name {})* };
}

opaque! {
    BufferAttributes Error Request Response Trace Message Metric MetricFamily Metrics Parameter Allocator Server Options
    Frontend
}

/// The address of a C object on its way to or from a call without the interpreter's lock.
pub struct Pointer<T>(*mut T);

// SAFETY: only the address moves; which thread may use the object is a matter of its functions.
unsafe impl<T> Send for Pointer<T> {}
// SAFETY: the address does not change.
unsafe impl<T> Sync for Pointer<T> {}

impl<T> Pointer<T> {
    pub fn to(at: *mut T) -> Pointer<T> {
        Pointer(at)
    }

    pub fn get(&self) -> *mut T {
        self.0
    }
}

pub const RESPONSE_COMPLETE_FINAL: u32 = 1;
pub const MEMORY_CPU: c_int = 0;

pub type AllocFn = unsafe extern "C" fn(
    *mut Allocator,
    *const c_char,
    usize,
    c_int,
    i64,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut c_int,
    *mut i64,
) -> *mut Error;
pub type ReleaseBufferFn =
    unsafe extern "C" fn(*mut Allocator, *mut c_void, *mut c_void, usize, c_int, i64) -> *mut Error;
pub type StartFn = unsafe extern "C" fn(*mut Allocator, *mut c_void) -> *mut Error;
pub type ReleaseRequestFn = unsafe extern "C" fn(*mut Request, u32, *mut c_void);
pub type ResponseFn = unsafe extern "C" fn(*mut Response, u32, *mut c_void);
pub type TraceActivityFn = unsafe extern "C" fn(*mut Trace, c_int, u64, *mut c_void);
pub type TraceTensorFn = unsafe extern "C" fn(
    *mut Trace,
    c_int,
    *const c_char,
    c_int,
    *const c_void,
    usize,
    *const i64,
    u64,
    c_int,
    i64,
    *mut c_void,
);
pub type TraceReleaseFn = unsafe extern "C" fn(*mut Trace, *mut c_void);
pub type LogFn = unsafe extern "C" fn(c_int, *const c_char, c_int, u64, *const c_char, *mut c_void);

unsafe extern "C" {
    pub fn TRITONSERVER_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut Error;
    pub fn TRITONSERVER_DataTypeString(datatype: c_int) -> *const c_char;
    pub fn TRITONSERVER_StringToDataType(dtype: *const c_char) -> c_int;
    pub fn TRITONSERVER_DataTypeByteSize(datatype: c_int) -> u32;
    pub fn TRITONSERVER_MemoryTypeString(memtype: c_int) -> *const c_char;
    pub fn TRITONSERVER_ParameterTypeString(paramtype: c_int) -> *const c_char;
    pub fn TRITONSERVER_InstanceGroupKindString(kind: c_int) -> *const c_char;
    pub fn TRITONSERVER_ParameterNew(name: *const c_char, kind: c_int, value: *const c_void) -> *mut Parameter;
    pub fn TRITONSERVER_ParameterBytesNew(name: *const c_char, byte_ptr: *const c_void, size: u64) -> *mut Parameter;
    pub fn TRITONSERVER_ParameterDelete(parameter: *mut Parameter);
    pub fn TRITONSERVER_LogIsEnabled(level: c_int) -> bool;
    pub fn TRITONSERVER_LogMessage(
        level: c_int,
        filename: *const c_char,
        line: c_int,
        msg: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_ErrorNew(code: c_int, msg: *const c_char) -> *mut Error;
    pub fn TRITONSERVER_ErrorDelete(error: *mut Error);
    pub fn TRITONSERVER_ErrorCode(error: *mut Error) -> c_int;
    pub fn TRITONSERVER_ErrorMessage(error: *mut Error) -> *const c_char;
    pub fn TRITONSERVER_ResponseAllocatorNew(
        allocator: *mut *mut Allocator,
        alloc_fn: AllocFn,
        release_fn: ReleaseBufferFn,
        start_fn: Option<StartFn>,
    ) -> *mut Error;
    pub fn TRITONSERVER_MessageNewFromSerializedJson(
        message: *mut *mut Message,
        base: *const c_char,
        byte_size: usize,
    ) -> *mut Error;
    pub fn TRITONSERVER_MessageDelete(message: *mut Message) -> *mut Error;
    pub fn TRITONSERVER_MessageSerializeToJson(
        message: *mut Message,
        base: *mut *const c_char,
        byte_size: *mut usize,
    ) -> *mut Error;
    pub fn TRITONSERVER_MetricsDelete(metrics: *mut Metrics) -> *mut Error;
    pub fn TRITONSERVER_MetricsFormatted(
        metrics: *mut Metrics,
        format: c_int,
        base: *mut *const c_char,
        byte_size: *mut usize,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceTraceLevelString(level: c_int) -> *const c_char;
    pub fn TRITONSERVER_InferenceTraceActivityString(activity: c_int) -> *const c_char;
    pub fn TRITONSERVER_InferenceTraceNew(
        trace: *mut *mut Trace,
        level: c_int,
        parent_id: u64,
        activity_fn: TraceActivityFn,
        release_fn: TraceReleaseFn,
        trace_userp: *mut c_void,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceTraceTensorNew(
        trace: *mut *mut Trace,
        level: c_int,
        parent_id: u64,
        activity_fn: TraceActivityFn,
        tensor_activity_fn: TraceTensorFn,
        release_fn: TraceReleaseFn,
        trace_userp: *mut c_void,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceTraceDelete(trace: *mut Trace) -> *mut Error;
    pub fn TRITONSERVER_InferenceTraceId(trace: *mut Trace, id: *mut u64) -> *mut Error;
    pub fn TRITONSERVER_InferenceTraceParentId(trace: *mut Trace, parent_id: *mut u64) -> *mut Error;
    pub fn TRITONSERVER_InferenceTraceModelName(trace: *mut Trace, model_name: *mut *const c_char) -> *mut Error;
    pub fn TRITONSERVER_InferenceTraceModelVersion(trace: *mut Trace, model_version: *mut i64) -> *mut Error;
    pub fn TRITONSERVER_InferenceTraceRequestId(trace: *mut Trace, request_id: *mut *const c_char) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestNew(
        inference_request: *mut *mut Request,
        server: *mut Server,
        model_name: *const c_char,
        model_version: i64,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestDelete(inference_request: *mut Request) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestId(inference_request: *mut Request, id: *mut *const c_char) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetId(inference_request: *mut Request, id: *const c_char) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestFlags(inference_request: *mut Request, flags: *mut u32) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetFlags(inference_request: *mut Request, flags: u32) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestCorrelationId(
        inference_request: *mut Request,
        correlation_id: *mut u64,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestCorrelationIdString(
        inference_request: *mut Request,
        correlation_id: *mut *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetCorrelationId(
        inference_request: *mut Request,
        correlation_id: u64,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetCorrelationIdString(
        inference_request: *mut Request,
        correlation_id: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestCancel(inference_request: *mut Request) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestPriority(inference_request: *mut Request, priority: *mut u32) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestPriorityUInt64(
        inference_request: *mut Request,
        priority: *mut u64,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetPriority(inference_request: *mut Request, priority: u32) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetPriorityUInt64(inference_request: *mut Request, priority: u64)
    -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestTimeoutMicroseconds(
        inference_request: *mut Request,
        timeout_us: *mut u64,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(
        inference_request: *mut Request,
        timeout_us: u64,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestAddInput(
        inference_request: *mut Request,
        name: *const c_char,
        datatype: c_int,
        shape: *const i64,
        dim_count: u64,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestAddRawInput(inference_request: *mut Request, name: *const c_char)
    -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestRemoveInput(inference_request: *mut Request, name: *const c_char)
    -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestRemoveAllInputs(inference_request: *mut Request) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestAppendInputData(
        inference_request: *mut Request,
        name: *const c_char,
        base: *const c_void,
        byte_size: usize,
        memory_type: c_int,
        memory_type_id: i64,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
        inference_request: *mut Request,
        name: *const c_char,
        base: *const c_void,
        byte_size: usize,
        memory_type: c_int,
        memory_type_id: i64,
        host_policy_name: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
        inference_request: *mut Request,
        name: *const c_char,
        base: *const c_void,
        buffer_attributes: *mut BufferAttributes,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestRemoveAllInputData(
        inference_request: *mut Request,
        name: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestAddRequestedOutput(
        inference_request: *mut Request,
        name: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestRemoveRequestedOutput(
        inference_request: *mut Request,
        name: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(inference_request: *mut Request) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetReleaseCallback(
        inference_request: *mut Request,
        request_release_fn: ReleaseRequestFn,
        request_release_userp: *mut c_void,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetResponseCallback(
        inference_request: *mut Request,
        response_allocator: *mut Allocator,
        response_allocator_userp: *mut c_void,
        response_fn: ResponseFn,
        response_userp: *mut c_void,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetStringParameter(
        request: *mut Request,
        key: *const c_char,
        value: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetIntParameter(
        request: *mut Request,
        key: *const c_char,
        value: i64,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetBoolParameter(
        request: *mut Request,
        key: *const c_char,
        value: bool,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceRequestSetDoubleParameter(
        request: *mut Request,
        key: *const c_char,
        value: f64,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceResponseDelete(inference_response: *mut Response) -> *mut Error;
    pub fn TRITONSERVER_InferenceResponseError(inference_response: *mut Response) -> *mut Error;
    pub fn TRITONSERVER_InferenceResponseModel(
        inference_response: *mut Response,
        model_name: *mut *const c_char,
        model_version: *mut i64,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceResponseId(
        inference_response: *mut Response,
        request_id: *mut *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceResponseParameterCount(
        inference_response: *mut Response,
        count: *mut u32,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceResponseParameter(
        inference_response: *mut Response,
        index: u32,
        name: *mut *const c_char,
        kind: *mut c_int,
        vvalue: *mut *const c_void,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceResponseOutputCount(inference_response: *mut Response, count: *mut u32) -> *mut Error;
    pub fn TRITONSERVER_InferenceResponseOutput(
        inference_response: *mut Response,
        index: u32,
        name: *mut *const c_char,
        datatype: *mut c_int,
        shape: *mut *const i64,
        dim_count: *mut u64,
        base: *mut *const c_void,
        byte_size: *mut usize,
        memory_type: *mut c_int,
        memory_type_id: *mut i64,
        userp: *mut *mut c_void,
    ) -> *mut Error;
    pub fn TRITONSERVER_InferenceResponseOutputClassificationLabel(
        inference_response: *mut Response,
        index: u32,
        class_index: usize,
        label: *mut *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_BufferAttributesNew(buffer_attributes: *mut *mut BufferAttributes) -> *mut Error;
    pub fn TRITONSERVER_BufferAttributesDelete(buffer_attributes: *mut BufferAttributes) -> *mut Error;
    pub fn TRITONSERVER_BufferAttributesSetMemoryTypeId(
        buffer_attributes: *mut BufferAttributes,
        memory_type_id: i64,
    ) -> *mut Error;
    pub fn TRITONSERVER_BufferAttributesSetMemoryType(
        buffer_attributes: *mut BufferAttributes,
        memory_type: c_int,
    ) -> *mut Error;
    pub fn TRITONSERVER_BufferAttributesSetCudaIpcHandle(
        buffer_attributes: *mut BufferAttributes,
        cuda_ipc_handle: *mut c_void,
    ) -> *mut Error;
    pub fn TRITONSERVER_BufferAttributesSetByteSize(
        buffer_attributes: *mut BufferAttributes,
        byte_size: usize,
    ) -> *mut Error;
    pub fn TRITONSERVER_BufferAttributesMemoryTypeId(
        buffer_attributes: *mut BufferAttributes,
        memory_type_id: *mut i64,
    ) -> *mut Error;
    pub fn TRITONSERVER_BufferAttributesMemoryType(
        buffer_attributes: *mut BufferAttributes,
        memory_type: *mut c_int,
    ) -> *mut Error;
    pub fn TRITONSERVER_BufferAttributesCudaIpcHandle(
        buffer_attributes: *mut BufferAttributes,
        cuda_ipc_handle: *mut *mut c_void,
    ) -> *mut Error;
    pub fn TRITONSERVER_BufferAttributesByteSize(
        buffer_attributes: *mut BufferAttributes,
        byte_size: *mut usize,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsNew(options: *mut *mut Options) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsDelete(options: *mut Options) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetServerId(options: *mut Options, server_id: *const c_char) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetModelRepositoryPath(
        options: *mut Options,
        model_repository_path: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetModelControlMode(options: *mut Options, mode: c_int) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetStartupModel(options: *mut Options, model_name: *const c_char) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetStrictModelConfig(options: *mut Options, strict: bool) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetRateLimiterMode(options: *mut Options, mode: c_int) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsAddRateLimiterResource(
        options: *mut Options,
        resource_name: *const c_char,
        resource_count: usize,
        device: c_int,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(options: *mut Options, size: u64) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(
        options: *mut Options,
        gpu_device: c_int,
        size: u64,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetResponseCacheByteSize(options: *mut Options, size: u64) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetCacheConfig(
        options: *mut Options,
        cache_name: *const c_char,
        config_json: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetCacheDirectory(options: *mut Options, cache_dir: *const c_char) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(options: *mut Options, cc: f64) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetExitOnError(options: *mut Options, exit: bool) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetStrictReadiness(options: *mut Options, strict: bool) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetExitTimeout(options: *mut Options, timeout: c_uint) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(
        options: *mut Options,
        thread_count: c_uint,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetModelLoadThreadCount(options: *mut Options, thread_count: c_uint)
    -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetModelLoadRetryCount(options: *mut Options, retry_count: c_uint) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetModelNamespacing(options: *mut Options, enable_namespace: bool) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetEnablePeerAccess(options: *mut Options, enable_peer_access: bool)
    -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetLogFile(options: *mut Options, file: *const c_char) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetLogInfo(options: *mut Options, log: bool) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetLogWarn(options: *mut Options, log: bool) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetLogError(options: *mut Options, log: bool) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetLogFormat(options: *mut Options, format: c_int) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetLogVerbose(options: *mut Options, level: c_int) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetLogCallback(
        options: *mut Options,
        callback: Option<LogFn>,
        userp: *mut c_void,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetMetrics(options: *mut Options, metrics: bool) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetGpuMetrics(options: *mut Options, gpu_metrics: bool) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetCpuMetrics(options: *mut Options, cpu_metrics: bool) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetMetricsInterval(options: *mut Options, metrics_interval_ms: u64) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetBackendDirectory(
        options: *mut Options,
        backend_dir: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetRepoAgentDirectory(
        options: *mut Options,
        repoagent_dir: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(
        options: *mut Options,
        kind: c_int,
        device_id: c_int,
        fraction: f64,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetBackendConfig(
        options: *mut Options,
        backend_name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetHostPolicy(
        options: *mut Options,
        policy_name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerOptionsSetMetricsConfig(
        options: *mut Options,
        name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerNew(server: *mut *mut Server, options: *mut Options) -> *mut Error;
    pub fn TRITONSERVER_ServerDelete(server: *mut Server) -> *mut Error;
    pub fn TRITONSERVER_ServerStop(server: *mut Server) -> *mut Error;
    pub fn TRITONSERVER_ServerRegisterModelRepository(
        server: *mut Server,
        repository_path: *const c_char,
        name_mapping: *mut *const Parameter,
        mapping_count: u32,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerUnregisterModelRepository(
        server: *mut Server,
        repository_path: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerPollModelRepository(server: *mut Server) -> *mut Error;
    pub fn TRITONSERVER_ServerIsLive(server: *mut Server, live: *mut bool) -> *mut Error;
    pub fn TRITONSERVER_ServerIsReady(server: *mut Server, ready: *mut bool) -> *mut Error;
    pub fn TRITONSERVER_ServerModelIsReady(
        server: *mut Server,
        model_name: *const c_char,
        model_version: i64,
        ready: *mut bool,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerModelBatchProperties(
        server: *mut Server,
        model_name: *const c_char,
        model_version: i64,
        flags: *mut u32,
        voidp: *mut *mut c_void,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerModelTransactionProperties(
        server: *mut Server,
        model_name: *const c_char,
        model_version: i64,
        txn_flags: *mut u32,
        voidp: *mut *mut c_void,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerMetadata(server: *mut Server, server_metadata: *mut *mut Message) -> *mut Error;
    pub fn TRITONSERVER_ServerModelMetadata(
        server: *mut Server,
        model_name: *const c_char,
        model_version: i64,
        model_metadata: *mut *mut Message,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerModelStatistics(
        server: *mut Server,
        model_name: *const c_char,
        model_version: i64,
        model_stats: *mut *mut Message,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerModelConfig(
        server: *mut Server,
        model_name: *const c_char,
        model_version: i64,
        config_version: u32,
        model_config: *mut *mut Message,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerModelIndex(server: *mut Server, flags: u32, model_index: *mut *mut Message)
    -> *mut Error;
    pub fn TRITONSERVER_ServerLoadModel(server: *mut Server, model_name: *const c_char) -> *mut Error;
    pub fn TRITONSERVER_ServerLoadModelWithParameters(
        server: *mut Server,
        model_name: *const c_char,
        parameters: *mut *const Parameter,
        parameter_count: u64,
    ) -> *mut Error;
    pub fn TRITONSERVER_ServerUnloadModel(server: *mut Server, model_name: *const c_char) -> *mut Error;
    pub fn TRITONSERVER_ServerUnloadModelAndDependents(server: *mut Server, model_name: *const c_char) -> *mut Error;
    pub fn TRITONSERVER_ServerMetrics(server: *mut Server, metrics: *mut *mut Metrics) -> *mut Error;
    pub fn TRITONSERVER_ServerInferAsync(
        server: *mut Server,
        inference_request: *mut Request,
        trace: *mut Trace,
    ) -> *mut Error;
    pub fn TRITONSERVER_MetricFamilyNew(
        family: *mut *mut MetricFamily,
        kind: c_int,
        name: *const c_char,
        description: *const c_char,
    ) -> *mut Error;
    pub fn TRITONSERVER_MetricFamilyDelete(family: *mut MetricFamily) -> *mut Error;
    pub fn TRITONSERVER_MetricNew(
        metric: *mut *mut Metric,
        family: *mut MetricFamily,
        labels: *mut *const Parameter,
        label_count: u64,
    ) -> *mut Error;
    pub fn TRITONSERVER_MetricDelete(metric: *mut Metric) -> *mut Error;
    pub fn TRITONSERVER_MetricValue(metric: *mut Metric, value: *mut f64) -> *mut Error;
    pub fn TRITONSERVER_MetricIncrement(metric: *mut Metric, value: f64) -> *mut Error;
    pub fn TRITONSERVER_MetricSet(metric: *mut Metric, value: f64) -> *mut Error;
    pub fn TRITONSERVER_GetMetricKind(metric: *mut Metric, kind: *mut c_int) -> *mut Error;
    pub fn NEREID_FrontendNew(frontend: *mut *mut Frontend, server: *mut Server, kind: c_int) -> *mut Error;
    pub fn NEREID_FrontendDelete(frontend: *mut Frontend) -> *mut Error;
    pub fn NEREID_FrontendSetString(frontend: *mut Frontend, name: *const c_char, value: *const c_char) -> *mut Error;
    pub fn NEREID_FrontendSetInt(frontend: *mut Frontend, name: *const c_char, value: i64) -> *mut Error;
    pub fn NEREID_FrontendSetBool(frontend: *mut Frontend, name: *const c_char, value: bool) -> *mut Error;
    pub fn NEREID_FrontendRestrict(
        frontend: *mut Frontend,
        feature: *const c_char,
        key: *const c_char,
        value: *const c_char,
    ) -> *mut Error;
    pub fn NEREID_FrontendStart(frontend: *mut Frontend) -> *mut Error;
    pub fn NEREID_FrontendPort(frontend: *mut Frontend, port: *mut u32) -> *mut Error;
    pub fn NEREID_FrontendStop(frontend: *mut Frontend) -> *mut Error;
}
