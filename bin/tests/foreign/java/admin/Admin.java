import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Stock mqadmin, many commands in one JVM: each line of standard input is one command line of it. What a command prints on standard output
 * stands between a line `### COMMAND` and the next one.
 */
public final class Admin {
    private Admin() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println("### " + line);
            MQAdminStartup.main0(line.trim().split(" +"), null);
            System.out.flush();
        }
        System.out.println("### end");
        System.exit(0);
    }
}
