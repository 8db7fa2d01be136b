import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Threads, garbage, null pointers caught by way of SIGSEGV, compiled code: prints the same line in every run. */
public class Work {
    static volatile Object sink;

    static int fib(int n) {
        return n < 2 ? n : fib(n - 1) + fib(n - 2);
    }

    static int task(int number) {
        byte[][] garbage = new byte[100][];
        for (int i = 0; i < garbage.length; i++)
            garbage[i] = new byte[10_000];
        sink = garbage;
        try {
            Object nothing = number % 4 == 3 ? null : garbage;
            nothing.hashCode();
        } catch (NullPointerException e) {
            return fib(18) + 1;
        }
        return fib(18);
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        long sum = 0;
        for (int round = 0; round < Integer.parseInt(arguments[0]); round++) {
            List<Future<Integer>> results = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                int number = i;
                results.add(pool.submit(() -> task(number)));
            }
            for (Future<Integer> result : results)
                sum += result.get();
            if (round % 200 == 0)
                System.gc();
        }
        pool.shutdown();
        System.out.println("sum " + sum);
    }
}
