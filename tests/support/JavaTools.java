import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after another: `CLASS ARGUMENT ...`, separated by tabs, one call a line.
 *
 * Each is answered by a line with its exit code and how many bytes it has written to stdout and to stderr, and then by
 * these bytes.
 */
public class JavaTools {
    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true));
        System.setErr(new PrintStream(err, true));
        Exit.setExitProcedure((code, message) -> {
            throw new Exited(code);
        });
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String call = calls.readLine(); call != null; call = calls.readLine()) {
            int code = run(call.split("\t", -1));
            // Taken once: a thread of the tool may still write.
            byte[] written = out.toByteArray();
            byte[] complained = err.toByteArray();
            answers.println(code + " " + written.length + " " + complained.length);
            answers.write(written);
            answers.write(complained);
            answers.flush();
            out.reset();
            err.reset();
        }
        System.exit(0);
    }

    private static int run(String[] call) throws Exception {
        String[] arguments = Arrays.copyOfRange(call, 1, call.length);
        try {
            Class.forName(call[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Exited exited) {
                return exited.code;
            }
            error.getCause().printStackTrace();
            return 1;
        }
    }

    /** In place of the end of the process. */
    private static class Exited extends Error {
        private final int code;

        Exited(int code) {
            this.code = code;
        }
    }
}
