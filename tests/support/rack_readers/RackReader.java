import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** Reads partition 0 of a topic: bootstrap, topic, rack, count. Prints "@ FOLLOWER COUNT" after each poll: the follower
 * that it reads from, -1 for the leader, and how many records it has read, each once and in order. */
public class RackReader {
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("client.rack", arguments[2]);
        properties.put("enable.auto.commit", "false");
        properties.put("metadata.max.age.ms", "2000");
        properties.put("auto.offset.reset", "none");
        properties.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        properties.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        TopicPartition partition = new TopicPartition(arguments[1], 0);
        long count = Long.parseLong(arguments[3]);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, 0);
            for (long next = 0; next < count; ) {
                for (var record : consumer.poll(Duration.ofMillis(500))) {
                    if (record.offset() != next) {
                        throw new IllegalStateException("offset " + record.offset() + " after " + (next - 1));
                    }
                    next++;
                }
                System.out.println("@ " + preferred(consumer) + " " + next);
                System.out.flush();
            }
        }
    }

    private static Object preferred(KafkaConsumer<byte[], byte[]> consumer) {
        return consumer.metrics().entrySet().stream()
            .filter(entry -> entry.getKey().name().equals("preferred-read-replica"))
            .map(entry -> entry.getValue().metricValue())
            .findFirst()
            .orElse(-1);
    }
}
