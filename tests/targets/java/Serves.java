import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executors;

/** A web server whose every answer can be checked: the path, and a sum over its characters. */
public class Serves {
    static int weigh(char character) {
        return character;
    }

    static String answer(String path) {
        int sum = 0;
        for (int i = 0; i < path.length(); i++) {
            sum += weigh(path.charAt(i));
        }
        return path + " " + sum;
    }

    public static void main(String[] none) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", exchange -> {
            byte[] body = answer(exchange.getRequestURI().getPath()).getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, body.length);
            try (var out = exchange.getResponseBody()) {
                out.write(body);
            }
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
        System.out.println(server.getAddress().getPort());
    }
}
