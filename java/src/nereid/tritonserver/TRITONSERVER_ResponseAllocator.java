package nereid.tritonserver;

/** Functions that provide the memory of outputs. It is deleted behind the last response that has memory from it. */
public final class TRITONSERVER_ResponseAllocator extends Handle {
    final TRITONSERVER_ResponseAllocatorAllocFn_t alloc;
    final TRITONSERVER_ResponseAllocatorReleaseFn_t release;
    final TRITONSERVER_ResponseAllocatorStartFn_t start;

    TRITONSERVER_ResponseAllocator(
            long address, TRITONSERVER_ResponseAllocatorAllocFn_t alloc,
            TRITONSERVER_ResponseAllocatorReleaseFn_t release, TRITONSERVER_ResponseAllocatorStartFn_t start) {
        super(address, Native::ResponseAllocatorDelete, true, null);
        this.alloc = alloc;
        this.release = release;
        this.start = start;
    }
}
