package nereid.tritonserver;

/** Gets an event of a request. The trace may be one of a child. On any thread. */
@FunctionalInterface
public interface TRITONSERVER_InferenceTraceActivityFn_t {
    void call(TRITONSERVER_InferenceTrace trace, int activity, long timestamp_ns);
}
