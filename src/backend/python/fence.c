/* A full memory fence for workers in Python, which has none. A worker calls it through ctypes. */
void nereid_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
