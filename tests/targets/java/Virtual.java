import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Virtual threads that wait in the middle of calls and go on elsewhere; each call is counted by the program, too. It is
 * compiled by a JDK that does not know them.
 */
public class Virtual {
    static final AtomicLong outers = new AtomicLong(), inners = new AtomicLong(), leaves = new AtomicLong();

    static int leaf(int x) {
        leaves.incrementAndGet();
        return x * 31 + 7;
    }

    static int inner(int x) throws InterruptedException {
        inners.incrementAndGet();
        int value = leaf(x);
        if (x % 3 == 0) {
            Thread.sleep(1);
        } else {
            Thread.yield();
        }
        return leaf(value);
    }

    static int outer(int depth, int x) throws InterruptedException {
        outers.incrementAndGet();
        return depth == 0 ? inner(x) : outer(depth - 1, inner(x));
    }

    public static void main(String[] none) throws Exception {
        Method start = Thread.class.getMethod("startVirtualThread", Runnable.class);
        AtomicLong sum = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 500; i++) {
            int first = i;
            threads.add((Thread) start.invoke(null, (Runnable) () -> {
                try {
                    for (int round = 0; round < 5; round++) {
                        sum.addAndGet(outer(3, first + round));
                    }
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            }));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("sum " + sum);
        System.out.println("Virtual.outer(int, int) " + outers);
        System.out.println("Virtual.inner(int) " + inners);
        System.out.println("Virtual.leaf(int) " + leaves);
    }
}
