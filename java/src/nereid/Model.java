package nereid;

import static nereid.tritonserver.tritonserver.*;

import nereid.tritonserver.TRITONSERVER_Server;

/** A model of a server; -1 as its version is the one that the model's policy prefers. Documents are JSON texts. */
public final class Model {
    private final Server server;
    private final String name;
    private final long version;

    Model(Server server, String name, long version) {
        this.server = server;
        this.name = name;
        this.version = version;
    }

    public Server server() {
        return server;
    }

    public String name() {
        return name;
    }

    public long version() {
        return version;
    }

    private TRITONSERVER_Server handle() {
        return server.handle();
    }

    public boolean isReady() {
        return TRITONSERVER_ServerModelIsReady(handle(), name, version);
    }

    public String metadata() {
        return Server.text(TRITONSERVER_ServerModelMetadata(handle(), name, version));
    }

    public String config() {
        return Server.text(TRITONSERVER_ServerModelConfig(handle(), name, version, 1));
    }

    public String statistics() {
        return Server.text(TRITONSERVER_ServerModelStatistics(handle(), name, version));
    }

    /** Whether a request may get another number of responses than one. */
    public boolean isDecoupled() {
        int properties = TRITONSERVER_ServerModelTransactionProperties(handle(), name, version);
        return (properties & TRITONSERVER_TXN_DECOUPLED) != 0;
    }

    /** Whether the first dimension of its tensors is that of the batch. */
    public boolean isBatching() {
        int properties = TRITONSERVER_ServerModelBatchProperties(handle(), name, version);
        return (properties & TRITONSERVER_BATCH_FIRST_DIM) != 0;
    }

    /** A request, which may be sent again once it was answered. */
    public InferenceRequest request() {
        return new InferenceRequest(this);
    }
}
