package nereid;

/** Gets the responses of a request, in order, on a thread of the server or the caller's: it must not block for long. */
@FunctionalInterface
public interface ResponseCallback {
    /** The receiver closes the response, which is null where a decoupled model ends without a further one. */
    void accept(InferenceResponse response, boolean isFinal);
}
