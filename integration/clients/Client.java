import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;

/**
 * A client of the benchmark of Cutovers that resolves as the JVM does, which keeps addresses for 30 s, whatever their TTL.
 *
 * <p>Usage: client PORT PAUSE NAME...
 *
 * <p>Every PAUSE milliseconds it asks the next NAME: it opens a connection, sends a line and reads a line. When its input ends,
 * it prints the numbers of requests and of those that failed.
 */
public final class Client {
    /** For a connection and for an answer, in milliseconds: a machine that stands still for a while fails nothing. */
    private static final int PATIENCE = 25_000;

    private static volatile boolean ended;

    private Client() {}

    private static void ask(String name, int port) throws IOException {
        try (Socket connection = new Socket()) {
            connection.connect(new InetSocketAddress(name, port), PATIENCE);
            connection.setSoTimeout(PATIENCE);
            OutputStream output = connection.getOutputStream();
            output.write("?\n".getBytes(StandardCharsets.US_ASCII));
            output.flush();
            InputStreamReader input = new InputStreamReader(connection.getInputStream(), StandardCharsets.US_ASCII);
            if (new BufferedReader(input).readLine() == null) {
                throw new IOException("the connection ended");
            }
        }
    }

    private static void waitForTheEnd() {
        try {
            while (System.in.read() >= 0) {}
        } catch (IOException gone) {
            // It has ended, too.
        }
        ended = true;
    }

    public static void main(String[] arguments) throws InterruptedException {
        int port = Integer.parseInt(arguments[0]);
        int pause = Integer.parseInt(arguments[1]);
        int names = arguments.length - 2;
        Thread reader = new Thread(Client::waitForTheEnd);
        reader.setDaemon(true);
        reader.start();
        int requests = 0;
        int failed = 0;
        while (true) {
            Thread.sleep(pause);
            if (ended) {
                break;
            }
            String name = arguments[2 + requests % names];
            requests++;
            try {
                ask(name, port);
            } catch (IOException | RuntimeException wrong) {
                failed++;
                System.err.println(name + ": " + wrong);
            }
        }
        System.out.println(requests + " " + failed);
    }
}
