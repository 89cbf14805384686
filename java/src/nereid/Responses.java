package nereid;

import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.concurrent.LinkedBlockingQueue;

/** The responses of one request, as they come. Closing it cancels what has not come yet. */
public final class Responses implements Iterator<InferenceResponse>, Iterable<InferenceResponse>, AutoCloseable {
    private static final Object END = new Object();

    private final InferenceRequest request;
    /** Responses, and END behind the last one. What a model sends ahead of its reader is kept here. */
    private final LinkedBlockingQueue<Object> queue = new LinkedBlockingQueue<>();
    private Object next;
    private volatile boolean isClosed;

    Responses(InferenceRequest request) {
        this.request = request;
    }

    void add(InferenceResponse response) {
        queue.add(response);
        if (isClosed) {
            drop();
        }
    }

    void end() {
        queue.add(END);
    }

    @Override
    public Iterator<InferenceResponse> iterator() {
        return this;
    }

    /** Waits for the next response, or the end. An interrupt cancels the request and throws. */
    @Override
    public boolean hasNext() {
        if (next == null) {
            try {
                next = isClosed ? END : queue.take();
            } catch (InterruptedException interrupt) {
                request.cancel();
                Thread.currentThread().interrupt();
                throw new TritonException.Cancelled("the thread was interrupted while it waited for a response");
            }
        }
        return next != END;
    }

    /** The next response, which the caller closes. Throws the error of one that is an error; others may follow it. */
    @Override
    public InferenceResponse next() {
        if (!hasNext()) {
            throw new NoSuchElementException("there is no further response");
        }
        InferenceResponse response = (InferenceResponse) next;
        next = null;
        TritonException error = response.error();
        if (error != null) {
            response.close();
            throw error;
        }
        return response;
    }

    public void cancel() {
        request.cancel();
    }

    /** Cancels the request if it is not at its end, and closes the responses that were not read. */
    @Override
    public void close() {
        isClosed = true;
        if (next instanceof InferenceResponse) {
            ((InferenceResponse) next).close();
        }
        if (next != END && !queue.contains(END)) {
            request.cancelSending();
        }
        next = END;
        drop();
    }

    private void drop() {
        for (Object left = queue.poll(); left != null; left = queue.poll()) {
            if (left instanceof InferenceResponse) {
                ((InferenceResponse) left).close();
            }
        }
    }
}
