package nereid.tritonserver;

import java.nio.ByteBuffer;

import nereid.TritonException;

/** What C calls, on any thread. No exception leaves these methods: one of a callback goes to the thread's handler. */
final class Callbacks {
    static {
        Library.load();
    }

    private static final ThreadLocal<Integer> DEPTH = ThreadLocal.withInitial(() -> 0);

    /** Of the process, as the log is. */
    private static volatile TRITONSERVER_LogCallbackFn_t log;

    private Callbacks() {
    }

    // Written in native/calls.c.
    static native long address(ByteBuffer buffer);

    static native int[] apiVersion();

    static native long parameterNew(byte[] name, int type, byte[] text, long bits, double number);

    static native long parameterBytesNew(byte[] name, ByteBuffer bytes, int position, int size);

    static native long messageNew(byte[] json);

    static native long allocatorNew(boolean hasStart);

    static native void appendInputData(
            long request, byte[] name, ByteBuffer bytes, int position, int size, int memoryType, long memoryTypeId,
            byte[] hostPolicy, long attributes);

    static native void setLogCallback(long options, boolean isSet);

    static native long traceNew(int level, long parentId, long number);

    static native void inferAsync(
            long server, long request, long trace, Call call, boolean hasRelease, long allocator);

    static native TritonException responseError(long response);

    static native ResponseModel responseModel(long response);

    static native Parameter responseParameter(long response, int index);

    static native Output responseOutput(long response, int index);

    /** Whether this thread is inside a callback of the server. */
    static boolean isInside() {
        return DEPTH.get() > 0;
    }

    private static void enter() {
        DEPTH.set(DEPTH.get() + 1);
    }

    private static void leave() {
        DEPTH.set(DEPTH.get() - 1);
    }

    /** Hands an exception of a callback to whoever handles those of its thread. */
    static void report(Throwable error) {
        try {
            Thread thread = Thread.currentThread();
            thread.getUncaughtExceptionHandler().uncaughtException(thread, error);
        } catch (Throwable again) {
            // The handler failed too; there is none behind it.
        }
    }

    /** Memory for an output, which C holds until it is released; null with the reason in the call. */
    static Allocation allocate(Call call, byte[] name, long byteSize, int memoryType, long memoryTypeId) {
        enter();
        try {
            Memory memory = call.allocator.alloc.call(Texts.string(name), byteSize, memoryType, memoryTypeId);
            if (memory == null) {
                throw new IllegalStateException("the allocator returned no memory");
            }
            if (memory.byteSize() < byteSize) {
                throw new IllegalStateException(
                        "the allocator returned " + memory.byteSize() + " bytes for an output of " + byteSize);
            }
            return new Allocation(memory, memory.address, call.allocator.release);
        } catch (Throwable error) {
            call.allocationError = error.toString();
            return null;
        } finally {
            leave();
        }
    }

    /** Why the last allocation of a call failed. */
    static byte[] allocationError(Call call) {
        return Texts.text(String.valueOf(call.allocationError).replace('\0', ' '));
    }

    static void released(Allocation allocation) {
        enter();
        try {
            allocation.release().call(allocation.memory());
        } catch (Throwable error) {
            report(error);
        } finally {
            leave();
        }
    }

    static void started(Call call) {
        enter();
        try {
            call.allocator.start.call();
        } catch (Throwable error) {
            report(error);
        } finally {
            leave();
        }
    }

    /** Whether C has no more use of the call; so does the next. */
    static boolean responded(Call call, long response, int flags) {
        enter();
        try {
            return call.respond(response, flags);
        } catch (Throwable error) {
            report(error);
            return false;
        } finally {
            leave();
        }
    }

    static boolean returned(Call call, int flags) {
        enter();
        try {
            return call.giveBack(flags);
        } catch (Throwable error) {
            report(error);
            return false;
        } finally {
            leave();
        }
    }

    static void traced(long number, long trace, int activity, long timestampNs) {
        enter();
        try {
            Traces.activity(number, trace, activity, timestampNs);
        } catch (Throwable error) {
            report(error);
        } finally {
            leave();
        }
    }

    static void traceReturned(long number, long trace) {
        enter();
        try {
            Traces.release(number, trace);
        } catch (Throwable error) {
            report(error);
        } finally {
            leave();
        }
    }

    static void setLog(TRITONSERVER_LogCallbackFn_t function) {
        log = function;
    }

    static void logged(int level, byte[] file, int line, long timestampUs, byte[] message) {
        TRITONSERVER_LogCallbackFn_t function = log;
        if (function == null) {
            return;
        }
        enter();
        try {
            function.call(level, Texts.string(file), line, timestampUs, Texts.string(message));
        } catch (Throwable error) {
            report(error);
        } finally {
            leave();
        }
    }

    static TritonException error(int code, byte[] message) {
        return TritonException.of(code, Texts.string(message));
    }

    static ResponseModel model(byte[] name, long version) {
        return new ResponseModel(Texts.string(name), version);
    }

    static Parameter parameter(byte[] name, int type, byte[] text, long bits, double number) {
        Object value = switch (type) {
            case Functions.TRITONSERVER_PARAMETER_INT -> (Object) bits;
            case Functions.TRITONSERVER_PARAMETER_BOOL -> bits != 0;
            case Functions.TRITONSERVER_PARAMETER_DOUBLE -> number;
            default -> Texts.string(text);
        };
        return new Parameter(Texts.string(name), type, value);
    }

    static Output output(
            byte[] name, int datatype, long[] shape, long byteSize, int memoryType, long memoryTypeId,
            Allocation allocation) {
        Memory memory = allocation == null ? null : allocation.memory();
        return new Output(Texts.string(name), datatype, shape, byteSize, memoryType, memoryTypeId, memory);
    }
}
