package nereid;

import static nereid.tritonserver.tritonserver.*;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import nereid.tritonserver.Parameter;
import nereid.tritonserver.ResponseModel;
import nereid.tritonserver.TRITONSERVER_InferenceResponse;

/** A response. Close it when its outputs are read; one that is dropped is closed once it was collected. */
public final class InferenceResponse implements AutoCloseable {
    private final TRITONSERVER_InferenceResponse handle;
    private List<Tensor> outputs;
    private boolean isClosed;

    InferenceResponse(TRITONSERVER_InferenceResponse handle) {
        this.handle = handle;
    }

    /** Null for a response that is no error. */
    public TritonException error() {
        return TRITONSERVER_InferenceResponseError(handle);
    }

    public String modelName() {
        return model().model_name;
    }

    public long modelVersion() {
        return model().model_version;
    }

    private ResponseModel model() {
        return TRITONSERVER_InferenceResponseModel(handle);
    }

    /** The id of the request. */
    public String id() {
        return TRITONSERVER_InferenceResponseId(handle);
    }

    /** Values are a String, Long, Boolean or Double. */
    public Map<String, Object> parameters() {
        Map<String, Object> parameters = new LinkedHashMap<>();
        int count = TRITONSERVER_InferenceResponseParameterCount(handle);
        for (int at = 0; at < count; at++) {
            Parameter parameter = TRITONSERVER_InferenceResponseParameter(handle, at);
            parameters.put(parameter.name, parameter.value);
        }
        return parameters;
    }

    /** The outputs, in the model's order. Throws the error of a response that is one. */
    public synchronized List<Tensor> outputs() {
        mustBeOpen();
        if (outputs == null) {
            TritonException error = error();
            if (error != null) {
                throw error;
            }
            int count = TRITONSERVER_InferenceResponseOutputCount(handle);
            List<Tensor> all = new ArrayList<>(count);
            for (int at = 0; at < count; at++) {
                all.add(new Tensor(this, TRITONSERVER_InferenceResponseOutput(handle, at)));
            }
            outputs = Collections.unmodifiableList(all);
        }
        return outputs;
    }

    public Tensor output(String name) {
        return outputs().stream().filter(output -> output.name().equals(name)).findFirst().orElseThrow(
                () -> new IllegalArgumentException("the response has no output '" + name + "'"));
    }

    String label(Tensor output, int classIndex) {
        return TRITONSERVER_InferenceResponseOutputClassificationLabel(handle, outputs().indexOf(output), classIndex);
    }

    void mustBeOpen() {
        if (isClosed) {
            throw new IllegalStateException("the response was closed");
        }
    }

    /** Gives the response and its memory back; nothing of it may be read afterwards. A second call does nothing. */
    @Override
    public void close() {
        synchronized (this) {
            if (isClosed) {
                return;
            }
            isClosed = true;
            if (outputs != null) {
                outputs.forEach(Tensor::close);
            }
        }
        handle.close();
    }
}
