package nereid;

import static nereid.tritonserver.tritonserver.*;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

import nereid.tritonserver.TRITONSERVER_LogCallbackFn_t;
import nereid.tritonserver.TRITONSERVER_ServerOptions;

/** The options of a server, each of which is a flag of the command line. May be used for several servers. */
public final class Options {
    /** What decides which models are loaded. */
    public enum ModelControl {
        NONE, POLL, EXPLICIT
    }

    /** How the lines of the log begin. */
    public enum LogFormat {
        DEFAULT, ISO8601
    }

    /** Whether instances wait for resources. */
    public enum RateLimit {
        OFF, EXEC_COUNT
    }

    private final List<Consumer<TRITONSERVER_ServerOptions>> settings = new ArrayList<>();

    private Options set(Consumer<TRITONSERVER_ServerOptions> setting) {
        settings.add(setting);
        return this;
    }

    /** The caller closes them. */
    TRITONSERVER_ServerOptions create() {
        TRITONSERVER_ServerOptions options = TRITONSERVER_ServerOptionsNew();
        try {
            settings.forEach(setting -> setting.accept(options));
        } catch (RuntimeException error) {
            options.close();
            throw error;
        }
        return options;
    }

    public Options serverId(String id) {
        return set(options -> TRITONSERVER_ServerOptionsSetServerId(options, id));
    }

    /** May be called again: each call adds a repository. */
    public Options modelRepository(String path) {
        return set(options -> TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, path));
    }

    public Options modelControl(ModelControl mode) {
        return set(options -> TRITONSERVER_ServerOptionsSetModelControlMode(options, mode.ordinal()));
    }

    /** May be called again; only with {@link ModelControl#EXPLICIT}. "*" is all models. */
    public Options startupModel(String name) {
        return set(options -> TRITONSERVER_ServerOptionsSetStartupModel(options, name));
    }

    public Options strictModelConfig(boolean isStrict) {
        return set(options -> TRITONSERVER_ServerOptionsSetStrictModelConfig(options, isStrict));
    }

    public Options modelConfigName(String name) {
        return set(options -> TRITONSERVER_ServerOptionsSetModelConfigName(options, name));
    }

    public Options modelNamespacing(boolean isOn) {
        return set(options -> TRITONSERVER_ServerOptionsSetModelNamespacing(options, isOn));
    }

    public Options rateLimit(RateLimit mode) {
        return set(options -> TRITONSERVER_ServerOptionsSetRateLimiterMode(options, mode.ordinal()));
    }

    /** Device -1 is every device. */
    public Options rateLimitResource(String name, long count, int device) {
        return set(options -> TRITONSERVER_ServerOptionsAddRateLimiterResource(options, name, count, device));
    }

    public Options pinnedMemoryPoolBytes(long bytes) {
        return set(options -> TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(options, bytes));
    }

    public Options cudaMemoryPoolBytes(int device, long bytes) {
        return set(options -> TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(options, device, bytes));
    }

    public Options cudaVirtualAddressBytes(int device, long bytes) {
        return set(options -> TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(options, device, bytes));
    }

    public Options minSupportedComputeCapability(double capability) {
        return set(options -> TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(options, capability));
    }

    public Options enablePeerAccess(boolean isOn) {
        return set(options -> TRITONSERVER_ServerOptionsSetEnablePeerAccess(options, isOn));
    }

    /** The configuration is a JSON text. */
    public Options cache(String name, String config) {
        return set(options -> TRITONSERVER_ServerOptionsSetCacheConfig(options, name, config));
    }

    public Options cacheDirectory(String path) {
        return set(options -> TRITONSERVER_ServerOptionsSetCacheDirectory(options, path));
    }

    public Options exitOnError(boolean exits) {
        return set(options -> TRITONSERVER_ServerOptionsSetExitOnError(options, exits));
    }

    public Options strictReadiness(boolean isStrict) {
        return set(options -> TRITONSERVER_ServerOptionsSetStrictReadiness(options, isStrict));
    }

    public Options exitTimeoutSecs(int seconds) {
        return set(options -> TRITONSERVER_ServerOptionsSetExitTimeout(options, seconds));
    }

    public Options bufferManagerThreads(int count) {
        return set(options -> TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(options, count));
    }

    public Options modelLoadThreads(int count) {
        return set(options -> TRITONSERVER_ServerOptionsSetModelLoadThreadCount(options, count));
    }

    public Options modelLoadRetries(int count) {
        return set(options -> TRITONSERVER_ServerOptionsSetModelLoadRetryCount(options, count));
    }

    /** The fraction of a device's memory that may be in use when a model is loaded; the kind is of the C interface. */
    public Options modelLoadDeviceLimit(int kind, int device, double fraction) {
        return set(options -> TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(options, kind, device, fraction));
    }

    /** A file; empty is stderr. As all options of the log it holds for the process. */
    public Options logFile(String path) {
        return set(options -> TRITONSERVER_ServerOptionsSetLogFile(options, path));
    }

    public Options logInfo(boolean isOn) {
        return set(options -> TRITONSERVER_ServerOptionsSetLogInfo(options, isOn));
    }

    public Options logWarn(boolean isOn) {
        return set(options -> TRITONSERVER_ServerOptionsSetLogWarn(options, isOn));
    }

    public Options logError(boolean isOn) {
        return set(options -> TRITONSERVER_ServerOptionsSetLogError(options, isOn));
    }

    public Options logVerbose(int level) {
        return set(options -> TRITONSERVER_ServerOptionsSetLogVerbose(options, level));
    }

    public Options logFormat(LogFormat format) {
        return set(options -> TRITONSERVER_ServerOptionsSetLogFormat(options, format.ordinal()));
    }

    /** Gets the messages of the log in place of all other output, on any thread. */
    public Options logCallback(TRITONSERVER_LogCallbackFn_t callback) {
        return set(options -> TRITONSERVER_ServerOptionsSetLogCallback(options, callback));
    }

    public Options metrics(boolean isOn) {
        return set(options -> TRITONSERVER_ServerOptionsSetMetrics(options, isOn));
    }

    public Options gpuMetrics(boolean isOn) {
        return set(options -> TRITONSERVER_ServerOptionsSetGpuMetrics(options, isOn));
    }

    public Options cpuMetrics(boolean isOn) {
        return set(options -> TRITONSERVER_ServerOptionsSetCpuMetrics(options, isOn));
    }

    public Options metricsIntervalMillis(long millis) {
        return set(options -> TRITONSERVER_ServerOptionsSetMetricsInterval(options, millis));
    }

    public Options metricsConfig(String name, String setting, String value) {
        return set(options -> TRITONSERVER_ServerOptionsSetMetricsConfig(options, name, setting, value));
    }

    /** Where libraries of backends are searched. */
    public Options backendDirectory(String path) {
        return set(options -> TRITONSERVER_ServerOptionsSetBackendDirectory(options, path));
    }

    /** An empty name sets it for every backend. */
    public Options backendConfig(String backend, String setting, String value) {
        return set(options -> TRITONSERVER_ServerOptionsSetBackendConfig(options, backend, setting, value));
    }

    public Options repositoryAgentDirectory(String path) {
        return set(options -> TRITONSERVER_ServerOptionsSetRepoAgentDirectory(options, path));
    }

    public Options hostPolicy(String policy, String setting, String value) {
        return set(options -> TRITONSERVER_ServerOptionsSetHostPolicy(options, policy, setting, value));
    }
}
