import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import kafka.coordinator.transaction.TransactionLog$;
import kafka.coordinator.transaction.TransactionLog;
import kafka.coordinator.transaction.TransactionMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.MessageFormatter;

/**
 * What Apache Kafka's own code makes of records of __transaction_state: `KEY VALUE` in hexadecimal, one record a line.
 *
 * For each record it prints a line of Kafka's formatter, and then the same record as Kafka writes it itself.
 */
public class TransactionState {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ");
            record(HexFormat.of().parseHex(parts[0]), HexFormat.of().parseHex(parts[1]));
        }
    }

    private static void record(byte[] key, byte[] value) throws Exception {
        try (MessageFormatter formatter = new TransactionLog.TransactionLogMessageFormatter()) {
            formatter.writeTo(new ConsumerRecord<>("__transaction_state", 0, 0, key, value), System.out);
        }
        String id = TransactionLog.readTxnRecordKey(ByteBuffer.wrap(key)).transactionalId();
        TransactionMetadata read = TransactionLog.readTxnRecordValue(id, ByteBuffer.wrap(value)).get();
        byte[] written = TransactionLog$.MODULE$.valueToBytes(read.prepareNoTransit());
        System.out.println(hex(TransactionLog$.MODULE$.keyToBytes(id)) + " " + hex(written));
    }

    private static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }
}
