package nereid.tritonserver;

/** A response. What its outputs' buffers contain behind close is up to the allocator. */
public final class TRITONSERVER_InferenceResponse extends Handle {
    TRITONSERVER_InferenceResponse(long address, State server, State allocator) {
        super(new State(address, Native::InferenceResponseDelete, false, allocator, server));
    }
}
