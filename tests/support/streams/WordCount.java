import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts words, with Kafka Streams of the version on the class path.
 *
 * A line is "PARTITION:SEQUENCE word word ...". Two stores are kept of each word: `counts` counts every arrival, so that
 * a line that is processed twice counts twice; `distinct` counts a word of a line once, because it remembers the last
 * line and word of each partition.
 *
 * Commands on stdin: "dump" prints "@ word NAME COUNT DISTINCT" for each word and "@ dumped"; the end of stdin closes the
 * application. Each state is told as "@ state NAME".
 */
public class WordCount {
    public static void main(String[] args) throws Exception {
        String input = args[0];
        String output = args[1];
        Properties config = new Properties();
        config.put("default.key.serde", Serdes.StringSerde.class.getName());
        config.put("default.value.serde", Serdes.StringSerde.class.getName());
        for (int i = 2; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            config.put(pair[0], pair[1]);
        }
        KafkaStreams streams = new KafkaStreams(topology(input, output).build(), config);
        streams.setStateListener((now, before) -> System.out.println("@ state " + now));
        streams.start();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                dump(streams);
            } catch (RuntimeException rebalancing) {
                System.out.println("@ dumped");
            }
        }
        streams.close();
    }

    private static StreamsBuilder topology(String input, String output) {
        StreamsBuilder builder = new StreamsBuilder();
        KGroupedStream<String, String> words = builder.<String, String>stream(input)
                .flatMap((key, line) -> words(line))
                .groupByKey(Grouped.with("words", Serdes.String(), Serdes.String()));
        words.count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(output, Produced.with(Serdes.String(), Serdes.String()));
        words.aggregate(() -> "0", (word, where, state) -> distinct(where, state),
                Materialized.<String, String>as(Stores.inMemoryKeyValueStore("distinct"))
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.String()));
        return builder;
    }

    private static List<KeyValue<String, String>> words(String line) {
        String[] parts = line.split(" ");
        List<KeyValue<String, String>> found = new ArrayList<>();
        for (int i = 1; i < parts.length; i++) {
            found.add(KeyValue.pair(parts[i], parts[0] + ":" + i));
        }
        return found;
    }

    /** The state is "COUNT PARTITION:SEQUENCE:WORD ...", with the last word of each partition. */
    private static String distinct(String where, String state) {
        String[] parts = state.split(" ");
        String partition = where.substring(0, where.indexOf(':') + 1);
        StringBuilder kept = new StringBuilder();
        for (int i = 1; i < parts.length; i++) {
            if (parts[i].startsWith(partition)) {
                if (position(where) <= position(parts[i])) {
                    return state;
                }
            } else {
                kept.append(' ').append(parts[i]);
            }
        }
        return (Long.parseLong(parts[0]) + 1) + kept.toString() + " " + where;
    }

    private static long position(String where) {
        String[] parts = where.split(":");
        return Long.parseLong(parts[1]) * 1000 + Long.parseLong(parts[2]);
    }

    private static void dump(KafkaStreams streams) {
        ReadOnlyKeyValueStore<String, Long> counts = streams.store(
                StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.keyValueStore()));
        ReadOnlyKeyValueStore<String, String> distinct = streams.store(
                StoreQueryParameters.fromNameAndType("distinct", QueryableStoreTypes.keyValueStore()));
        Map<String, Long> found = new TreeMap<>();
        try (KeyValueIterator<String, Long> all = counts.all()) {
            all.forEachRemaining(each -> found.put(each.key, each.value));
        }
        for (Map.Entry<String, Long> each : found.entrySet()) {
            String state = distinct.get(each.getKey());
            String count = state == null ? "0" : state.split(" ")[0];
            System.out.println("@ word " + each.getKey() + " " + each.getValue() + " " + count);
        }
        System.out.println("@ dumped");
    }
}
