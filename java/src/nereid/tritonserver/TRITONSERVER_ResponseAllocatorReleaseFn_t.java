package nereid.tritonserver;

/** Takes memory back when its response was deleted. */
@FunctionalInterface
public interface TRITONSERVER_ResponseAllocatorReleaseFn_t {
    void call(Memory memory);
}
