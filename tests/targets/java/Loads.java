import java.io.InputStream;
import java.lang.instrument.ClassDefinition;
import java.lang.instrument.Instrumentation;

/** Classes that are loaded, called, and unloaded again, and one that is defined again and again while it runs. */
public class Loads {
    public static class Passing {
        public static int step(int x) {
            return x * 5 + 1;
        }
    }

    static class Loader extends ClassLoader {
        Class<?> passing(byte[] code) {
            return defineClass("Loads$Passing", code, 0, code.length);
        }
    }

    public static class Staying {
        static int turn(int x) {
            return x + 3;
        }
    }

    static Instrumentation instrumentation;

    public static void premain(String none, Instrumentation own) {
        instrumentation = own;
    }

    static byte[] code(String name) throws Exception {
        try (InputStream in = Loads.class.getResourceAsStream(name + ".class")) {
            return in.readAllBytes();
        }
    }

    static long calls(byte[] code) throws Throwable {
        java.lang.reflect.Method step = new Loader().passing(code).getMethod("step", int.class);
        java.lang.invoke.MethodHandle handle = java.lang.invoke.MethodHandles.lookup().unreflect(step);
        int value = 1;
        for (int i = 0; i < 300; i++) {
            value = (int) handle.invokeExact(value);
        }
        return value;
    }

    public static void main(String[] none) throws Throwable {
        byte[] passing = code("Loads$Passing"), staying = code("Loads$Staying");
        long sum = 0, turned = 0;
        for (int round = 0; round < 200; round++) {
            sum += calls(passing);
            int value = 0;
            for (int i = 0; i < 1000; i++) {
                value = Staying.turn(value);
                turned++;
            }
            sum += value;
            if (round % 20 == 0) {
                System.gc();
            }
            if (instrumentation != null && round % 5 == 0) {
                instrumentation.redefineClasses(new ClassDefinition(Staying.class, staying));
            }
        }
        System.out.println("sum " + sum);
        System.out.println("Loads$Passing.step(int) " + 200 * 300);
        System.out.println("Loads$Staying.turn(int) " + turned);
    }
}
