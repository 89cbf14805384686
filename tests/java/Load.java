import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

import nereid.InferenceRequest;
import nereid.InferenceResponse;
import nereid.Server;

/** Many requests from several threads. Arguments behind the usual two: how many requests, and threads. */
public final class Load {
    private static int requests;
    private static int threads;

    public static void main(String[] arguments) throws Exception {
        Servers.arguments(arguments);
        requests = Integer.parseInt(arguments[2]);
        threads = Integer.parseInt(arguments[3]);
        Cases.run(Load.class);
        Servers.mustHaveGivenAllBack();
    }

    public static void manyThreadsSendRequests() throws Exception {
        AtomicInteger left = new AtomicInteger(requests);
        AtomicReference<Throwable> failed = new AtomicReference<>();
        try (Server server = Servers.started("echo")) {
            List<Thread> all = new ArrayList<>();
            for (int at = 0; at < threads; at++) {
                Thread thread = new Thread(() -> {
                    try {
                        for (int number = left.getAndDecrement(); number > 0; number = left.getAndDecrement()) {
                            one(server, number);
                        }
                    } catch (Throwable error) {
                        failed.set(error);
                    }
                });
                thread.start();
                all.add(thread);
            }
            for (Thread thread : all) {
                thread.join();
            }
            Cases.check(failed.get() == null, String.valueOf(failed.get()));
            Cases.contains(server.statistics(), "\"inference_count\":" + requests);
        }
        long heap = ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getMax();
        Cases.check(heap <= 64 << 20, "a heap of " + heap + " bytes");
    }

    /** Different sizes, up to 256 KiB, which many times fill the memory that the JVM gives. */
    private static void one(Server server, int number) {
        float[] values = new float[1 + number % (number % 100 == 0 ? 65536 : 512)];
        values[values.length - 1] = number;
        String text = "request " + number;
        try (InferenceRequest request = server.model("echo").request()) {
            request.input("INPUT0", values, 1, values.length).input("INPUT2", new String[] {text}, 1);
            try (InferenceResponse response = request.infer()) {
                float[] found = response.output("OUTPUT0").asFloats();
                Cases.equal(found[found.length - 1], (float) number);
                Cases.equal(response.output("OUTPUT2").asStrings(), new String[] {text});
                Cases.equal(response.output("OUTPUT0").buffer().getFloat(4 * (values.length - 1)), (float) number);
            }
        }
    }
}
