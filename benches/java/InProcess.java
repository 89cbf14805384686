import static nereid.tritonserver.tritonserver.*;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.concurrent.Semaphore;

import nereid.DataType;
import nereid.InferenceRequest;
import nereid.InferenceResponse;
import nereid.Model;
import nereid.Options;
import nereid.Server;
import nereid.tritonserver.Memory;
import nereid.tritonserver.TRITONSERVER_InferenceRequest;
import nereid.tritonserver.TRITONSERVER_InferenceResponse;
import nereid.tritonserver.TRITONSERVER_ResponseAllocator;
import nereid.tritonserver.TRITONSERVER_Server;
import nereid.tritonserver.TRITONSERVER_ServerOptions;

/** One request at a time to `echo`: prints the microseconds of each. Arguments: repository, requests. */
public final class InProcess {
    private static final ByteBuffer INPUT = ByteBuffer.allocateDirect(64).order(ByteOrder.nativeOrder());
    private static float sum;

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[1]);
        functions(arguments[0], count);
        classes(arguments[0], count);
        System.exit(sum > 1e9 ? 1 : 0);
    }

    private interface Request {
        void run() throws Exception;
    }

    private static void measure(String way, int count, Request request) throws Exception {
        double[] micros = new double[count];
        for (int at = 0; at < 20_000 + count; at++) {
            long from = System.nanoTime();
            request.run();
            if (at >= 20_000) {
                micros[at - 20_000] = (System.nanoTime() - from) / 1e3;
            }
        }
        StringBuilder text = new StringBuilder();
        for (double value : micros) {
            text.append(way).append(' ').append(value).append('\n');
        }
        System.out.print(text);
    }

    private static void classes(String repository, int count) throws Exception {
        try (Server server = new Server(new Options().modelRepository(repository))) {
            Model model = server.model("echo");
            measure("Java:classes", count, () -> {
                try (InferenceRequest request = model.request().input("INPUT0", DataType.FP32, INPUT, 16);
                        InferenceResponse response = request.infer()) {
                    sum += response.output("OUTPUT0").buffer().getFloat(60);
                }
            });
        }
    }

    private static void functions(String repository, int count) throws Exception {
        TRITONSERVER_ServerOptions options = TRITONSERVER_ServerOptionsNew();
        TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repository);
        TRITONSERVER_Server server = TRITONSERVER_ServerNew(options);
        TRITONSERVER_ServerOptionsDelete(options);
        Memory output = Memory.allocate(64);
        TRITONSERVER_ResponseAllocator allocator =
                TRITONSERVER_ResponseAllocatorNew((name, size, kind, id) -> output, memory -> { }, null);
        Semaphore done = new Semaphore(0);
        TRITONSERVER_InferenceResponse[] response = new TRITONSERVER_InferenceResponse[1];
        long[] shape = {16};
        measure("Java:functions", count, () -> {
            TRITONSERVER_InferenceRequest request = TRITONSERVER_InferenceRequestNew(server, "echo", -1);
            TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape);
            TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", INPUT, TRITONSERVER_MEMORY_CPU, 0);
            TRITONSERVER_InferenceRequestSetReleaseCallback(request, (same, flags) -> done.release());
            TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, (received, flags) -> {
                response[0] = received;
                done.release();
            });
            TRITONSERVER_ServerInferAsync(server, request, null);
            done.acquire(2);
            sum += TRITONSERVER_InferenceResponseOutput(response[0], 0).base().getFloat(60);
            TRITONSERVER_InferenceResponseDelete(response[0]);
            TRITONSERVER_InferenceRequestDelete(request);
        });
        TRITONSERVER_ResponseAllocatorDelete(allocator);
        TRITONSERVER_ServerDelete(server);
    }
}
