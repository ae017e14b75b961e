import java.util.zip.CRC32;

/** Writes one event a line, as JSON, to standard output: the test that started this program reads and judges them. */
final class Out {
    private Out() {
    }

    /** Pairs of name and value; a value is a String, a number, a boolean or null. */
    static void event(String scenario, String kind, Object... pairs) {
        StringBuilder b = new StringBuilder(256);
        b.append("{\"s\":").append(text(scenario)).append(",\"e\":").append(text(kind));
        for (int i = 0; i < pairs.length; i += 2) {
            Object v = pairs[i + 1];
            b.append(',').append(text((String) pairs[i])).append(':');
            b.append(v == null || v instanceof Number || v instanceof Boolean ? String.valueOf(v) : text(v.toString()));
        }
        b.append('}');
        synchronized (Out.class) {
            System.out.println(b);
            System.out.flush();
        }
    }

    static String crc(byte[] body) {
        CRC32 crc = new CRC32();
        crc.update(body);
        return String.format("%08x", crc.getValue());
    }

    private static String text(String s) {
        StringBuilder b = new StringBuilder(s.length() + 2).append('"');
        for (int i = 0; i < s.length(); i++) {
            char c = s.charAt(i);
            if (c == '"' || c == '\\') {
                b.append('\\').append(c);
            } else if (c < 0x20) {
                b.append(String.format("\\u%04x", (int) c));
            } else {
                b.append(c);
            }
        }
        return b.append('"').toString();
    }
}
