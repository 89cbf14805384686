package nereid.tritonserver;

/** Returns a trace, or one of a child, to the program, which closes it. On any thread. */
@FunctionalInterface
public interface TRITONSERVER_InferenceTraceReleaseFn_t {
    void call(TRITONSERVER_InferenceTrace trace);
}
