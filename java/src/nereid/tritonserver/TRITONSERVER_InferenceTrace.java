package nereid.tritonserver;

/** The times of a request. The server has it from TRITONSERVER_ServerInferAsync to the call of the release function. */
public final class TRITONSERVER_InferenceTrace extends Handle {
    final Traces traces;

    TRITONSERVER_InferenceTrace(long address, Traces traces) {
        super(new State(address, Native::InferenceTraceDelete, false));
        this.traces = traces;
    }
}
