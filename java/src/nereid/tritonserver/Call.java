package nereid.tritonserver;

import java.util.concurrent.atomic.AtomicInteger;

/** One sending of a request: what its callbacks need. C holds it until the request and the last response came. */
final class Call {
    private final TRITONSERVER_InferenceRequest request;
    private final TRITONSERVER_InferenceRequestReleaseFn_t release;
    private final TRITONSERVER_InferenceResponseCompleteFn_t response;
    final TRITONSERVER_ResponseAllocator allocator;
    /** The callbacks that still come: the release and the final response. */
    private final AtomicInteger expected = new AtomicInteger(2);
    volatile String allocationError;

    Call(TRITONSERVER_InferenceRequest request) {
        this.request = request;
        release = request.release;
        response = request.response;
        allocator = request.allocator;
    }

    /** Called before the server gets the request; the allocator is in use by the caller. */
    void send() {
        request.sent();
        request.server.hold();
        if (allocator != null) {
            allocator.state.hold();
        }
    }

    /** The server did not take the request. */
    void refused() {
        request.returned();
        end();
    }

    private void end() {
        if (allocator != null) {
            allocator.state.release();
        }
        request.server.release();
    }

    private boolean finish() {
        boolean isLast = expected.decrementAndGet() == 0;
        if (isLast) {
            end();
        }
        return isLast;
    }

    boolean respond(long address, int flags) {
        try {
            TRITONSERVER_InferenceResponse received = address == 0
                    ? null : new TRITONSERVER_InferenceResponse(address, request.server, allocator.state);
            response.call(received, flags);
        } catch (Throwable error) {
            Callbacks.report(error);
        }
        return (flags & Functions.TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0 && finish();
    }

    boolean giveBack(int flags) {
        if ((flags & Functions.TRITONSERVER_REQUEST_RELEASE_ALL) == 0) {
            return false;
        }
        request.returned();
        try {
            release.call(request, flags);
        } catch (Throwable error) {
            Callbacks.report(error);
        }
        return finish();
    }
}
