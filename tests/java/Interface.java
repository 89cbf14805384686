import static nereid.tritonserver.tritonserver.*;

import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;

import nereid.TritonException;
import nereid.tritonserver.Memory;
import nereid.tritonserver.Output;
import nereid.tritonserver.Parameter;
import nereid.tritonserver.TRITONSERVER_BufferAttributes;
import nereid.tritonserver.TRITONSERVER_InferenceRequest;
import nereid.tritonserver.TRITONSERVER_InferenceResponse;
import nereid.tritonserver.TRITONSERVER_InferenceTrace;
import nereid.tritonserver.TRITONSERVER_Message;
import nereid.tritonserver.TRITONSERVER_Metric;
import nereid.tritonserver.TRITONSERVER_MetricArgs;
import nereid.tritonserver.TRITONSERVER_MetricFamily;
import nereid.tritonserver.TRITONSERVER_Metrics;
import nereid.tritonserver.TRITONSERVER_Parameter;
import nereid.tritonserver.TRITONSERVER_ResponseAllocator;
import nereid.tritonserver.TRITONSERVER_Server;
import nereid.tritonserver.TRITONSERVER_ServerOptions;
import nereid.tritonserver.tritonserver;

/** The functions of the C interface. */
public final class Interface {
    public static void main(String[] arguments) throws Exception {
        Servers.arguments(arguments);
        TreeSet<String> names = new TreeSet<>();
        for (Method method : tritonserver.class.getMethods()) {
            if (method.getName().startsWith("TRITONSERVER_")) {
                names.add(method.getName());
            }
        }
        names.forEach(name -> System.out.println("method " + name));
        Cases.run(Interface.class);
        Servers.mustHaveGivenAllBack();
    }

    private static TRITONSERVER_Server server(String... models) {
        TRITONSERVER_ServerOptions options = TRITONSERVER_ServerOptionsNew();
        TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, Servers.repository);
        TRITONSERVER_ServerOptionsSetBackendDirectory(options, Servers.backends);
        TRITONSERVER_ServerOptionsSetModelControlMode(options, TRITONSERVER_MODEL_CONTROL_EXPLICIT);
        TRITONSERVER_ServerOptionsSetLogInfo(options, true);
        TRITONSERVER_ServerOptionsSetLogError(options, true);
        for (String model : models) {
            TRITONSERVER_ServerOptionsSetStartupModel(options, model);
        }
        TRITONSERVER_Server server = TRITONSERVER_ServerNew(options);
        TRITONSERVER_ServerOptionsDelete(options);
        return server;
    }

    /** A request for one FP32 to `echo`. */
    private static TRITONSERVER_InferenceRequest request(TRITONSERVER_Server server, float value) {
        TRITONSERVER_InferenceRequest request = TRITONSERVER_InferenceRequestNew(server, "echo", -1);
        ByteBuffer bytes = ByteBuffer.allocateDirect(4).order(ByteOrder.nativeOrder()).putFloat(0, value);
        TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_FP32, new long[] {1, 1});
        TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", bytes, TRITONSERVER_MEMORY_CPU, 0);
        TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUTPUT0");
        return request;
    }

    private static TRITONSERVER_ResponseAllocator allocator() {
        return TRITONSERVER_ResponseAllocatorNew(
                (name, size, kind, id) -> Memory.allocate((int) size), memory -> { }, null);
    }

    public static void numbersHaveTheirNames() {
        int[] version = TRITONSERVER_ApiVersion();
        Cases.equal(version, new int[] {1, 34});
        Cases.equal(TRITONSERVER_DataTypeString(TRITONSERVER_TYPE_BF16), "BF16");
        Cases.equal(TRITONSERVER_StringToDataType("INT64"), TRITONSERVER_TYPE_INT64);
        Cases.equal(TRITONSERVER_StringToDataType(null), TRITONSERVER_TYPE_INVALID);
        Cases.equal(TRITONSERVER_DataTypeByteSize(TRITONSERVER_TYPE_FP64), 8);
        Cases.equal(TRITONSERVER_DataTypeString(1234), "<invalid>");
        Cases.equal(TRITONSERVER_MemoryTypeString(TRITONSERVER_MEMORY_GPU), "GPU");
        for (int number = 0; number < nereid.DataType.values().length; number++) {
            Cases.equal(nereid.DataType.values()[number].toString(),
                    TRITONSERVER_DataTypeString(number).replace("<invalid>", "INVALID"));
        }
        for (int code = 0; code < 8; code++) {
            TritonException error = TRITONSERVER_ErrorNew(code, "text");
            Cases.equal(TRITONSERVER_ErrorCode(error), code);
            Cases.equal(TRITONSERVER_ErrorMessage(error), "text");
            TRITONSERVER_ErrorDelete(error);
        }
        Cases.equal(TRITONSERVER_ErrorCodeString(TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "")), "Not found");
    }

    public static void messagesAndAttributesKeepWhatTheyGet() {
        TRITONSERVER_Message message = TRITONSERVER_MessageNewFromSerializedJson("{\"a\":\"ü\"}");
        Cases.equal(TRITONSERVER_MessageSerializeToJson(message), "{\"a\":\"ü\"}");
        TRITONSERVER_MessageDelete(message);
        Cases.raises(IllegalStateException.class, () -> TRITONSERVER_MessageSerializeToJson(message));
        Cases.raises(IllegalStateException.class, () -> TRITONSERVER_MessageDelete(message));
        message.close();
        Cases.raises(TritonException.class, () -> TRITONSERVER_MessageNewFromSerializedJson("{"));
        TRITONSERVER_BufferAttributes attributes = TRITONSERVER_BufferAttributesNew();
        TRITONSERVER_BufferAttributesSetByteSize(attributes, 12);
        TRITONSERVER_BufferAttributesSetMemoryType(attributes, TRITONSERVER_MEMORY_CPU_PINNED);
        TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, 3);
        Cases.equal(TRITONSERVER_BufferAttributesByteSize(attributes), 12L);
        Cases.equal(TRITONSERVER_BufferAttributesMemoryType(attributes), TRITONSERVER_MEMORY_CPU_PINNED);
        Cases.equal(TRITONSERVER_BufferAttributesMemoryTypeId(attributes), 3L);
        TRITONSERVER_BufferAttributesDelete(attributes);
    }

    public static void requestsKeepWhatTheyGet() {
        TRITONSERVER_Server server = server("echo");
        TRITONSERVER_InferenceRequest request = request(server, 1);
        TRITONSERVER_InferenceRequestSetId(request, "ä");
        Cases.equal(TRITONSERVER_InferenceRequestId(request), "ä");
        TRITONSERVER_InferenceRequestSetFlags(request, TRITONSERVER_REQUEST_FLAG_SEQUENCE_END);
        Cases.equal(TRITONSERVER_InferenceRequestFlags(request), TRITONSERVER_REQUEST_FLAG_SEQUENCE_END);
        TRITONSERVER_InferenceRequestSetCorrelationId(request, -1);
        Cases.equal(TRITONSERVER_InferenceRequestCorrelationId(request), -1L);
        TRITONSERVER_InferenceRequestSetCorrelationIdString(request, "chain");
        Cases.equal(TRITONSERVER_InferenceRequestCorrelationIdString(request), "chain");
        Cases.raises(TritonException.class, () -> TRITONSERVER_InferenceRequestCorrelationId(request));
        TRITONSERVER_InferenceRequestSetPriorityUInt64(request, 7);
        // The model has no levels of priority.
        Cases.equal(TRITONSERVER_InferenceRequestPriorityUInt64(request), 0L);
        TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, 1L << 40);
        Cases.equal(TRITONSERVER_InferenceRequestTimeoutMicroseconds(request), 1L << 40);
        Cases.raises(TritonException.class, () -> TRITONSERVER_InferenceRequestIsCancelled(request));
        TRITONSERVER_InferenceRequestDelete(request);
        TRITONSERVER_ServerDelete(server);
    }

    /** As a program in C does it: an allocator, both callbacks, a response with its outputs and parameters. */
    public static void aRequestGoesAndComesBack() throws Exception {
        TRITONSERVER_Server server = server("echo");
        List<String> events = Collections.synchronizedList(new ArrayList<>());
        TRITONSERVER_ResponseAllocator allocator = TRITONSERVER_ResponseAllocatorNew(
                (name, size, kind, id) -> {
                    events.add("alloc " + name + " " + size);
                    return Memory.allocate(64);
                },
                memory -> events.add("release " + memory.byteSize()), () -> events.add("start"));
        TRITONSERVER_InferenceRequest request = request(server, 2.5f);
        CompletableFuture<TRITONSERVER_InferenceResponse> arrived = new CompletableFuture<>();
        CountDownLatch returned = new CountDownLatch(1);
        TRITONSERVER_InferenceRequestSetReleaseCallback(request, (same, flags) -> {
            Cases.check(same == request && flags == TRITONSERVER_REQUEST_RELEASE_ALL, "another request");
            TRITONSERVER_InferenceRequestDelete(same);
            returned.countDown();
        });
        TRITONSERVER_InferenceRequestSetResponseCallback(
                request, allocator, (response, flags) -> arrived.complete(response));
        TRITONSERVER_ServerInferAsync(server, request, null);
        TRITONSERVER_InferenceResponse response = arrived.get();
        returned.await();
        Cases.equal(TRITONSERVER_InferenceResponseError(response), null);
        Cases.equal(TRITONSERVER_InferenceResponseModel(response).model_name, "echo");
        Cases.equal(TRITONSERVER_InferenceResponseModel(response).model_version, 1L);
        Cases.equal(TRITONSERVER_InferenceResponseParameterCount(response), 4);
        Parameter parameter = TRITONSERVER_InferenceResponseParameter(response, 3);
        Cases.equal(parameter.name, "param3");
        Cases.equal(parameter.type, TRITONSERVER_PARAMETER_DOUBLE);
        Cases.equal(parameter.value, 123.123);
        Cases.equal(TRITONSERVER_InferenceResponseOutputCount(response), 1);
        Output output = TRITONSERVER_InferenceResponseOutput(response, 0);
        Cases.equal(output.name, "OUTPUT0");
        Cases.equal(output.datatype, TRITONSERVER_TYPE_FP32);
        Cases.equal(output.shape, new long[] {1, 1});
        Cases.equal(output.byte_size, 4L);
        Cases.equal(output.base().remaining(), 4);
        Cases.equal(output.base().getFloat(0), 2.5f);
        Cases.raises(TritonException.class, () -> TRITONSERVER_InferenceResponseOutput(response, 1));
        Cases.raises(TritonException.class, () -> TRITONSERVER_InferenceResponseParameter(response, -1));
        // The allocator is in use until the response is deleted.
        TRITONSERVER_ResponseAllocatorDelete(allocator);
        TRITONSERVER_InferenceResponseDelete(response);
        Cases.equal(events, List.of("start", "alloc OUTPUT0 4", "release 64"));
        Cases.equal(output.base().getFloat(0), 2.5f);
        TRITONSERVER_ServerDelete(server);
    }

    public static void allocatorsThatFailMakeErrors() throws Exception {
        TRITONSERVER_Server server = server("echo");
        List<Memory> wrong = new ArrayList<>();
        wrong.add(null);
        wrong.add(Memory.allocate(3));
        for (Memory memory : wrong) {
            fails(server, TRITONSERVER_ResponseAllocatorNew((name, size, kind, id) -> memory, back -> { }, null));
        }
        TRITONSERVER_ResponseAllocator throwing = TRITONSERVER_ResponseAllocatorNew(
                (name, size, kind, id) -> {
                    throw new OutOfMemoryError("as if");
                }, back -> { }, null);
        Cases.contains(fails(server, throwing).getMessage(), "as if");
        TRITONSERVER_ServerDelete(server);
    }

    private static TritonException fails(TRITONSERVER_Server server, TRITONSERVER_ResponseAllocator allocator)
            throws Exception {
        try (allocator; TRITONSERVER_InferenceRequest request = request(server, 1)) {
            CompletableFuture<TritonException> found = new CompletableFuture<>();
            TRITONSERVER_InferenceRequestSetReleaseCallback(request, (same, flags) -> { });
            TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, (response, flags) -> {
                TritonException error = TRITONSERVER_InferenceResponseError(response);
                response.close();
                found.complete(error);
            });
            TRITONSERVER_ServerInferAsync(server, request, null);
            TritonException error = found.get();
            Cases.equal(error.getClass(), TritonException.Unavailable.class);
            return error;
        }
    }

    public static void tracesComeBack() throws Exception {
        TRITONSERVER_Server server = server("pair", "echo");
        TRITONSERVER_InferenceRequest request = TRITONSERVER_InferenceRequestNew(server, "pair", -1);
        ByteBuffer bytes = ByteBuffer.allocateDirect(4);
        TRITONSERVER_InferenceRequestAddInput(request, "I", TRITONSERVER_TYPE_FP32, new long[] {1, 1});
        TRITONSERVER_InferenceRequestAppendInputData(request, "I", bytes, TRITONSERVER_MEMORY_CPU, 0);
        TRITONSERVER_ResponseAllocator allocator = allocator();
        // The traces of the ensemble and of its step.
        CountDownLatch released = new CountDownLatch(2);
        TreeSet<String> models = new TreeSet<>();
        AtomicInteger activities = new AtomicInteger();
        TRITONSERVER_InferenceTrace trace = TRITONSERVER_InferenceTraceNew(
                TRITONSERVER_TRACE_LEVEL_TIMESTAMPS, 0, (of, activity, timestamp) -> activities.incrementAndGet(),
                of -> {
                    synchronized (models) {
                        models.add(TRITONSERVER_InferenceTraceModelName(of));
                    }
                    TRITONSERVER_InferenceTraceDelete(of);
                    released.countDown();
                });
        Cases.check(TRITONSERVER_InferenceTraceId(trace) > 0, "no id");
        CompletableFuture<TRITONSERVER_InferenceResponse> arrived = new CompletableFuture<>();
        TRITONSERVER_InferenceRequestSetReleaseCallback(request, (same, flags) -> same.close());
        TRITONSERVER_InferenceRequestSetResponseCallback(
                request, allocator, (response, flags) -> arrived.complete(response));
        TRITONSERVER_ServerInferAsync(server, request, trace);
        arrived.get().close();
        released.await();
        Cases.equal(models, new TreeSet<>(List.of("echo", "pair")));
        Cases.check(activities.get() >= 8, activities + " activities");
        allocator.close();
        TRITONSERVER_ServerDelete(server);
    }

    public static void metricsOfTheProgramAreCounted() {
        TRITONSERVER_Server server = server();
        TRITONSERVER_MetricFamily family =
                TRITONSERVER_MetricFamilyNew(TRITONSERVER_METRIC_KIND_HISTOGRAM, "java_seconds", "of a test");
        TRITONSERVER_Parameter label = TRITONSERVER_ParameterNew("place", "here");
        TRITONSERVER_MetricArgs arguments = TRITONSERVER_MetricArgsNew();
        TRITONSERVER_MetricArgsSetHistogram(arguments, new double[] {0.5, 1});
        TRITONSERVER_Metric metric =
                TRITONSERVER_MetricNewWithArgs(family, new TRITONSERVER_Parameter[] {label}, arguments);
        arguments.close();
        TRITONSERVER_MetricObserve(metric, 0.7);
        Cases.raises(TritonException.class, () -> TRITONSERVER_MetricSet(metric, 1));
        Cases.equal(TRITONSERVER_GetMetricKind(metric), TRITONSERVER_METRIC_KIND_HISTOGRAM);
        try (TRITONSERVER_Metrics metrics = TRITONSERVER_ServerMetrics(server)) {
            String text = TRITONSERVER_MetricsFormatted(metrics, TRITONSERVER_METRIC_PROMETHEUS);
            Cases.contains(text, "java_seconds_bucket{place=\"here\",le=\"1\"} 1");
        }
        TRITONSERVER_ParameterDelete(label);
        // The family is in use until its metrics are deleted.
        TRITONSERVER_MetricFamilyDelete(family);
        TRITONSERVER_MetricDelete(metric);
        TRITONSERVER_ServerDelete(server);
    }

    public static void wrongArgumentsAreRefused() {
        TRITONSERVER_Server server = server("echo");
        TRITONSERVER_InferenceRequest request = request(server, 1);
        Cases.raises(NullPointerException.class, () -> TRITONSERVER_ServerIsLive(null));
        Cases.raises(TritonException.class, () -> TRITONSERVER_InferenceRequestNew(server, null, -1));
        Cases.raises(TritonException.class, () -> TRITONSERVER_InferenceRequestAddInput(
                request, "INPUT1", 99, new long[] {1}));
        Cases.raises(IllegalArgumentException.class, () -> TRITONSERVER_InferenceRequestAppendInputData(
                request, "INPUT0", ByteBuffer.allocate(4), TRITONSERVER_MEMORY_CPU, 0));
        Cases.raises(IllegalArgumentException.class, () -> TRITONSERVER_InferenceRequestAppendInputData(
                request, "INPUT0", ByteBuffer.allocateDirect(4), TRITONSERVER_MEMORY_GPU, 0));
        TRITONSERVER_BufferAttributes attributes = TRITONSERVER_BufferAttributesNew();
        TRITONSERVER_BufferAttributesSetByteSize(attributes, 5);
        TRITONSERVER_InferenceRequestRemoveAllInputData(request, "INPUT0");
        Cases.raises(TritonException.class, () -> TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
                request, "INPUT0", ByteBuffer.allocateDirect(4), attributes));
        attributes.close();
        Cases.raises(TritonException.class, () -> TRITONSERVER_ServerInferAsync(server, request, null));
        Cases.raises(TritonException.class, () -> TRITONSERVER_ParameterNew("name", (String) null));
        Cases.raises(TritonException.class, () -> TRITONSERVER_ParameterNew(null, 1));
        Cases.raises(NullPointerException.class, () -> TRITONSERVER_ServerLoadModelWithParameters(
                server, "echo", new TRITONSERVER_Parameter[] {null}));
        request.close();
        Cases.raises(IllegalStateException.class, () -> TRITONSERVER_InferenceRequestSetId(request, "x"));
        Cases.raises(IllegalStateException.class, () -> TRITONSERVER_ServerInferAsync(server, request, null));
        TRITONSERVER_ServerDelete(server);
        Cases.raises(IllegalStateException.class, () -> TRITONSERVER_ServerDelete(server));
        Cases.raises(IllegalStateException.class, () -> TRITONSERVER_ServerIsLive(server));
    }

    /** Threads that use an object while another deletes it: each call works, or throws. */
    public static void objectsAreDeletedWhileTheyAreUsed() throws Exception {
        TRITONSERVER_Server server = server("echo");
        for (int round = 0; round < 200; round++) {
            TRITONSERVER_InferenceRequest request = request(server, round);
            List<Thread> threads = new ArrayList<>();
            AtomicInteger refused = new AtomicInteger();
            for (int at = 0; at < 3; at++) {
                Thread thread = new Thread(() -> {
                    try {
                        for (int again = 0; again < 1000; again++) {
                            TRITONSERVER_InferenceRequestSetId(request, "a text that is long enough for the heap");
                            TRITONSERVER_InferenceRequestId(request);
                        }
                    } catch (IllegalStateException error) {
                        refused.incrementAndGet();
                    }
                });
                thread.start();
                threads.add(thread);
            }
            Thread.yield();
            request.close();
            for (Thread thread : threads) {
                thread.join();
            }
            Cases.check(refused.get() <= 3, "impossible");
        }
        TRITONSERVER_ServerDelete(server);
    }
}
