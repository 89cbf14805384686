import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicReference;

import nereid.DataType;
import nereid.InferenceRequest;
import nereid.InferenceResponse;
import nereid.Responses;
import nereid.Server;
import nereid.Tensor;
import nereid.TritonException;
import nereid.tritonserver.Memory;

/** Requests and their responses. */
public final class Inference {
    public static void main(String[] arguments) throws Exception {
        Servers.arguments(arguments);
        Cases.run(Inference.class);
        Servers.mustHaveGivenAllBack();
    }

    public static void numbersAndStringsComeBack() {
        try (Server server = Servers.started("echo");
                InferenceRequest request = server.model("echo").request()) {
            request.id("one").input("INPUT0", new float[] {1.5f, -2, 3}, 1, 3).input("INPUT1", new long[] {1L << 40}, 1)
                    .input("INPUT2", new String[] {"", "zwölf", "a\0b"}, 3);
            try (InferenceResponse response = request.infer()) {
                Cases.equal(response.modelName(), "echo");
                Cases.equal(response.modelVersion(), 1L);
                Cases.equal(response.id(), "one");
                Cases.equal(response.outputs().size(), 3);
                Tensor numbers = response.output("OUTPUT0");
                Cases.equal(numbers.dataType(), DataType.FP32);
                Cases.equal(numbers.shape(), new long[] {1, 3});
                Cases.equal(numbers.asFloats(), new float[] {1.5f, -2, 3});
                Cases.equal(numbers.buffer().getFloat(4), -2f);
                Cases.equal(response.output("OUTPUT1").asLongs(), new long[] {1L << 40});
                Cases.equal(response.output("OUTPUT2").asStrings(), new String[] {"", "zwölf", "a\0b"});
                Cases.equal(numbers.label(1), "second");
                Map<String, Object> parameters = Map.of(
                        "param0", "an example string parameter", "param1", 42L, "param2", false, "param3", 123.123);
                Cases.equal(response.parameters(), parameters);
                Cases.raises(IllegalArgumentException.class, numbers::asInts);
                Cases.raises(IllegalArgumentException.class, () -> response.output("OUTPUT9"));
            }
        }
    }

    /** The same request is changed and sent again, and asks for one output. */
    public static void aRequestIsSentAgain() {
        try (Server server = Servers.started("echo");
                InferenceRequest request = server.model("echo").request()) {
            for (int round = 0; round < 100; round++) {
                request.removeInputs().input("INPUT0", new float[] {round}, 1, 1);
                if (round == 0) {
                    request.output("OUTPUT0");
                }
                try (InferenceResponse response = request.infer()) {
                    Cases.equal(response.outputs().size(), 1);
                    Cases.equal(response.output("OUTPUT0").asFloats(), new float[] {round});
                }
            }
        }
    }

    public static void emptyTensorsComeBack() {
        try (Server server = Servers.started("echo");
                InferenceRequest request = server.model("echo").request()) {
            request.input("INPUT0", new float[0], 1, 0).input("INPUT2", new String[0], 0);
            try (InferenceResponse response = request.infer()) {
                Cases.equal(response.output("OUTPUT0").asFloats().length, 0);
                Cases.equal(response.output("OUTPUT0").buffer().remaining(), 0);
                Cases.equal(response.output("OUTPUT2").asStrings().length, 0);
            }
        }
    }

    private static InferenceRequest repeat(Server server, int count, int delayMillis) {
        int[] values = new int[count];
        int[] delays = new int[count];
        for (int at = 0; at < count; at++) {
            values[at] = 10 * at;
            delays[at] = delayMillis;
        }
        return server.model("repeat").request().input("IN", values, count).unsignedInput("DELAY", delays, count)
                .unsignedInput("WAIT", new int[1], 1);
    }

    public static void aDecoupledModelReturnsSeveral() {
        try (Server server = Servers.started("repeat"); InferenceRequest request = repeat(server, 3, 1)) {
            Cases.equal(server.model("repeat").isDecoupled(), true);
            List<Integer> values = new ArrayList<>();
            try (Responses responses = request.stream()) {
                for (InferenceResponse response : responses) {
                    values.add(response.output("OUT").asInts()[0]);
                    response.close();
                }
            }
            Cases.equal(values, List.of(0, 10, 20));
            // The request is the program's again, and what wants one response is refused three.
            Cases.contains(Cases.raises(TritonException.Unsupported.class, request::infer).getMessage(), "3 responses");
        }
    }

    public static void responsesComeToACallback() throws Exception {
        try (Server server = Servers.started("repeat"); InferenceRequest request = repeat(server, 4, 0)) {
            List<Integer> values = new ArrayList<>();
            CountDownLatch end = new CountDownLatch(1);
            request.inferAsync((response, isFinal) -> {
                if (response != null) {
                    values.add(response.output("IDX").asInts()[0]);
                    response.close();
                }
                if (isFinal) {
                    end.countDown();
                }
            });
            end.await();
            Cases.equal(values, List.of(0, 1, 2, 3));
        }
    }

    public static void noResponseIsNoError() {
        try (Server server = Servers.started("repeat"); InferenceRequest request = repeat(server, 0, 0)) {
            try (Responses responses = request.stream()) {
                Cases.equal(responses.hasNext(), false);
            }
        }
    }

    public static void aModelsErrorIsThrown() throws Exception {
        try (Server server = Servers.started("copy");
                InferenceRequest request = server.model("copy").request()) {
            request.input("INPUT0", new int[] {1}, 1).parameter("fail", "no luck today");
            TritonException error = Cases.raises(TritonException.InvalidArgument.class, request::infer);
            Cases.equal(error.getMessage(), "no luck today");
            Cases.equal(error.codeName(), "Invalid argument");
            Cases.equal(error.code(), 3);
            ExecutionException later =
                    Cases.raises(ExecutionException.class, () -> request.inferAsync().get());
            Cases.equal(later.getCause().getClass(), TritonException.InvalidArgument.class);
            try (Responses responses = request.stream()) {
                Cases.raises(TritonException.InvalidArgument.class, responses::next);
                Cases.equal(responses.hasNext(), false);
            }
            // A callback gets the response with its error.
            CompletableFuture<TritonException> found = new CompletableFuture<>();
            request.inferAsync((response, isFinal) -> {
                found.complete(response.error());
                response.close();
            });
            Cases.equal(found.get().getMessage(), "no luck today");
        }
    }

    public static void whatTheServerRefusesIsThrown() {
        try (Server server = Servers.started("echo")) {
            Cases.raises(TritonException.NotFound.class, () -> server.model("none").request());
            try (InferenceRequest request = server.model("echo").request()) {
                request.input("INPUT0", new long[] {1}, 1, 1);
                TritonException error = Cases.raises(TritonException.InvalidArgument.class, request::infer);
                Cases.contains(error.getMessage(), "FP32");
                // It is still the program's.
                request.removeInputs().input("INPUT0", new float[] {1}, 1, 1).infer().close();
            }
        }
    }

    /** A request that keeps the only instance of a model until the first byte of its input becomes 1. */
    private static InferenceRequest holding(Server server, ByteBuffer input) {
        return server.model("gate").request().parameter("hold", 60_000)
                .input("IN", DataType.UINT8, input, input.remaining());
    }

    public static void aRequestThatWaitsIsCancelled() throws Exception {
        ByteBuffer gate = ByteBuffer.allocateDirect(1);
        try (Server server = Servers.started("gate");
                InferenceRequest first = holding(server, gate);
                InferenceRequest second = holding(server, ByteBuffer.allocateDirect(1));
                InferenceRequest third = holding(server, ByteBuffer.allocateDirect(1))) {
            CompletableFuture<InferenceResponse> running = first.inferAsync();
            Responses responses = second.stream();
            CompletableFuture<InferenceResponse> dropped = third.inferAsync();
            responses.cancel();
            dropped.cancel(true);
            Cases.equal(dropped.isCancelled(), true);
            // A request in a queue is answered when its turn comes.
            gate.put(0, (byte) 1);
            running.get().close();
            Cases.raises(TritonException.Cancelled.class, responses::next);
            Cases.equal(responses.hasNext(), false);
        }
    }

    public static void anInterruptCancels() throws Exception {
        ByteBuffer gate = ByteBuffer.allocateDirect(1);
        try (Server server = Servers.started("gate");
                InferenceRequest first = holding(server, gate);
                InferenceRequest second = holding(server, ByteBuffer.allocateDirect(1))) {
            CompletableFuture<InferenceResponse> running = first.inferAsync();
            AtomicReference<Throwable> thrown = new AtomicReference<>();
            Thread thread = new Thread(() -> {
                try {
                    second.infer().close();
                } catch (RuntimeException error) {
                    thrown.set(Thread.interrupted() ? error : null);
                }
            });
            thread.start();
            thread.interrupt();
            thread.join();
            Cases.equal(thrown.get().getClass(), TritonException.Cancelled.class);
            gate.put(0, (byte) 1);
            running.get().close();
        }
    }

    /** The model has the program's own memory, of inputs and outputs. */
    public static void directBuffersAreNotCopied() throws Exception {
        try (Server server = Servers.started("addresses");
                InferenceRequest request = server.model("addresses").request()) {
            ByteBuffer input = ByteBuffer.allocateDirect(1 << 20).order(ByteOrder.nativeOrder());
            ByteBuffer output = ByteBuffer.allocateDirect(2 << 20);
            input.put(7, (byte) 9).position(7);
            output.position(100);
            request.input("IN", DataType.UINT8, input, input.remaining()).output("OUT", output);
            try (InferenceResponse response = request.infer()) {
                Cases.equal(response.parameters().get("input"), new Memory(input).address());
                Cases.equal(response.parameters().get("output"), new Memory(output).address());
                Cases.equal(output.get(100), (byte) 9);
                Cases.equal(response.output("OUT").buffer().get(0), (byte) 9);
                // A second response at a time has other memory.
                try (InferenceResponse second = request.infer()) {
                    Cases.check(!second.parameters().get("output").equals(new Memory(output).address()), "used twice");
                }
            }
        }
    }

    /** While the model has the request it sees what the program writes. */
    public static void theModelSeesWhatIsWrittenLater() throws Exception {
        try (Server server = Servers.started("addresses");
                InferenceRequest request = server.model("addresses").request()) {
            ByteBuffer input = ByteBuffer.allocateDirect(64);
            request.input("IN", DataType.UINT8, input, 64).parameter("hold", 60_000);
            CompletableFuture<InferenceResponse> future = request.inferAsync();
            Cases.raises(IllegalStateException.class, () -> request.id("changed"));
            Cases.raises(IllegalStateException.class, request::removeInputs);
            Cases.raises(IllegalStateException.class, request::stream);
            input.put(63, (byte) 5).put(0, (byte) 1);
            try (InferenceResponse response = future.get()) {
                Cases.equal(response.output("OUT").asBytes()[63], (byte) 5);
            }
        }
    }

    /** Requests that were dropped or closed while the server has them hold their inputs. */
    public static void inputsLiveUntilTheServerIsDone() throws Exception {
        try (Server server = Servers.started("addresses")) {
            List<CompletableFuture<InferenceResponse>> futures = new ArrayList<>();
            for (int at = 0; at < 8; at++) {
                InferenceRequest request = server.model("addresses").request().parameter("hold", 20);
                ByteBuffer input = ByteBuffer.allocateDirect(1 << 20);
                for (int index = 0; index < input.capacity(); index++) {
                    input.put(index, (byte) (at + 2));
                }
                futures.add(request.input("IN", DataType.UINT8, input, 1 << 20).inferAsync());
                if (at % 2 == 0) {
                    request.close();
                }
            }
            for (int at = 0; at < 8; at++) {
                System.gc();
                try (InferenceResponse response = futures.get(at).get()) {
                    byte[] bytes = response.output("OUT").asBytes();
                    Cases.equal(bytes[0], (byte) (at + 2));
                    Cases.equal(bytes[bytes.length - 1], (byte) (at + 2));
                }
            }
        }
        System.gc();
    }
}
