package nereid.tritonserver;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The functions of a trace and of its children. The C interface does not say how many children there are, so a number
 * stands for the functions, which end with the last trace that was seen; a later event finds none.
 */
final class Traces {
    private static final Map<Long, Traces> BY_NUMBER = new ConcurrentHashMap<>();
    private static final AtomicLong NUMBERS = new AtomicLong();

    final long number = NUMBERS.incrementAndGet();
    private final TRITONSERVER_InferenceTraceActivityFn_t activity;
    private final TRITONSERVER_InferenceTraceReleaseFn_t release;
    /** Those that the server has, by their addresses; each is retained. */
    private final Map<Long, TRITONSERVER_InferenceTrace> sent = new HashMap<>();

    Traces(TRITONSERVER_InferenceTraceActivityFn_t activity, TRITONSERVER_InferenceTraceReleaseFn_t release) {
        this.activity = activity;
        this.release = release;
    }

    /** Called before the server gets a trace. */
    synchronized void send(TRITONSERVER_InferenceTrace trace) {
        BY_NUMBER.put(number, this);
        if (sent.putIfAbsent(trace.state.address, trace) != null) {
            throw new IllegalStateException("the server has this trace until its release function is called");
        }
        trace.state.hold();
    }

    /** Takes a trace from the server; null if it does not have it. */
    synchronized TRITONSERVER_InferenceTrace takeBack(long address) {
        TRITONSERVER_InferenceTrace trace = sent.remove(address);
        if (sent.isEmpty()) {
            BY_NUMBER.remove(number);
        }
        if (trace != null) {
            trace.state.release();
        }
        return trace;
    }

    private synchronized TRITONSERVER_InferenceTrace seen(long address) {
        TRITONSERVER_InferenceTrace trace = sent.get(address);
        if (trace == null) {
            trace = new TRITONSERVER_InferenceTrace(address, this);
            trace.state.hold();
            sent.put(address, trace);
        }
        return trace;
    }

    static void activity(long number, long address, int activity, long timestampNs) {
        Traces traces = BY_NUMBER.get(number);
        if (traces != null) {
            traces.activity.call(traces.seen(address), activity, timestampNs);
        }
    }

    static void release(long number, long address) {
        Traces traces = BY_NUMBER.get(number);
        if (traces == null) {
            Native.InferenceTraceDelete(address);
            return;
        }
        TRITONSERVER_InferenceTrace trace = traces.seen(address);
        traces.takeBack(address);
        traces.release.call(trace);
    }
}
