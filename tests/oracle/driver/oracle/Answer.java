package oracle;

import java.io.UnsupportedEncodingException;
import java.net.URLEncoder;

/** The named values that answer one request. */
final class Answer {
    static final Answer NOTHING = new Answer();

    private final StringBuilder encoded = new StringBuilder();

    Answer with(String name, Object value) {
        if (value != null) {
            if (encoded.length() > 0) {
                encoded.append('&');
            }
            encoded.append(name).append('=');
            encoded.append(value instanceof Number ? value.toString() : encode(value.toString()));
        }
        return this;
    }

    @Override
    public String toString() {
        return encoded.toString();
    }

    static String encode(String text) {
        try {
            return URLEncoder.encode(text, "UTF-8");
        } catch (UnsupportedEncodingException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
