import static org.apache.kafka.common.protocol.MessageUtil.toVersionPrefixedBytes;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import kafka.api.ApiVersion;
import kafka.common.OffsetAndMetadata;
import kafka.coordinator.group.GroupMetadata;
import kafka.coordinator.group.GroupMetadataManager;
import kafka.coordinator.group.GroupTopicPartition;
import kafka.coordinator.group.MemberMetadata;
import kafka.internals.generated.OffsetCommitKey;
import kafka.internals.generated.OffsetCommitValue;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.MessageFormatter;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What Apache Kafka's own code makes of records of __consumer_offsets: `KEY VALUE` in hexadecimal, one record a line.
 *
 * First comes what its formatters print, then the same record as it writes it itself: `key HEX`, `VERSION HEX` for each
 * version of inter.broker.protocol.version, `oldest KEY VALUE` for what it has not written since 0.8.2. Then an empty
 * line. With the argument `partitions`: the partition, of 50, for the group id in each line.
 */
public class ConsumerOffsets {
    private static final String[] VERSIONS = {"0.10.0", "2.0", "2.1-IV0", "2.1", "2.3", "2.4", "2.8"};

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        boolean partitions = arguments.length > 0 && arguments[0].equals("partitions");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (partitions) {
                System.out.println(Utils.abs(line.hashCode()) % 50);
            } else {
                String[] parts = line.split(" ");
                record(bytes(parts[0]), bytes(parts[1]));
                System.out.println();
            }
        }
    }

    private static void record(byte[] key, byte[] value) throws Exception {
        ConsumerRecord<byte[], byte[]> record = new ConsumerRecord<>("__consumer_offsets", 0, 0, key, value);
        try (MessageFormatter offsets = new GroupMetadataManager.OffsetsMessageFormatter();
                MessageFormatter groups = new GroupMetadataManager.GroupMetadataMessageFormatter()) {
            offsets.writeTo(record, System.out);
            groups.writeTo(record, System.out);
        }
        Object read = GroupMetadataManager.readMessageKey(ByteBuffer.wrap(key)).key();
        if (read instanceof GroupTopicPartition) {
            offset((GroupTopicPartition) read, GroupMetadataManager.readOffsetMessageValue(ByteBuffer.wrap(value)));
        } else {
            String groupId = (String) read;
            group(groupId, GroupMetadataManager.readGroupMessageValue(groupId, ByteBuffer.wrap(value), Time.SYSTEM));
        }
    }

    private static void offset(GroupTopicPartition key, OffsetAndMetadata value) {
        System.out.println("key " + hex(GroupMetadataManager.offsetCommitKey(key.group(), key.topicPartition())));
        for (String version : VERSIONS) {
            System.out.println(version + " " + hex(GroupMetadataManager.offsetCommitValue(value, ApiVersion.apply(version))));
        }
        byte[] oldestKey = toVersionPrefixedBytes((short) 0, new OffsetCommitKey()
                .setGroup(key.group())
                .setTopic(key.topicPartition().topic())
                .setPartition(key.topicPartition().partition()));
        byte[] oldestValue = toVersionPrefixedBytes((short) 0, new OffsetCommitValue()
                .setOffset(value.offset())
                .setMetadata(value.metadata())
                .setCommitTimestamp(value.commitTimestamp()));
        System.out.println("oldest " + hex(oldestKey) + " " + hex(oldestValue));
    }

    private static void group(String groupId, GroupMetadata group) {
        Map<String, byte[]> assignments = new LinkedHashMap<>();
        for (MemberMetadata member : CollectionConverters.asJava(group.allMemberMetadata())) {
            assignments.put(member.memberId(), member.assignment());
        }
        System.out.println("key " + hex(GroupMetadataManager.groupMetadataKey(groupId)));
        for (String version : VERSIONS) {
            byte[] value = GroupMetadataManager.groupMetadataValue(
                    group, CollectionConverters.asScala(assignments), ApiVersion.apply(version));
            System.out.println(version + " " + hex(value));
        }
    }

    private static byte[] bytes(String hex) {
        return HexFormat.of().parseHex(hex);
    }

    private static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }
}
