package nereid.tritonserver;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** How arguments and results pass the border to C. */
abstract class Texts {
    Texts() {
    }

    /** UTF-8 with the NUL that C expects. */
    static byte[] text(String text) {
        if (text == null) {
            return null;
        }
        if (text.indexOf('\0') >= 0) {
            throw new IllegalArgumentException("a text for the server contains a NUL");
        }
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        return Arrays.copyOf(bytes, bytes.length + 1);
    }

    static String string(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    static int natural(int number, String name) {
        return (int) natural((long) number, name);
    }

    static long natural(long number, String name) {
        if (number < 0) {
            throw new IllegalArgumentException(name + " is negative: " + number);
        }
        return number;
    }

    /** The addresses for one call; null is no handles. */
    static long[] enterAll(Handle[] handles) {
        if (handles == null) {
            return null;
        }
        long[] addresses = new long[handles.length];
        int entered = 0;
        try {
            for (; entered < handles.length; entered++) {
                addresses[entered] = handles[entered].enter();
            }
        } finally {
            if (entered < handles.length) {
                for (int at = 0; at < entered; at++) {
                    handles[at].exit();
                }
            }
        }
        return addresses;
    }

    static void exitAll(Handle[] handles) {
        if (handles != null) {
            for (Handle handle : handles) {
                handle.exit();
            }
        }
    }
}
