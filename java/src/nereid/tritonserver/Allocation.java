package nereid.tritonserver;

/** The memory of one output, its address, and what takes it back. C holds it until the response is deleted. */
record Allocation(Memory memory, long address, TRITONSERVER_ResponseAllocatorReleaseFn_t release) {
}
