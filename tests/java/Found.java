import static nereid.tritonserver.tritonserver.TRITONSERVER_ApiVersion;

/** Prints the version of the library that was found. */
public final class Found {
    private Found() {
    }

    public static void main(String[] arguments) {
        int[] version = TRITONSERVER_ApiVersion();
        System.out.println(version[0] + "." + version[1]);
    }
}
