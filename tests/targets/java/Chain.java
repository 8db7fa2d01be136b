/** Java that calls C that calls Java, in a chain, many times; and a wait for a monitor. */
public class Chain {
    static native int each(int times);

    static int back(int n) {
        return n > 0 ? deep(n) + each(0) : deep(n);
    }

    static int deep(int n) {
        return n * 3 + 1;
    }

    static int ask(int times) {
        return each(times);
    }

    public static void main(String[] arguments) {
        System.load(arguments[0]);
        long sum = 0;
        for (int i = 0; i < 3000; i++) {
            sum += ask(7);
        }
        System.out.println("sum " + sum);
    }
}
