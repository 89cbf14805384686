import nereid.Options;
import nereid.Server;

/** The servers of the cases: their repository and backends are the first two arguments of each program. */
final class Servers {
    static String repository;
    static String backends;

    private Servers() {
    }

    static void arguments(String[] arguments) {
        repository = arguments[0];
        backends = arguments[1];
    }

    static Options options() {
        return new Options().modelRepository(repository).backendDirectory(backends)
                .modelControl(Options.ModelControl.EXPLICIT).exitTimeoutSecs(20)
                .logInfo(true).logWarn(true).logError(true);
    }

    static Server started(String... models) {
        Options options = options();
        for (String model : models) {
            options.startupModel(model);
        }
        return new Server(options);
    }
}
