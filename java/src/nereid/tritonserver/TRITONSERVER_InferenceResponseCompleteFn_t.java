package nereid.tritonserver;

/**
 * Gets each response, in order, and closes it, now or later. One call has TRITONSERVER_RESPONSE_COMPLETE_FINAL; a
 * response of null brings only flags. On any thread; must not block for long.
 */
@FunctionalInterface
public interface TRITONSERVER_InferenceResponseCompleteFn_t {
    void call(TRITONSERVER_InferenceResponse response, int flags);
}
