package nereid.tritonserver;

/** Provides memory for an output. An exception makes the response an error. */
@FunctionalInterface
public interface TRITONSERVER_ResponseAllocatorAllocFn_t {
    /**
     * At least byte_size bytes, which are more than none, of the CPU. The server writes there until the response comes;
     * the release function gets the memory back when the response is deleted. memory_type is what the server prefers.
     */
    Memory call(String tensor_name, long byte_size, int memory_type, long memory_type_id);
}
