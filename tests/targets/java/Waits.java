/** Two threads that want one monitor: for how long one waits for it, by its own clock. */
public class Waits {
    static final Object lock = new Object();

    static void holds(int milliseconds) throws InterruptedException {
        synchronized (lock) {
            Thread.sleep(milliseconds);
        }
    }

    static void wants() {
        synchronized (lock) {
        }
    }

    public static void main(String[] none) throws Exception {
        long waited = 0;
        for (int round = 0; round < 5; round++) {
            Thread holder = new Thread(() -> {
                try {
                    holds(100);
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            });
            holder.start();
            while (holder.getState() != Thread.State.TIMED_WAITING) {
                Thread.onSpinWait();
            }
            long start = System.nanoTime();
            wants();
            waited += System.nanoTime() - start;
            holder.join();
        }
        System.out.println("waited " + waited);
    }
}
