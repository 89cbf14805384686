package nereid.tritonserver;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** A request. The server has it from TRITONSERVER_ServerInferAsync to the call of the release function. */
public final class TRITONSERVER_InferenceRequest extends Handle {
    /** Of each input, held until the server has no more use of them and the request lets go of them. */
    private final Map<String, List<ByteBuffer>> buffers = new HashMap<>();
    final State server;
    private volatile boolean isInFlight;

    TRITONSERVER_InferenceRequestReleaseFn_t release;
    TRITONSERVER_InferenceResponseCompleteFn_t response;
    TRITONSERVER_ResponseAllocator allocator;

    TRITONSERVER_InferenceRequest(long address, TRITONSERVER_Server server) {
        super(new State(address, Native::InferenceRequestDelete, false, server.state));
        this.server = server.state;
    }

    /** The address, for a call on a request that the server does not have. */
    long enterIdle() {
        long address = enter();
        if (isInFlight) {
            exit();
            throw new IllegalStateException("the server has this request until its release function is called");
        }
        return address;
    }

    void hold(String input, ByteBuffer buffer) {
        buffers.computeIfAbsent(input, name -> new ArrayList<>()).add(buffer);
    }

    void letGo(String input) {
        buffers.remove(input);
    }

    void letGoOfAll() {
        buffers.clear();
    }

    /** The server gets the request. */
    void sent() {
        state.hold();
        isInFlight = true;
    }

    /** The server gave the request back. */
    void returned() {
        isInFlight = false;
        state.release();
    }
}
