import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;

import nereid.InferenceRequest;
import nereid.InferenceResponse;
import nereid.Model;
import nereid.Options;
import nereid.Server;
import nereid.TritonException;

/** Models that come and go, and what a server says of itself. The third argument is a second repository. */
public final class Management {
    private static String other;

    public static void main(String[] arguments) throws Exception {
        Servers.arguments(arguments);
        other = arguments[2];
        Cases.run(Management.class);
        Servers.mustHaveGivenAllBack();
    }

    public static void modelsAreLoadedAndUnloaded() {
        try (Server server = Servers.started()) {
            Model echo = server.model("echo");
            Cases.equal(server.isLive(), true);
            Cases.equal(server.isReady(), true);
            Cases.equal(server.index(true), "[]");
            Cases.contains(server.index(false), "\"echo\"");
            server.load("echo");
            Cases.equal(echo.isReady(), true);
            Cases.contains(server.index(true), "\"READY\"");
            server.unload("echo");
            Cases.equal(echo.isReady(), false);
            server.load("echo");
            server.unloadWithDependents("echo");
            Cases.raises(TritonException.class, echo::request);
            Cases.raises(TritonException.class, () -> server.load("none"));
            Cases.raises(TritonException.class, server::pollModelRepository);
        }
    }

    public static void modelsComeWithTheirConfiguration() {
        try (Server server = Servers.started()) {
            String config = "{\"backend\": \"identity\", \"max_batch_size\": 4,"
                    + "\"input\": [{\"name\": \"INPUT0\", \"data_type\": \"TYPE_INT8\", \"dims\": [1]}],"
                    + "\"output\": [{\"name\": \"OUTPUT0\", \"data_type\": \"TYPE_INT8\", \"dims\": [1]}]}";
            server.load("made", Map.of("config", config, "file:1/none", new byte[] {1}));
            Model made = server.model("made");
            Cases.equal(made.isBatching(), true);
            Cases.equal(made.isDecoupled(), false);
            Cases.contains(made.config(), "TYPE_INT8");
            try (InferenceRequest request = made.request()) {
                request.input("INPUT0", nereid.DataType.INT8, new byte[] {1, 2}, 2, 1);
                try (InferenceResponse response = request.infer()) {
                    Cases.equal(response.output("OUTPUT0").asBytes(), new byte[] {1, 2});
                }
            }
        }
    }

    public static void repositoriesComeAndGo() {
        try (Server server = Servers.started()) {
            server.registerModelRepository(other, Map.of("folder", "named"));
            server.load("named");
            Cases.equal(server.model("named").isReady(), true);
            server.unload("named");
            server.unregisterModelRepository(other);
            Cases.raises(TritonException.class, () -> server.load("named"));
        }
    }

    public static void aServerDescribesItself() {
        try (Server server = Servers.started("echo");
                InferenceRequest request = server.model("echo").request()) {
            Model echo = server.model("echo", 1);
            request.input("INPUT0", new float[] {1}, 1, 1).infer().close();
            Cases.contains(server.metadata(), "\"extensions\"");
            Cases.contains(echo.metadata(), "\"INPUT0\"");
            Cases.contains(echo.config(), "\"identity\"");
            Cases.contains(echo.statistics(), "\"inference_count\":1");
            Cases.contains(server.statistics(), "\"inference_count\":1");
            Cases.contains(server.metrics(), "nv_inference_request_success{model=\"echo\",version=\"1\"} 1");
            Cases.raises(TritonException.class, () -> server.model("echo", 9).metadata());
        }
    }

    public static void theLogComesToAFunction() {
        Queue<String> lines = new ConcurrentLinkedQueue<>();
        Options options = Servers.options().startupModel("echo").logInfo(true)
                .logCallback((level, file, line, micros, message) -> lines.add(level + " " + message));
        new Server(options).close();
        Cases.check(lines.stream().anyMatch(line -> line.startsWith("0 ") && line.contains("echo")), lines.toString());
        new Server(Servers.options().logCallback(null)).close();
        int count = lines.size();
        new Server(Servers.options()).close();
        Cases.equal(lines.size(), count);
    }

    public static void wrongOptionsAreRefused() {
        Cases.raises(IllegalArgumentException.class, () -> new Server(Servers.options().exitTimeoutSecs(-1)));
        Cases.raises(IllegalArgumentException.class, () -> new Server(Servers.options().serverId("a\0b")));
        Cases.raises(TritonException.class, () -> new Server(Servers.options().serverId(null)));
        Cases.raises(TritonException.class, () -> new Server(new Options().modelRepository("/nonexistent/models")));
    }
}
