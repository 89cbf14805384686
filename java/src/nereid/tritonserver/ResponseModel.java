package nereid.tritonserver;

/** The model that a response came from. */
public final class ResponseModel {
    public final String model_name;
    public final long model_version;

    ResponseModel(String model_name, long model_version) {
        this.model_name = model_name;
        this.model_version = model_version;
    }
}
