package nereid.tritonserver;

import java.io.IOException;
import java.io.InputStream;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Finds and loads libtritonserver.so, and the JNI library inside the jar. */
final class Library {
    private static final String NAME = "libtritonserver.so";
    private static final String JNI = "libnereid_jni.so";
    private static boolean isLoaded;

    private Library() {
    }

    static synchronized void load() {
        if (isLoaded) {
            return;
        }
        Path server = find();
        if (server != null) {
            System.load(server.toString());
        }
        try {
            loadJni();
        } catch (UnsatisfiedLinkError error) {
            if (server != null) {
                throw error;
            }
            throw (UnsatisfiedLinkError) new UnsatisfiedLinkError(
                    NAME + " was not found: name it with the system property nereid.library or the variable "
                    + "NEREID_LIBRARY, or put it beside the jar or on the loader's path (" + error.getMessage() + ")")
                    .initCause(error);
        }
        isLoaded = true;
    }

    /** The library of the server; null leaves it to the loader. */
    private static Path find() {
        for (String named : new String[] {System.getProperty("nereid.library"), System.getenv("NEREID_LIBRARY")}) {
            if (named != null && !named.isEmpty()) {
                Path path = Path.of(named).toAbsolutePath();
                Path file = Files.isDirectory(path) ? path.resolve(NAME) : path;
                if (!Files.isRegularFile(file)) {
                    throw new UnsatisfiedLinkError(
                            "there is no " + file + ", which nereid.library or NEREID_LIBRARY names");
                }
                return file;
            }
        }
        for (Path folder : besideTheJar()) {
            if (Files.isRegularFile(folder.resolve(NAME))) {
                return folder.resolve(NAME);
            }
        }
        return null;
    }

    private static List<Path> besideTheJar() {
        List<Path> folders = new ArrayList<>();
        try {
            var source = Library.class.getProtectionDomain().getCodeSource();
            Path jar = source == null ? null : Path.of(source.getLocation().toURI());
            if (jar != null && jar.getParent() != null) {
                folders.add(jar.getParent().toAbsolutePath());
            }
        } catch (URISyntaxException | IllegalArgumentException | java.nio.file.FileSystemNotFoundException error) {
            // The classes come from no file.
        }
        return folders;
    }

    /** From a private folder, which is removed as soon as the loader has mapped the file. */
    private static void loadJni() {
        String resource = "/nereid/native/" + System.getProperty("os.arch") + "/" + JNI;
        Path folder = null;
        try (InputStream content = Library.class.getResourceAsStream(resource)) {
            if (content == null) {
                throw new UnsatisfiedLinkError("the jar has no library for this machine: " + resource);
            }
            folder = Files.createTempDirectory("nereid-");
            Path file = folder.resolve(JNI);
            Files.copy(content, file);
            System.load(file.toString());
        } catch (IOException error) {
            throw (UnsatisfiedLinkError) new UnsatisfiedLinkError(
                    "the JNI library cannot be written to a temporary folder; name another with java.io.tmpdir: "
                    + error).initCause(error);
        } finally {
            remove(folder);
        }
    }

    private static void remove(Path folder) {
        if (folder != null) {
            try {
                Files.deleteIfExists(folder.resolve(JNI));
                Files.deleteIfExists(folder);
            } catch (IOException error) {
                // A file in a temporary folder stays behind; the library works all the same.
            }
        }
    }
}
