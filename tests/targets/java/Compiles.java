import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Scanner;
import java.util.zip.CRC32;
import javax.tools.FileObject;
import javax.tools.ForwardingJavaFileManager;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileManager;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.StandardJavaFileManager;
import javax.tools.ToolProvider;

/** Compiles the same few hundred files in memory once for each line that it reads, and says what came of it. */
public class Compiles {
    static class Source extends SimpleJavaFileObject {
        final String text;

        Source(String name, String text) {
            super(URI.create("string:///" + name + Kind.SOURCE.extension), Kind.SOURCE);
            this.text = text;
        }

        @Override
        public CharSequence getCharContent(boolean lenient) {
            return text;
        }
    }

    static class Class extends SimpleJavaFileObject {
        final java.io.ByteArrayOutputStream bytes = new java.io.ByteArrayOutputStream();

        Class(String name) {
            super(URI.create("bytes:///" + name + Kind.CLASS.extension), Kind.CLASS);
        }

        @Override
        public java.io.OutputStream openOutputStream() {
            return bytes;
        }
    }

    static class Memory extends ForwardingJavaFileManager<StandardJavaFileManager> {
        final List<Class> classes = new ArrayList<>();

        Memory(StandardJavaFileManager files) {
            super(files);
        }

        @Override
        public JavaFileObject getJavaFileForOutput(
                JavaFileManager.Location location, String name, JavaFileObject.Kind kind, FileObject sibling) {
            Class made = new Class(name.replace('.', '/'));
            classes.add(made);
            return made;
        }
    }

    static List<Source> sources(int count) {
        List<Source> all = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            String next = "Made" + (i + 1) % count;
            all.add(new Source("Made" + i, "import java.util.*;\npublic class Made" + i + " {\n"
                + "  interface Step { int go(int x); }\n"
                + "  enum Kind { ONE, TWO, THREE }\n"
                + "  static int loop(int n) { int s = 0; for (int i = 0; i < n; i++) s += i * " + i + "; return s; }\n"
                + "  int text(String s) { switch (s) { case \"a\": return 1; case \"b\": return 2; default: return s.length(); } }\n"
                + "  List<Integer> sorted(List<Integer> in) { var out = new ArrayList<>(in); out.sort((a, b) -> b - a); return out; }\n"
                + "  int caught(int x) { try { return loop(x) / x; } catch (ArithmeticException e) { return -1; } finally { x++; } }\n"
                + "  " + next + " next() { return new " + next + "(); }\n}\n"));
        }
        return all;
    }

    static long compile(JavaCompiler compiler, int count) {
        Memory memory = new Memory(compiler.getStandardFileManager(null, null, null));
        List<String> options = Arrays.asList("-proc:none", "-XDuseUnsharedTable=true");
        if (!compiler.getTask(null, memory, null, options, null, sources(count)).call()) {
            throw new IllegalStateException("does not compile");
        }
        memory.classes.sort((a, b) -> a.getName().compareTo(b.getName()));
        CRC32 sum = new CRC32();
        for (Class one : memory.classes) {
            sum.update(one.bytes.toByteArray());
        }
        return sum.getValue() + memory.classes.size();
    }

    public static void main(String[] arguments) {
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        Scanner lines = new Scanner(System.in);
        System.out.println("ready");
        while (lines.hasNextLine()) {
            System.out.println("made " + compile(compiler, Integer.parseInt(lines.nextLine())));
        }
    }
}
