package nereid;

import static nereid.tritonserver.tritonserver.*;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

import nereid.tritonserver.TRITONSERVER_InferenceRequest;
import nereid.tritonserver.TRITONSERVER_ResponseAllocator;

/**
 * A request to a model: filled, sent, and after its answer sent again or closed. The server has it from the sending to
 * the last answer; calls that would change it then throw IllegalStateException. For one thread at a time, but for
 * {@link #cancel} and {@link #close}.
 */
public final class InferenceRequest implements AutoCloseable {
    private final Server server;
    private final TRITONSERVER_InferenceRequest handle;
    /** Copies of inputs, which are used again when the request is closed. */
    private final List<MemoryPool.Pooled> copies = new ArrayList<>();
    private OutputBuffers outputBuffers;
    private Sending sending;

    InferenceRequest(Model model) {
        server = model.server();
        handle = TRITONSERVER_InferenceRequestNew(server.handle(), model.name(), model.version());
    }

    public InferenceRequest id(String id) {
        TRITONSERVER_InferenceRequestSetId(handle, id);
        return this;
    }

    public InferenceRequest correlationId(long id) {
        TRITONSERVER_InferenceRequestSetCorrelationId(handle, id);
        return this;
    }

    public InferenceRequest correlationId(String id) {
        TRITONSERVER_InferenceRequestSetCorrelationIdString(handle, id);
        return this;
    }

    /** Whether it is the first or the last request of its sequence. */
    public InferenceRequest sequence(boolean isStart, boolean isEnd) {
        int start = isStart ? TRITONSERVER_REQUEST_FLAG_SEQUENCE_START : 0;
        int end = isEnd ? TRITONSERVER_REQUEST_FLAG_SEQUENCE_END : 0;
        TRITONSERVER_InferenceRequestSetFlags(handle, start | end);
        return this;
    }

    public InferenceRequest priority(long priority) {
        TRITONSERVER_InferenceRequestSetPriorityUInt64(handle, priority);
        return this;
    }

    /** How long it may wait in a queue; 0 is the model's default. */
    public InferenceRequest timeoutMicros(long micros) {
        TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(handle, micros);
        return this;
    }

    public InferenceRequest parameter(String name, String value) {
        TRITONSERVER_InferenceRequestSetStringParameter(handle, name, value);
        return this;
    }

    public InferenceRequest parameter(String name, long value) {
        TRITONSERVER_InferenceRequestSetIntParameter(handle, name, value);
        return this;
    }

    public InferenceRequest parameter(String name, boolean value) {
        TRITONSERVER_InferenceRequestSetBoolParameter(handle, name, value);
        return this;
    }

    public InferenceRequest parameter(String name, double value) {
        TRITONSERVER_InferenceRequestSetDoubleParameter(handle, name, value);
        return this;
    }

    /**
     * The bytes between position and limit of a direct buffer, without a copy: the server reads them until the answer,
     * so do not change them before. A buffer of the heap is copied.
     */
    public InferenceRequest input(String name, DataType type, ByteBuffer bytes, long... shape) {
        ByteBuffer direct = bytes.isDirect() ? bytes : copy(bytes.remaining()).put(bytes.duplicate()).flip();
        TRITONSERVER_InferenceRequestAddInput(handle, name, type.number(), shape);
        try {
            TRITONSERVER_InferenceRequestAppendInputData(handle, name, direct, TRITONSERVER_MEMORY_CPU, 0);
        } catch (RuntimeException error) {
            TRITONSERVER_InferenceRequestRemoveInput(handle, name);
            throw error;
        }
        return this;
    }

    /** BOOL, UINT8, INT8, or the bytes of a tensor of any type. Copied, as all arrays are. */
    public InferenceRequest input(String name, DataType type, byte[] bytes, long... shape) {
        return input(name, type, ByteBuffer.wrap(bytes), shape);
    }

    /** INT16; with a type also UINT16, FP16 and BF16. */
    public InferenceRequest input(String name, DataType type, short[] values, long... shape) {
        ByteBuffer bytes = copy((long) values.length * Short.BYTES);
        bytes.asShortBuffer().put(values);
        return input(name, type, bytes, shape);
    }

    /** INT32. */
    public InferenceRequest input(String name, int[] values, long... shape) {
        ByteBuffer bytes = copy((long) values.length * Integer.BYTES);
        bytes.asIntBuffer().put(values);
        return input(name, DataType.INT32, bytes, shape);
    }

    /** UINT32. */
    public InferenceRequest unsignedInput(String name, int[] values, long... shape) {
        ByteBuffer bytes = copy((long) values.length * Integer.BYTES);
        bytes.asIntBuffer().put(values);
        return input(name, DataType.UINT32, bytes, shape);
    }

    /** INT64. */
    public InferenceRequest input(String name, long[] values, long... shape) {
        ByteBuffer bytes = copy((long) values.length * Long.BYTES);
        bytes.asLongBuffer().put(values);
        return input(name, DataType.INT64, bytes, shape);
    }

    /** FP32. */
    public InferenceRequest input(String name, float[] values, long... shape) {
        ByteBuffer bytes = copy((long) values.length * Float.BYTES);
        bytes.asFloatBuffer().put(values);
        return input(name, DataType.FP32, bytes, shape);
    }

    /** FP64. */
    public InferenceRequest input(String name, double[] values, long... shape) {
        ByteBuffer bytes = copy((long) values.length * Double.BYTES);
        bytes.asDoubleBuffer().put(values);
        return input(name, DataType.FP64, bytes, shape);
    }

    /** BYTES, in UTF-8. */
    public InferenceRequest input(String name, String[] values, long... shape) {
        byte[][] elements = Arrays.stream(values)
                .map(value -> value.getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
        return input(name, elements, shape);
    }

    /** BYTES. */
    public InferenceRequest input(String name, byte[][] elements, long... shape) {
        long byteSize = 0;
        for (byte[] element : elements) {
            byteSize += Integer.BYTES + element.length;
        }
        ByteBuffer bytes = copy(byteSize);
        ByteOrder order = bytes.order();
        bytes.order(ByteOrder.LITTLE_ENDIAN);
        for (byte[] element : elements) {
            bytes.putInt(element.length).put(element);
        }
        return input(name, DataType.BYTES, bytes.flip().order(order), shape);
    }

    /** Direct memory for the copy of an input. */
    private ByteBuffer copy(long byteSize) {
        MemoryPool.Pooled memory = MemoryPool.take(byteSize);
        copies.add(memory);
        return memory.buffer().limit((int) byteSize);
    }

    public InferenceRequest removeInputs() {
        TRITONSERVER_InferenceRequestRemoveAllInputs(handle);
        giveBackCopies();
        return this;
    }

    private void giveBackCopies() {
        copies.forEach(MemoryPool::giveBack);
        copies.clear();
    }

    /** Asks for an output. Without any, all are returned. */
    public InferenceRequest output(String name) {
        TRITONSERVER_InferenceRequestAddRequestedOutput(handle, name);
        return this;
    }

    /**
     * Memory for an output: the bytes from position to limit of a direct buffer, where the server puts it. The buffer
     * belongs to one response at a time: of a decoupled model a second one that is open has memory of its own.
     */
    public InferenceRequest output(String name, ByteBuffer memory) {
        output(name);
        if (outputBuffers == null) {
            outputBuffers = new OutputBuffers();
        }
        outputBuffers.put(name, memory);
        return this;
    }

    /** Sends the request, and waits for its only response, which the caller closes. An interrupt cancels it. */
    public InferenceResponse infer() {
        CompletableFuture<InferenceResponse> future = inferAsync();
        try {
            return future.get();
        } catch (ExecutionException error) {
            throw (RuntimeException) error.getCause();
        } catch (InterruptedException interrupt) {
            future.cancel(true);
            Thread.currentThread().interrupt();
            throw new TritonException.Cancelled("the thread was interrupted while it waited for the response");
        }
    }

    /**
     * Sends the request. The future has its only response, which the caller closes, or its error, and is completed on a
     * thread of the server, whose work what depends on it must not hold up. Cancelling it cancels the request.
     */
    public CompletableFuture<InferenceResponse> inferAsync() {
        SingleResponse single = new SingleResponse(this);
        send(new Sending(single::received, single::end));
        return single;
    }

    /** Sends the request. The responses come to the callback, as errors too. */
    public void inferAsync(ResponseCallback callback) {
        send(new Sending(callback, () -> { }));
    }

    /** Sends the request to a model with any number of responses. */
    public Responses stream() {
        Responses responses = new Responses(this);
        send(new Sending((response, isFinal) -> {
            if (response != null) {
                responses.add(response);
            }
        }, responses::end));
        return responses;
    }

    private void send(Sending next) {
        TRITONSERVER_ResponseAllocator allocator =
                outputBuffers == null ? server.allocator() : outputBuffers.allocator();
        TRITONSERVER_InferenceRequestSetReleaseCallback(handle, (request, flags) -> next.ended());
        TRITONSERVER_InferenceRequestSetResponseCallback(handle, allocator, (response, flags) -> {
            boolean isFinal = (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
            try {
                next.callback.accept(response == null ? null : new InferenceResponse(response), isFinal);
            } finally {
                if (isFinal) {
                    next.ended();
                }
            }
        });
        Sending before = sending;
        sending = next;
        try {
            TRITONSERVER_ServerInferAsync(server.handle(), handle, null);
        } catch (RuntimeException error) {
            sending = before;
            throw error;
        }
    }

    /** One sending, which ends with the request's return and the last response. */
    private static final class Sending {
        private final ResponseCallback callback;
        private final Runnable end;
        private int expected = 2;

        Sending(ResponseCallback callback, Runnable end) {
            this.callback = callback;
            this.end = end;
        }

        void ended() {
            boolean isLast;
            synchronized (this) {
                expected--;
                isLast = expected == 0;
            }
            if (isLast) {
                end.run();
            }
        }

        synchronized boolean isUnderWay() {
            return expected > 0;
        }
    }

    /** The response of a request that gets one. */
    private static final class SingleResponse extends CompletableFuture<InferenceResponse> {
        private final InferenceRequest request;
        private InferenceResponse response;
        private int count;

        SingleResponse(InferenceRequest request) {
            this.request = request;
        }

        synchronized void received(InferenceResponse received, boolean isFinal) {
            if (received != null) {
                count++;
                if (response == null) {
                    response = received;
                } else {
                    received.close();
                }
            }
        }

        /** Both locks are free when the future is completed, which runs what depends on it. */
        void end() {
            InferenceResponse only;
            TritonException error;
            synchronized (this) {
                only = response;
                error = count == 1 ? only.error() : new TritonException.Unsupported(
                        "the model returned " + count + " responses: use stream for a decoupled model");
            }
            if (error != null) {
                if (only != null) {
                    only.close();
                }
                completeExceptionally(error);
            } else if (!complete(only)) {
                only.close();
            }
        }

        @Override
        public boolean cancel(boolean mayInterrupt) {
            boolean isCancelled = super.cancel(mayInterrupt);
            if (isCancelled) {
                request.cancelSending();
            }
            return isCancelled;
        }
    }

    /** Memory of the program for outputs; other outputs get memory of the pool. */
    private static final class OutputBuffers {
        private final Map<String, Given> byName = new HashMap<>();
        private TRITONSERVER_ResponseAllocator allocator;

        private static final class Given extends nereid.tritonserver.Memory {
            private boolean isUsed;

            Given(ByteBuffer buffer) {
                super(buffer);
            }
        }

        synchronized void put(String name, ByteBuffer buffer) {
            byName.put(name, new Given(buffer));
        }

        TRITONSERVER_ResponseAllocator allocator() {
            if (allocator == null) {
                allocator = TRITONSERVER_ResponseAllocatorNew((name, byteSize, kind, id) -> take(name, byteSize),
                        this::giveBack, null);
            }
            return allocator;
        }

        private synchronized nereid.tritonserver.Memory take(String name, long byteSize) {
            Given given = byName.get(name);
            if (given == null || given.isUsed) {
                return MemoryPool.take(byteSize);
            }
            if (given.byteSize() < byteSize) {
                throw new IllegalArgumentException("the memory for output '" + name + "' has " + given.byteSize()
                        + " bytes, and the output " + byteSize);
            }
            given.isUsed = true;
            return given;
        }

        private synchronized void giveBack(nereid.tritonserver.Memory memory) {
            if (memory instanceof Given) {
                ((Given) memory).isUsed = false;
            } else {
                MemoryPool.giveBack((MemoryPool.Pooled) memory);
            }
        }

        void close() {
            if (allocator != null) {
                allocator.close();
            }
        }
    }

    /** A hint, which a model may ignore; the answer is then an error, or the usual one. From any thread. */
    public void cancel() {
        TRITONSERVER_InferenceRequestCancel(handle);
    }

    /** The same, where the request may be at its end already. */
    void cancelSending() {
        try {
            cancel();
        } catch (IllegalStateException error) {
            // It was closed: the server has it no longer, or has its last reference.
        }
    }

    /** Gives the request back, or leaves that to its last answer. A second call does nothing. */
    @Override
    public void close() {
        boolean isIdle = sending == null || !sending.isUnderWay();
        boolean wasOpen = !handle.isClosed();
        handle.close();
        if (wasOpen && outputBuffers != null) {
            outputBuffers.close();
        }
        if (wasOpen && isIdle) {
            giveBackCopies();
        }
    }
}
