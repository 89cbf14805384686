package nereid.tritonserver;

/** Called for each response, before its allocations. */
@FunctionalInterface
public interface TRITONSERVER_ResponseAllocatorStartFn_t {
    void call();
}
