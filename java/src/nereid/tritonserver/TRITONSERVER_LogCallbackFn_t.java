package nereid.tritonserver;

/** Gets one message of the log, on the thread that logs it, and on several threads at a time. */
@FunctionalInterface
public interface TRITONSERVER_LogCallbackFn_t {
    void call(int level, String filename, int line, long timestamp_us, String message);
}
