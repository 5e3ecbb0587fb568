"""ZooKeeper's own Java client against the embedded server: its shell, and a program that uses the API."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.oracles import java_tool
from support.zookeeper.embedded import EmbeddedZooKeeper

PROBE = """
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.zookeeper.*;
import org.apache.zookeeper.data.*;

public class Probe {
    static void check(boolean ok, String what) {
        System.out.println((ok ? "ok " : "WRONG ") + what);
    }

    public static void main(String[] arguments) throws Exception {
        BlockingQueue<WatchedEvent> events = new LinkedBlockingQueue<>();
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper zk = new ZooKeeper(arguments[0], 10000, event -> {
            if (event.getType() == Watcher.Event.EventType.None) connected.countDown(); else events.add(event);
        });
        connected.await();
        check(zk.getSessionTimeout() == 10000, "timeout");
        Stat stat = new Stat();
        zk.create("/java", "one".getBytes(), ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT, stat);
        check(stat.getVersion() == 0 && stat.getDataLength() == 3, "create2");
        check(new String(zk.getData("/java", true, stat)).equals("one"), "getData");
        check(zk.setData("/java", "two".getBytes(), 0).getVersion() == 1, "setData");
        WatchedEvent event = events.poll(10, TimeUnit.SECONDS);
        check(event.getType() == Watcher.Event.EventType.NodeDataChanged && event.getPath().equals("/java"), "watch");
        try {
            zk.setData("/java", null, 0);
            check(false, "BadVersion");
        } catch (KeeperException.BadVersionException expected) {
            check(true, "BadVersion");
        }
        String name = zk.create("/java/s-", null, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL_SEQUENTIAL);
        check(name.equals("/java/s-0000000000"), "sequential");
        check(zk.exists(name, false).getEphemeralOwner() == zk.getSessionId(), "owner");
        check(zk.create("/java/box", null, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.CONTAINER) != null, "container");
        List<OpResult> results = zk.multi(List.of(
            Op.check("/java", 1),
            Op.create("/java/m", new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT),
            Op.setData("/java/m", "x".getBytes(), 0),
            Op.delete("/java/m", 1)));
        check(results.size() == 4 && ((OpResult.SetDataResult) results.get(2)).getStat().getVersion() == 1, "multi");
        try {
            zk.multi(List.of(Op.create("/java/n", null, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT),
                Op.check("/java", 99), Op.delete("/java", -1)));
            check(false, "failed multi");
        } catch (KeeperException.BadVersionException expected) {
            int[] codes = expected.getResults().stream().mapToInt(r -> ((OpResult.ErrorResult) r).getErr()).toArray();
            check(Arrays.equals(codes, new int[] {0, -103, -2}), "failed multi");
        }
        check(zk.exists("/java/n", false) == null, "rolled back");
        zk.addAuthInfo("digest", "user:password".getBytes());
        zk.create("/java/mine", null, ZooDefs.Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
        check(zk.getACL("/java/mine", stat).get(0).getId().getScheme().equals("digest"), "ACL");

        ZooKeeper other = new ZooKeeper(arguments[0] + "/java", 10000, ignored -> { });
        try {
            other.getData("/mine", false, null);
            check(false, "NoAuth");
        } catch (KeeperException.NoAuthException expected) {
            check(true, "NoAuth");
        }
        check(new HashSet<>(other.getChildren("/", false)).equals(Set.of("s-0000000000", "box", "mine")), "chroot");

        int count = 5000;
        CountDownLatch done = new CountDownLatch(count);
        AtomicInteger inOrder = new AtomicInteger();
        for (int i = 0; i < count; i++) {
            int version = i + 2;
            zk.setData("/java", new byte[100], -1, (rc, path, context, s) -> {
                if (rc == 0 && s.getVersion() == version) inOrder.incrementAndGet();
                done.countDown();
            }, null);
        }
        done.await();
        check(inOrder.get() == count, "pipelined");

        zk.close();
        ZooKeeper again = new ZooKeeper(arguments[0], 10000, events::add);
        check(again.exists(name, false) == null, "closed session's ephemeral gone");
        long id = again.getSessionId();
        ZooKeeper taker = new ZooKeeper(arguments[0], 10000, ignored -> { }, id, again.getSessionPasswd());
        taker.create("/java/taken", null, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        check(taker.getSessionId() == id, "session taken over");
        taker.close();
        check(other.exists("/taken", false) == null, "ephemeral gone");
        other.close();
        System.out.println("end");
    }
}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def test_the_java_api(server: EmbeddedZooKeeper, kafka_jars: Path, tmp_path: Path) -> None:
    source = tmp_path / "Probe.java"
    source.write_text(PROBE, encoding="utf-8")
    lines = java_tool(kafka_jars, str(source), server.connect).decode().splitlines()
    assert lines[-1] == "end"
    assert [line for line in lines if line.startswith("WRONG")] == []
    assert sum(1 for line in lines if line.startswith("ok ")) == 19


def test_zookeepers_shell(server: EmbeddedZooKeeper, kafka_jars: Path) -> None:
    commands = b"""
create /shell first
create -s -e /shell/n- x
set -s /shell second
get -s /shell
ls /shell
stat /shell
delete /shell
deleteall /shell
ls /
getAcl /zookeeper/config
create -c /container data
ls /container
get /container
addauth digest me:secret
create /closed x auth::cdrwa
getAcl /closed
setquota -n 5 /container
quit
"""
    output = java_tool(
        kafka_jars, "org.apache.zookeeper.ZooKeeperMain", "-server", server.connect, stdin=commands
    ).decode()
    for expected in (
        "second\ncZxid = 0x2\n",
        "mZxid = 0x4\n",
        "dataVersion = 1\n",
        "numChildren = 1\n",
        "\n[n-0000000000]\n",
        "\n[zookeeper]\n",
        "\n[]\ndata\n",
        "'world,'anyone\n: r\n",
        "'digest,'me:",
    ):
        assert expected in output, f"{expected!r} not in:\n{output}"
