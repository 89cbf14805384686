package nereid.tritonserver;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** A server in this process. It is deleted behind the last request and response that came from it. */
public final class TRITONSERVER_Server extends Handle {
    /** Servers that a JVM that ends has to stop. */
    private static final Set<ServerState> RUNNING = ConcurrentHashMap.newKeySet();

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(TRITONSERVER_Server::stopAll, "nereid-stop"));
    }

    TRITONSERVER_Server(long address) {
        super(new ServerState(address));
        RUNNING.add((ServerState) state);
    }

    /** Stops the server, and deletes it behind its last request and response. A second call does nothing. */
    @Override
    public void close() {
        if (!isClosed()) {
            tritonserver.TRITONSERVER_ServerDelete(this);
        }
    }

    private static void stopAll() {
        for (ServerState server : RUNNING) {
            if (server.retain()) {
                try {
                    Native.ServerStop(server.address);
                } catch (RuntimeException error) {
                    // The process ends, whatever became of its requests.
                } finally {
                    server.release();
                }
            }
        }
    }

    private static final class ServerState extends State {
        ServerState(long address) {
            super(address, Native::ServerDelete, true);
        }

        /** A thread of the server cannot wait for the end of the server. */
        @Override
        void run(Runnable deletion) {
            if (Callbacks.isInside()) {
                Thread thread = new Thread(deletion, "nereid-delete");
                thread.start();
            } else {
                deletion.run();
            }
        }

        @Override
        void deleted() {
            RUNNING.remove(this);
        }
    }
}
