import java.util.concurrent.CountDownLatch;

import nereid.InferenceRequest;
import nereid.Server;

/** A program that ends with a running server. The third argument is how it ends; without one it leaves none running. */
public final class Ending {
    public static void main(String[] arguments) throws Exception {
        Servers.arguments(arguments);
        if (arguments.length < 3) {
            Cases.run(Ending.class);
            Servers.mustHaveGivenAllBack();
            return;
        }
        CountDownLatch first = new CountDownLatch(1);
        Server server = Servers.started("slow");
        for (int at = 0; at < 4; at++) {
            InferenceRequest request = server.model("slow").request().input("INPUT0", new int[] {at}, 1);
            request.inferAsync((response, isFinal) -> {
                response.close();
                first.countDown();
            });
        }
        first.await();
        System.out.println("ends with a running server");
        System.out.flush();
        if (arguments[2].equals("exit")) {
            System.exit(3);
        }
    }

    /** Servers one after another and side by side, on which nothing is left. */
    public static void serversComeAndGo() {
        for (int at = 0; at < 3; at++) {
            try (Server one = Servers.started("echo"); Server two = Servers.started("echo")) {
                one.model("echo").request().input("INPUT0", new float[] {1}, 1, 1).infer().close();
                two.model("echo").request().input("INPUT0", new float[] {1}, 1, 1).infer().close();
            }
        }
    }
}
