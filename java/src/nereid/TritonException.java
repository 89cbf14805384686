package nereid;

/** An error of the server, with its code. There is a class for each code. */
public class TritonException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final int code;

    TritonException(int code, String message) {
        super(message);
        this.code = code;
    }

    /** TRITONSERVER_ERROR_…, a number of the C interface. */
    public final int code() {
        return code;
    }

    /** The name of the code, as the server writes it: "Not found". */
    public final String codeName() {
        switch (code) {
            case 1: return "Internal";
            case 2: return "Not found";
            case 3: return "Invalid argument";
            case 4: return "Unavailable";
            case 5: return "Unsupported";
            case 6: return "Already exists";
            case 7: return "Cancelled";
            default: return "Unknown";
        }
    }

    /** The exception of a code. */
    public static TritonException of(int code, String message) {
        switch (code) {
            case 1: return new Internal(message);
            case 2: return new NotFound(message);
            case 3: return new InvalidArgument(message);
            case 4: return new Unavailable(message);
            case 5: return new Unsupported(message);
            case 6: return new AlreadyExists(message);
            case 7: return new Cancelled(message);
            default: return new Unknown(message);
        }
    }

    /** TRITONSERVER_ERROR_UNKNOWN. */
    public static final class Unknown extends TritonException {
        private static final long serialVersionUID = 1;

        Unknown(String message) {
            super(0, message);
        }
    }

    /** TRITONSERVER_ERROR_INTERNAL. */
    public static final class Internal extends TritonException {
        private static final long serialVersionUID = 1;

        Internal(String message) {
            super(1, message);
        }
    }

    /** TRITONSERVER_ERROR_NOT_FOUND. */
    public static final class NotFound extends TritonException {
        private static final long serialVersionUID = 1;

        NotFound(String message) {
            super(2, message);
        }
    }

    /** TRITONSERVER_ERROR_INVALID_ARG. */
    public static final class InvalidArgument extends TritonException {
        private static final long serialVersionUID = 1;

        InvalidArgument(String message) {
            super(3, message);
        }
    }

    /** TRITONSERVER_ERROR_UNAVAILABLE. */
    public static final class Unavailable extends TritonException {
        private static final long serialVersionUID = 1;

        Unavailable(String message) {
            super(4, message);
        }
    }

    /** TRITONSERVER_ERROR_UNSUPPORTED. */
    public static final class Unsupported extends TritonException {
        private static final long serialVersionUID = 1;

        Unsupported(String message) {
            super(5, message);
        }
    }

    /** TRITONSERVER_ERROR_ALREADY_EXISTS. */
    public static final class AlreadyExists extends TritonException {
        private static final long serialVersionUID = 1;

        AlreadyExists(String message) {
            super(6, message);
        }
    }

    /** TRITONSERVER_ERROR_CANCELLED. */
    public static final class Cancelled extends TritonException {
        private static final long serialVersionUID = 1;

        Cancelled(String message) {
            super(7, message);
        }
    }
}
