import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

import nereid.InferenceRequest;
import nereid.InferenceResponse;
import nereid.Model;
import nereid.Server;
import nereid.Tensor;
import nereid.TritonException;

/** What lives how long, and what a program may do wrong. */
public final class Lifetimes {
    public static void main(String[] arguments) throws Exception {
        Servers.arguments(arguments);
        Cases.run(Lifetimes.class);
        Servers.mustHaveGivenAllBack();
    }

    private static InferenceRequest echo(Server server, float value) {
        return server.model("echo").request().input("INPUT0", new float[] {value}, 1, 1);
    }

    public static void nothingIsReadBehindClose() {
        try (Server server = Servers.started("echo"); InferenceRequest request = echo(server, 5)) {
            InferenceResponse response = request.infer();
            Tensor tensor = response.output("OUTPUT0");
            ByteBuffer buffer = tensor.buffer();
            FloatBuffer floats = buffer.asFloatBuffer();
            Cases.equal(floats.get(0), 5f);
            Cases.raises(java.nio.ReadOnlyBufferException.class, () -> buffer.put(0, (byte) 1));
            response.close();
            response.close();
            Cases.equal(buffer.remaining(), 0);
            Cases.raises(IndexOutOfBoundsException.class, () -> buffer.getFloat(0));
            Cases.raises(IllegalStateException.class, tensor::buffer);
            Cases.raises(IllegalStateException.class, tensor::asFloats);
            Cases.raises(IllegalStateException.class, response::outputs);
            Cases.raises(IllegalStateException.class, response::modelName);
            // It reads something, and does not end the process.
            for (int at = 0; at < 1000; at++) {
                request.infer().close();
                floats.get(0);
            }
        }
    }

    /** Of responses that are never closed: their memory lives as long as a buffer, and is not used for another. */
    public static void buffersOutliveResponsesThatAreDropped() {
        List<FloatBuffer> kept = new ArrayList<>();
        try (Server server = Servers.started("echo")) {
            for (int at = 0; at < 1000; at++) {
                try (InferenceRequest request = echo(server, at)) {
                    kept.add(request.infer().output("OUTPUT0").buffer().slice().order(
                            java.nio.ByteOrder.nativeOrder()).asFloatBuffer());
                }
                if (at % 100 == 0) {
                    System.gc();
                }
            }
        }
        System.gc();
        for (int at = 0; at < kept.size(); at++) {
            Cases.equal(kept.get(at).get(0), (float) at);
        }
    }

    public static void responsesOutliveTheServer() {
        Server server = Servers.started("echo");
        InferenceRequest request = echo(server, 3);
        InferenceResponse response = request.infer();
        server.close();
        server.close();
        Cases.equal(response.output("OUTPUT0").asFloats(), new float[] {3});
        Cases.equal(response.modelName(), "echo");
        Cases.raises(IllegalStateException.class, request::infer);
        Cases.raises(IllegalStateException.class, server::isLive);
        Cases.raises(IllegalStateException.class, () -> server.model("echo").request());
        response.close();
        request.close();
        request.close();
    }

    public static void aStoppedServerRefuses() {
        try (Server server = Servers.started("echo"); InferenceRequest request = echo(server, 1)) {
            server.stop();
            Cases.raises(TritonException.Unavailable.class, request::infer);
            server.stop();
        }
    }

    /** A callback that throws, or stops the server, does neither harm. */
    public static void callbacksCannotHarm() throws Exception {
        AtomicReference<Throwable> reported = new AtomicReference<>();
        CountDownLatch thrown = new CountDownLatch(1);
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            reported.set(error);
            thrown.countDown();
        });
        try (Server server = Servers.started("repeat", "echo"); InferenceRequest request = echo(server, 1)) {
            request.inferAsync((response, isFinal) -> {
                response.close();
                throw new IllegalArgumentException("of a callback");
            });
            thrown.await();
            Cases.equal(reported.get().getMessage(), "of a callback");
            CompletableFuture<Throwable> stopped = new CompletableFuture<>();
            try (InferenceRequest another = echo(server, 1)) {
                another.inferAsync((response, isFinal) -> {
                    response.close();
                    try {
                        server.close();
                        stopped.complete(null);
                    } catch (RuntimeException error) {
                        stopped.complete(error);
                    }
                });
                Cases.equal(stopped.get().getClass(), IllegalStateException.class);
            }
            echo(server, 1).infer().close();
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(null);
        }
    }

    /** From the callback of one request the next is sent. */
    public static void callbacksSendRequests() throws Exception {
        try (Server server = Servers.started("echo")) {
            CompletableFuture<Integer> end = new CompletableFuture<>();
            next(server, 0, end);
            Cases.equal(end.get(), 200);
        }
    }

    private static void next(Server server, int depth, CompletableFuture<Integer> end) {
        if (depth == 200) {
            end.complete(depth);
            return;
        }
        InferenceRequest request = echo(server, depth);
        request.inferAsync((response, isFinal) -> {
            response.close();
            request.close();
            next(server, depth + 1, end);
        });
    }

    /** Each thread of the server is attached once, as a daemon. */
    public static void threadsAreAttachedOnceAsDaemons() throws Exception {
        try (Server server = Servers.started("slow")) {
            Model model = server.model("slow");
            AtomicReference<Thread> before = new AtomicReference<>();
            for (int at = 0; at < 3; at++) {
                CompletableFuture<Thread> of = new CompletableFuture<>();
                try (InferenceRequest request = model.request().input("INPUT0", new int[] {1}, 1)) {
                    request.inferAsync((response, isFinal) -> {
                        response.close();
                        of.complete(Thread.currentThread());
                    });
                    Thread thread = of.get();
                    Cases.check(thread.isDaemon(), "no daemon");
                    Cases.check(thread != Thread.currentThread(), "the thread of the caller");
                    Thread last = before.getAndSet(thread);
                    Cases.check(last == null || last == thread, "attached twice");
                }
            }
            server.stop();
            // It is detached when the server ends it.
            before.get().join(TimeUnit.MINUTES.toMillis(5));
            Cases.equal(before.get().isAlive(), false);
        }
    }

    public static void handlesThatAreDroppedAreGivenBack() throws Exception {
        Server server = Servers.started("echo");
        for (int at = 0; at < 2000; at++) {
            echo(server, at).infer();
        }
        server.close();
        // The last of them ends the server, which its log says.
        System.gc();
    }
}
