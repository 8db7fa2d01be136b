import java.io.BufferedReader;
import java.io.InputStreamReader;

/** Handles a request a line; every third one takes long. */
public class Handles {
    static int handle(int n) throws InterruptedException {
        return step(n) + (n % 3 == 0 ? slow() : 0);
    }

    static int step(int n) {
        return n + 1;
    }

    static int slow() throws InterruptedException {
        Thread.sleep(20);
        return 0;
    }

    public static void main(String[] none) throws Exception {
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            System.out.println(handle(Integer.parseInt(line)));
        }
    }
}
