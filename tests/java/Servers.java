import java.util.concurrent.atomic.AtomicReference;

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

    /** Fails unless all handles are given back. What was dropped is given back once it was collected. */
    static void mustHaveGivenAllBack() throws InterruptedException {
        for (int round = 0; round < 2000; round++) {
            AtomicReference<String> report = new AtomicReference<>("no report");
            // A server that ends reports what is left of all.
            new Server(options().logCallback((level, file, line, micros, message) -> {
                if (message.contains("NEREID_CHECK_HANDLES: at the server's end")) {
                    report.set(message);
                }
            })).close();
            if (report.get().endsWith("all handles were given back")) {
                System.out.println("all handles were given back");
                return;
            }
            if (round == 1999) {
                throw new AssertionError(report.get());
            }
            System.gc();
            Thread.sleep(10);
        }
    }

    static Options options() {
        return new Options().modelRepository(repository).backendDirectory(backends)
                .modelControl(Options.ModelControl.EXPLICIT).exitTimeoutSecs(300)
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
