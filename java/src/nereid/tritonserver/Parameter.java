package nereid.tritonserver;

/** A parameter of a response. The value is a String, Long, Boolean or Double. */
public final class Parameter {
    public final String name;
    /** TRITONSERVER_PARAMETER_… */
    public final int type;
    public final Object value;

    Parameter(String name, int type, Object value) {
        this.name = name;
        this.type = type;
        this.value = value;
    }
}
