package nereid.tritonserver;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

import nereid.TritonException;

/**
 * Triton's C interface: a static method for each function, with its name. Results are returned; errors are thrown, as
 * exceptions of their codes. Names that begin with TRITONSERVER_ and numbers are those of the C interface.
 */
public final class tritonserver extends Functions {
    private tritonserver() {
    }

    /** Major and minor number. */
    public static int[] TRITONSERVER_ApiVersion() {
        return Callbacks.apiVersion();
    }

    public static TRITONSERVER_Parameter TRITONSERVER_ParameterNew(String name, String value) {
        return parameter(name, TRITONSERVER_PARAMETER_STRING, text(value), 0, 0);
    }

    public static TRITONSERVER_Parameter TRITONSERVER_ParameterNew(String name, long value) {
        return parameter(name, TRITONSERVER_PARAMETER_INT, null, value, 0);
    }

    public static TRITONSERVER_Parameter TRITONSERVER_ParameterNew(String name, boolean value) {
        return parameter(name, TRITONSERVER_PARAMETER_BOOL, null, value ? 1 : 0, 0);
    }

    public static TRITONSERVER_Parameter TRITONSERVER_ParameterNew(String name, double value) {
        return parameter(name, TRITONSERVER_PARAMETER_DOUBLE, null, 0, value);
    }

    private static TRITONSERVER_Parameter parameter(String name, int type, byte[] text, long bits, double number) {
        return parameter(Callbacks.parameterNew(text(name), type, text, bits, number), null);
    }

    /** The bytes between position and limit of a direct buffer, which the parameter holds. */
    public static TRITONSERVER_Parameter TRITONSERVER_ParameterBytesNew(String name, ByteBuffer bytes) {
        ByteBuffer direct = direct(bytes);
        long address = Callbacks.parameterBytesNew(text(name), direct, direct.position(), direct.remaining());
        return parameter(address, direct);
    }

    private static TRITONSERVER_Parameter parameter(long address, ByteBuffer bytes) {
        if (address == 0) {
            throw TritonException.of(TRITONSERVER_ERROR_INVALID_ARG, "a parameter needs a name and a value");
        }
        return new TRITONSERVER_Parameter(address, bytes);
    }

    /** An error as an exception, which callbacks may throw. */
    public static TritonException TRITONSERVER_ErrorNew(int code, String msg) {
        return TritonException.of(code, msg);
    }

    /** Does nothing: an exception need not be given back. */
    public static void TRITONSERVER_ErrorDelete(TritonException error) {
    }

    public static int TRITONSERVER_ErrorCode(TritonException error) {
        return error.code();
    }

    public static String TRITONSERVER_ErrorCodeString(TritonException error) {
        return error.codeName();
    }

    public static String TRITONSERVER_ErrorMessage(TritonException error) {
        return error.getMessage();
    }

    /** start_fn may be null. */
    public static TRITONSERVER_ResponseAllocator TRITONSERVER_ResponseAllocatorNew(
            TRITONSERVER_ResponseAllocatorAllocFn_t alloc_fn, TRITONSERVER_ResponseAllocatorReleaseFn_t release_fn,
            TRITONSERVER_ResponseAllocatorStartFn_t start_fn) {
        needed(alloc_fn, "alloc_fn");
        needed(release_fn, "release_fn");
        long address = Callbacks.allocatorNew(start_fn != null);
        return new TRITONSERVER_ResponseAllocator(address, alloc_fn, release_fn, start_fn);
    }

    public static TRITONSERVER_Message TRITONSERVER_MessageNewFromSerializedJson(String json) {
        needed(json, "json");
        return new TRITONSERVER_Message(Callbacks.messageNew(json.getBytes(StandardCharsets.UTF_8)));
    }

    /** The functions are those of the trace and of its children. */
    public static TRITONSERVER_InferenceTrace TRITONSERVER_InferenceTraceNew(
            int level, long parent_id, TRITONSERVER_InferenceTraceActivityFn_t activity_fn,
            TRITONSERVER_InferenceTraceReleaseFn_t release_fn) {
        needed(activity_fn, "activity_fn");
        needed(release_fn, "release_fn");
        Traces traces = new Traces(activity_fn, release_fn);
        return new TRITONSERVER_InferenceTrace(Callbacks.traceNew(level, parent_id, traces.number), traces);
    }

    public static TRITONSERVER_InferenceTrace TRITONSERVER_InferenceTraceSpawnChildTrace(
            TRITONSERVER_InferenceTrace trace) {
        long address = trace.enter();
        try {
            return new TRITONSERVER_InferenceTrace(Native.InferenceTraceSpawnChildTrace(address), trace.traces);
        } finally {
            trace.exit();
        }
    }

    /**
     * The bytes between position and limit of a direct buffer, without a copy. The request holds the buffer; do not
     * change it while the server has the request.
     */
    public static void TRITONSERVER_InferenceRequestAppendInputData(
            TRITONSERVER_InferenceRequest request, String name, ByteBuffer base, int memory_type,
            long memory_type_id) {
        append(request, name, base, memory_type, memory_type_id, null, null);
    }

    public static void TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
            TRITONSERVER_InferenceRequest request, String name, ByteBuffer base, int memory_type,
            long memory_type_id, String host_policy_name) {
        needed(host_policy_name, "host_policy_name");
        append(request, name, base, memory_type, memory_type_id, host_policy_name, null);
    }

    /** The size in the attributes is that of the buffer, or less. */
    public static void TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
            TRITONSERVER_InferenceRequest request, String name, ByteBuffer base,
            TRITONSERVER_BufferAttributes buffer_attributes) {
        if (TRITONSERVER_BufferAttributesMemoryType(buffer_attributes) == TRITONSERVER_MEMORY_GPU) {
            throw new IllegalArgumentException("a ByteBuffer is no memory of a GPU");
        }
        append(request, name, base, TRITONSERVER_MEMORY_CPU, 0, null, buffer_attributes);
    }

    private static void append(
            TRITONSERVER_InferenceRequest request, String name, ByteBuffer base, int memory_type,
            long memory_type_id, String policy, TRITONSERVER_BufferAttributes attributes) {
        ByteBuffer direct = direct(base);
        if (memory_type == TRITONSERVER_MEMORY_GPU) {
            throw new IllegalArgumentException("a ByteBuffer is no memory of a GPU");
        }
        long address = request.enterIdle();
        try {
            long given = attributes == null ? 0 : attributes.enter();
            try {
                Callbacks.appendInputData(
                        address, text(name), direct, direct.position(), direct.remaining(), memory_type,
                        memory_type_id, text(policy), given);
                request.hold(name, direct);
            } finally {
                if (attributes != null) {
                    attributes.exit();
                }
            }
        } finally {
            request.exit();
        }
    }

    public static void TRITONSERVER_InferenceRequestRemoveInput(TRITONSERVER_InferenceRequest request, String name) {
        long address = request.enterIdle();
        try {
            Native.InferenceRequestRemoveInput(address, text(name));
            request.letGo(name);
        } finally {
            request.exit();
        }
    }

    public static void TRITONSERVER_InferenceRequestRemoveAllInputs(TRITONSERVER_InferenceRequest request) {
        long address = request.enterIdle();
        try {
            Native.InferenceRequestRemoveAllInputs(address);
            request.letGoOfAll();
        } finally {
            request.exit();
        }
    }

    public static void TRITONSERVER_InferenceRequestRemoveAllInputData(
            TRITONSERVER_InferenceRequest request, String name) {
        long address = request.enterIdle();
        try {
            Native.InferenceRequestRemoveAllInputData(address, text(name));
            request.letGo(name);
        } finally {
            request.exit();
        }
    }

    public static void TRITONSERVER_InferenceRequestSetReleaseCallback(
            TRITONSERVER_InferenceRequest request, TRITONSERVER_InferenceRequestReleaseFn_t request_release_fn) {
        needed(request_release_fn, "request_release_fn");
        request.enterIdle();
        try {
            request.release = request_release_fn;
        } finally {
            request.exit();
        }
    }

    public static void TRITONSERVER_InferenceRequestSetResponseCallback(
            TRITONSERVER_InferenceRequest request, TRITONSERVER_ResponseAllocator response_allocator,
            TRITONSERVER_InferenceResponseCompleteFn_t response_fn) {
        needed(response_allocator, "response_allocator");
        needed(response_fn, "response_fn");
        request.enterIdle();
        try {
            request.allocator = response_allocator;
            request.response = response_fn;
        } finally {
            request.exit();
        }
    }

    /** trace may be null. On an exception the caller keeps the request. */
    public static void TRITONSERVER_ServerInferAsync(
            TRITONSERVER_Server server, TRITONSERVER_InferenceRequest request, TRITONSERVER_InferenceTrace trace) {
        long serverAddress = server.enter();
        try {
            long address = request.enterIdle();
            try {
                inferAsync(serverAddress, request, address, trace);
            } finally {
                request.exit();
            }
        } finally {
            server.exit();
        }
    }

    private static void inferAsync(
            long server, TRITONSERVER_InferenceRequest request, long address, TRITONSERVER_InferenceTrace trace) {
        long allocator = request.allocator == null ? 0 : request.allocator.enter();
        try {
            long traceAddress = trace == null ? 0 : trace.enter();
            try {
                if (trace != null) {
                    trace.traces.send(trace);
                }
                send(server, request, address, allocator, trace, traceAddress);
            } finally {
                if (trace != null) {
                    trace.exit();
                }
            }
        } finally {
            if (request.allocator != null) {
                request.allocator.exit();
            }
        }
    }

    private static void send(
            long server, TRITONSERVER_InferenceRequest request, long address, long allocator,
            TRITONSERVER_InferenceTrace trace, long traceAddress) {
        Call call = new Call(request);
        call.send();
        try {
            Callbacks.inferAsync(server, address, traceAddress, call, request.release != null, allocator);
        } catch (Throwable error) {
            call.refused();
            // Of a request that is invalid the caller keeps the trace; of others it comes back by its function.
            boolean isInvalid = error instanceof TritonException.InvalidArgument;
            if (trace != null && (isInvalid || !(error instanceof TritonException))) {
                trace.traces.takeBack(traceAddress);
            }
            throw error;
        }
    }

    /** The error of a response, or null. */
    public static TritonException TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse response) {
        long address = response.enter();
        try {
            return Callbacks.responseError(address);
        } finally {
            response.exit();
        }
    }

    public static ResponseModel TRITONSERVER_InferenceResponseModel(TRITONSERVER_InferenceResponse response) {
        long address = response.enter();
        try {
            return Callbacks.responseModel(address);
        } finally {
            response.exit();
        }
    }

    public static Parameter TRITONSERVER_InferenceResponseParameter(
            TRITONSERVER_InferenceResponse response, int index) {
        long address = response.enter();
        try {
            return Callbacks.responseParameter(address, index);
        } finally {
            response.exit();
        }
    }

    public static Output TRITONSERVER_InferenceResponseOutput(TRITONSERVER_InferenceResponse response, int index) {
        long address = response.enter();
        try {
            return Callbacks.responseOutput(address, index);
        } finally {
            response.exit();
        }
    }

    /** For the whole process; null for none. */
    public static void TRITONSERVER_ServerOptionsSetLogCallback(
            TRITONSERVER_ServerOptions options, TRITONSERVER_LogCallbackFn_t callback) {
        long address = options.enter();
        try {
            Callbacks.setLog(callback);
            Callbacks.setLogCallback(address, callback != null);
        } finally {
            options.exit();
        }
    }

    public static TRITONSERVER_Server TRITONSERVER_ServerNew(TRITONSERVER_ServerOptions options) {
        long address = options.enter();
        try {
            return new TRITONSERVER_Server(Native.ServerNew(address));
        } finally {
            options.exit();
        }
    }

    /** Not from a callback: it waits for requests. */
    public static void TRITONSERVER_ServerStop(TRITONSERVER_Server server) {
        outsideCallbacks();
        long address = server.enter();
        try {
            Native.ServerStop(address);
        } finally {
            server.exit();
        }
    }

    /** Stops the server first. It is deleted behind its last request and response. Not from a callback. */
    public static void TRITONSERVER_ServerDelete(TRITONSERVER_Server server) {
        outsideCallbacks();
        long address = server.enter();
        TritonException failure = null;
        try {
            Native.ServerStop(address);
        } catch (TritonException error) {
            failure = error;
        } finally {
            server.exit();
        }
        server.delete();
        if (failure != null) {
            throw failure;
        }
    }

    private static void outsideCallbacks() {
        if (Callbacks.isInside()) {
            throw new IllegalStateException("a callback cannot stop the server, which waits for it");
        }
    }

    private static ByteBuffer direct(ByteBuffer buffer) {
        needed(buffer, "buffer");
        if (!buffer.isDirect()) {
            throw new IllegalArgumentException("the server reads direct buffers only: see ByteBuffer.allocateDirect");
        }
        return buffer.duplicate();
    }

    private static void needed(Object value, String name) {
        if (value == null) {
            throw new NullPointerException(name + " is null");
        }
    }
}
