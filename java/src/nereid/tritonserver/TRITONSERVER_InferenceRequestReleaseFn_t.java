package nereid.tritonserver;

/** Returns a request to the program, which may close it, change it or send it again here. On any thread. */
@FunctionalInterface
public interface TRITONSERVER_InferenceRequestReleaseFn_t {
    void call(TRITONSERVER_InferenceRequest request, int flags);
}
