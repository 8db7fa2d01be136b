/** Counts its own calls: recursion, exceptions that pass through callers, two classes behind one interface, threads. */
public class Count {
    static long fibs, leaves, throwers;

    static int fib(int n) {
        fibs++;
        return n < 2 ? n : fib(n - 1) + fib(n - 2);
    }

    static int leaf(int x) {
        leaves++;
        return x * 31 + 7;
    }

    static int thrower(int x) {
        throwers++;
        if ((x & 3) == 0) {
            throw new IllegalStateException();
        }
        return leaf(x);
    }

    static int catcher(int x) {
        try {
            return thrower(x);
        } catch (IllegalStateException e) {
            return 1;
        }
    }

    interface Step {
        int go(int x);
    }

    static class One implements Step {
        static long calls;

        public int go(int x) {
            calls++;
            return x + 1;
        }
    }

    static class Two implements Step {
        static long calls;

        public int go(int x) {
            calls++;
            return x + 2;
        }
    }

    static int work(int rounds) {
        Step[] steps = {new One(), new Two()};
        int value = 0;
        for (int i = 0; i < rounds; i++) {
            value = leaf(value) + catcher(i);
            value = steps[i & 1].go(value);
        }
        return value;
    }

    /** Without an argument one run; with one a round a line, for ever, each with the same result. */
    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 0) {
            Thread other = new Thread(() -> {
                while (true) {
                    work(5000);
                }
            });
            other.setDaemon(true);
            other.start();
            while (true) {
                System.out.println("ready " + (work(20000) + fib(18)));
            }
        }
        int value = 0;
        for (int round = 0; round < 30; round++) {
            value += work(20000) + fib(20);
        }
        System.out.println("value " + value);
        System.out.println("Count.fib(int) " + fibs);
        System.out.println("Count.leaf(int) " + leaves);
        System.out.println("Count.thrower(int) " + throwers);
        System.out.println("Count$One.go(int) " + One.calls);
        System.out.println("Count$Two.go(int) " + Two.calls);
    }
}
