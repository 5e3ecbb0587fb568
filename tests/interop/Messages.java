import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.lang.reflect.ParameterizedType;
import java.nio.ByteBuffer;
import java.util.Collection;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * What Apache Kafka's own classes make of the bodies of messages: `API KIND VERSION HEX`, one message a line, where API
 * is a key and KIND is `Request` or `Response`.
 *
 * Each line is answered by one: the bytes as Kafka writes them, a space, and the fields as JSON with Kafka's names; or
 * `error` and the reason. The line `new API KIND VERSION` is answered by a message in which nothing was set, with one
 * such element in each array of structs; `versions` by `KEY LOWEST HIGHEST` for each API, and `errors` by `CODE NAME` for
 * each error, in one line.
 */
public class Messages {
    private static final Map<Class<?>, Method> CONVERTERS = new LinkedHashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "US-ASCII"));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                out.println(switch (line) {
                    case "versions" -> versions();
                    case "errors" -> errors();
                    default -> answer(line.split(" ", 4));
                });
            } catch (Exception | Error error) {
                Throwable reason = error.getCause() == null ? error : error.getCause();
                out.println("error " + reason.toString().replace('\n', ' '));
            }
            if (!lines.ready()) {
                out.flush();
            }
        }
    }

    private static String errors() {
        StringBuilder text = new StringBuilder();
        for (Errors error : Errors.values()) {
            text.append(error.code()).append(' ').append(error.name()).append(' ');
        }
        return text.toString().trim();
    }

    private static String versions() {
        StringBuilder text = new StringBuilder();
        for (ApiMessageType type : ApiMessageType.values()) {
            short[] range = range(type);
            text.append(type.apiKey()).append(' ').append(range[0]).append(' ').append(range[1]).append(' ');
        }
        return text.toString().trim();
    }

    /** Kafka 4 has versions that are not stable yet as an argument. */
    private static short[] range(ApiMessageType type) {
        try {
            short highest;
            try {
                highest = (short) ApiMessageType.class.getMethod("highestSupportedVersion").invoke(type);
            } catch (NoSuchMethodException exception) {
                highest = (short) ApiMessageType.class.getMethod("highestSupportedVersion", boolean.class)
                        .invoke(type, true);
            }
            return new short[] {type.lowestSupportedVersion(), highest};
        } catch (ReflectiveOperationException exception) {
            throw new IllegalStateException(exception);
        }
    }

    private static String answer(String[] parts) throws Exception {
        boolean isNew = parts[0].equals("new");
        int first = isNew ? 1 : 0;
        ApiMessageType type = ApiMessageType.fromApiKey(Short.parseShort(parts[first]));
        ApiMessage message = parts[first + 1].equals("Request") ? type.newRequest() : type.newResponse();
        short version = Short.parseShort(parts[first + 2]);
        if (isNew) {
            fill(message, version);
        } else {
            ByteBuffer data = ByteBuffer.wrap(HexFormat.of().parseHex(parts.length > 3 ? parts[3] : ""));
            message.read(new ByteBufferAccessor(data), version);
            if (data.hasRemaining()) {
                return "error " + data.remaining() + " bytes are left";
            }
        }
        return HexFormat.of().formatHex(written(message, version)) + " " + json(message, version);
    }

    @SuppressWarnings("unchecked")
    private static void fill(Message message, short version) throws Exception {
        for (Method accessor : message.getClass().getDeclaredMethods()) {
            if (accessor.getParameterCount() > 0 || !Collection.class.isAssignableFrom(accessor.getReturnType())) {
                continue;
            }
            Collection<Object> elements = (Collection<Object>) accessor.invoke(message);
            Class<?> kind = elementClass(accessor);
            if (elements != null && kind != null && Message.class.isAssignableFrom(kind)) {
                Message element = (Message) kind.getDeclaredConstructor().newInstance();
                fill(element, version);
                elements.add(element);
                if (!isWritable(message, version)) {
                    elements.clear();
                }
            }
        }
    }

    /** Whether the version has all fields that are set. */
    private static boolean isWritable(Message message, short version) {
        try {
            written(message, version);
            return true;
        } catch (UnsupportedVersionException exception) {
            return false;
        }
    }

    /** A list names the class of its elements; a collection with keys extends one that does. */
    private static Class<?> elementClass(Method accessor) {
        java.lang.reflect.Type type = accessor.getGenericReturnType();
        if (!(type instanceof ParameterizedType)) {
            type = accessor.getReturnType().getGenericSuperclass();
        }
        java.lang.reflect.Type element = ((ParameterizedType) type).getActualTypeArguments()[0];
        return element instanceof Class ? (Class<?>) element : null;
    }

    private static byte[] written(Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer data = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(data), cache, version);
        return data.array();
    }

    private static String json(Message message, short version) throws Exception {
        Method write = CONVERTERS.get(message.getClass());
        if (write == null) {
            Class<?> converter = Class.forName(message.getClass().getName() + "JsonConverter");
            write = converter.getMethod("write", message.getClass(), short.class, boolean.class);
            CONVERTERS.put(message.getClass(), write);
        }
        return write.invoke(null, message, version, false).toString();
    }
}
