package nereid;

import static nereid.tritonserver.tritonserver.*;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import nereid.tritonserver.Handle;
import nereid.tritonserver.TRITONSERVER_Message;
import nereid.tritonserver.TRITONSERVER_Metrics;
import nereid.tritonserver.TRITONSERVER_Parameter;
import nereid.tritonserver.TRITONSERVER_ResponseAllocator;
import nereid.tritonserver.TRITONSERVER_Server;
import nereid.tritonserver.TRITONSERVER_ServerOptions;

/** A server in this process, without ports. All methods may be called from any thread. Documents are JSON texts. */
public final class Server implements AutoCloseable {
    private final TRITONSERVER_Server handle;
    /** Of outputs that no request has memory of its own for. */
    private final TRITONSERVER_ResponseAllocator allocator;

    /** Starts it; returns when the start-up models are loaded. */
    public Server(Options options) {
        try (TRITONSERVER_ServerOptions own = options.create()) {
            handle = TRITONSERVER_ServerNew(own);
        }
        allocator = TRITONSERVER_ResponseAllocatorNew(
                (name, byteSize, kind, id) -> MemoryPool.take(byteSize),
                memory -> MemoryPool.giveBack((MemoryPool.Pooled) memory), null);
    }

    TRITONSERVER_Server handle() {
        return handle;
    }

    TRITONSERVER_ResponseAllocator allocator() {
        return allocator;
    }

    static String text(TRITONSERVER_Message message) {
        try (message) {
            return TRITONSERVER_MessageSerializeToJson(message);
        }
    }

    public boolean isLive() {
        return TRITONSERVER_ServerIsLive(handle);
    }

    public boolean isReady() {
        return TRITONSERVER_ServerIsReady(handle);
    }

    public String metadata() {
        return text(TRITONSERVER_ServerMetadata(handle));
    }

    /** Of all models. */
    public String statistics() {
        return text(TRITONSERVER_ServerModelStatistics(handle, "", -1));
    }

    /** The models of the repositories with their states; with true only those that are ready. */
    public String index(boolean onlyReady) {
        return text(TRITONSERVER_ServerModelIndex(handle, onlyReady ? TRITONSERVER_INDEX_FLAG_READY : 0));
    }

    /** In Prometheus' format. */
    public String metrics() {
        try (TRITONSERVER_Metrics metrics = TRITONSERVER_ServerMetrics(handle)) {
            return TRITONSERVER_MetricsFormatted(metrics, TRITONSERVER_METRIC_PROMETHEUS);
        }
    }

    public Model model(String name) {
        return model(name, -1);
    }

    public Model model(String name, long version) {
        return new Model(this, name, version);
    }

    /** Returns when the model is loaded, or throws why it cannot be. */
    public void load(String name) {
        TRITONSERVER_ServerLoadModel(handle, name);
    }

    /** "config" is a JSON text; "file:…" are the bytes of a file of the model, as a byte array or a direct buffer. */
    public void load(String name, Map<String, ?> parameters) {
        List<TRITONSERVER_Parameter> given = new ArrayList<>();
        try {
            parameters.forEach((key, value) -> given.add(parameter(key, value)));
            TRITONSERVER_ServerLoadModelWithParameters(handle, name, given.toArray(new TRITONSERVER_Parameter[0]));
        } finally {
            given.forEach(Handle::close);
        }
    }

    private static TRITONSERVER_Parameter parameter(String key, Object value) {
        if (value instanceof byte[]) {
            byte[] bytes = (byte[]) value;
            return TRITONSERVER_ParameterBytesNew(key, ByteBuffer.allocateDirect(bytes.length).put(bytes).flip());
        }
        if (value instanceof ByteBuffer) {
            return TRITONSERVER_ParameterBytesNew(key, (ByteBuffer) value);
        }
        if (value instanceof Boolean) {
            return TRITONSERVER_ParameterNew(key, (boolean) (Boolean) value);
        }
        if (value instanceof Double || value instanceof Float) {
            return TRITONSERVER_ParameterNew(key, ((Number) value).doubleValue());
        }
        if (value instanceof Number) {
            return TRITONSERVER_ParameterNew(key, ((Number) value).longValue());
        }
        return TRITONSERVER_ParameterNew(key, value == null ? null : value.toString());
    }

    /** The model takes no new requests when this returns; it is gone when the last one was answered. */
    public void unload(String name) {
        TRITONSERVER_ServerUnloadModel(handle, name);
    }

    public void unloadWithDependents(String name) {
        TRITONSERVER_ServerUnloadModelAndDependents(handle, name);
    }

    /** Each mapping is the name of a folder, and the name of the model that is served from it. */
    public void registerModelRepository(String path, Map<String, String> names) {
        List<TRITONSERVER_Parameter> mappings = new ArrayList<>();
        try {
            names.forEach((folder, model) -> mappings.add(TRITONSERVER_ParameterNew(folder, model)));
            TRITONSERVER_ServerRegisterModelRepository(
                    handle, path, mappings.toArray(new TRITONSERVER_Parameter[0]));
        } finally {
            mappings.forEach(Handle::close);
        }
    }

    public void unregisterModelRepository(String path) {
        TRITONSERVER_ServerUnregisterModelRepository(handle, path);
    }

    /** Only with {@link Options.ModelControl#POLL}. */
    public void pollModelRepository() {
        TRITONSERVER_ServerPollModelRepository(handle);
    }

    /** Refuses new requests, waits for those it has, up to the exit timeout, and unloads. Not from a callback. */
    public void stop() {
        TRITONSERVER_ServerStop(handle);
    }

    /** Stops the server. Responses may be read, and are to be closed, behind it. Not from a callback. */
    @Override
    public void close() {
        if (handle.isClosed()) {
            return;
        }
        TritonException failure = null;
        try {
            TRITONSERVER_ServerStop(handle);
        } catch (TritonException error) {
            failure = error;
        }
        allocator.close();
        handle.close();
        if (failure != null) {
            throw failure;
        }
    }
}
