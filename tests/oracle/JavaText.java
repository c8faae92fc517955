import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

/**
 * Reads byte sequences (i32 length, bytes; ends at end of input) and answers for each: its hash as a Java string and
 * its UTF-16 units (i32 hash, i32 count, units).
 */
public final class JavaText {
    public static void main(String[] arguments) throws IOException {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 16));
        int sequences = in.readInt();
        for (int i = 0; i < sequences; i++) {
            byte[] raw = new byte[in.readInt()];
            in.readFully(raw);
            String text = new String(raw, StandardCharsets.UTF_8);
            out.writeInt(text.hashCode());
            out.writeInt(text.length());
            for (int unit = 0; unit < text.length(); unit++) {
                out.writeChar(text.charAt(unit));
            }
        }
        out.flush();
    }
}
