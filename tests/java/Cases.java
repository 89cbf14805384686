import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Objects;

/** Runs the cases of a class, its public static methods without parameters, and prints which of them held. */
final class Cases {
    interface Work {
        void run() throws Exception;
    }

    private Cases() {
    }

    static void run(Class<?> cases) throws Exception {
        for (Method method : cases.getDeclaredMethods()) {
            int modifiers = method.getModifiers();
            if (!Modifier.isPublic(modifiers) || !Modifier.isStatic(modifiers) || method.getParameterCount() > 0) {
                continue;
            }
            try {
                method.invoke(null);
                System.out.println("held " + method.getName());
            } catch (InvocationTargetException error) {
                System.out.println("failed " + method.getName());
                error.getCause().printStackTrace(System.out);
                System.exit(1);
            }
        }
    }

    static void equal(Object found, Object expected) {
        check(Objects.deepEquals(found, expected), "found " + found + " in place of " + expected);
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void contains(String text, String part) {
        check(text != null && text.contains(part), "'" + part + "' is not in: " + text);
    }

    /** The exception of this kind that the work must throw. */
    static <T extends Throwable> T raises(Class<T> kind, Work work) {
        try {
            work.run();
        } catch (Throwable error) {
            if (kind.isInstance(error)) {
                return kind.cast(error);
            }
            throw new AssertionError("another exception than " + kind, error);
        }
        throw new AssertionError("no " + kind);
    }
}
