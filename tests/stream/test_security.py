"""TLS, mTLS and SASL against a real broker that demands them; certificates are made by the test."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import trustme
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import CreateAclsRequest
from brokers.apache import ApacheKafka
from brokers.jars import java, resolve
from cluster import Cluster, running
from commands import streamguard
from cryptography.hazmat.primitives import serialization

from streamguard.errors import BrokerUnavailableError, NotAuthorizedError, TopicMissingError
from streamguard.policy import PolicySet
from streamguard.stream.worker import Worker

pytestmark = [pytest.mark.apache, pytest.mark.timeout(300)]

USER, PASSWORD = "guard", "swordfish"
LIMITED = "newcomer"
"""A user without any right, at first."""

PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}" user_{LIMITED}="{PASSWORD}";'
)
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class Secured(NamedTuple):
    """A broker that demands security, and the files of a client that it trusts."""

    kafka: ApacheKafka
    ca: Path
    certificate: Path
    key: Path

    def client(self, protocol: str, **settings: Any) -> dict[str, Any]:
        """Return the Kafka settings of a client."""
        return {
            "bootstrap": self.kafka.addresses[protocol],
            "security_protocol": protocol,
            "ssl_cafile": str(self.ca),
            "connect_timeout_seconds": 5.0,
            **settings,
        }

    def mtls(self) -> dict[str, Any]:
        """Return settings with a certificate of our own."""
        return self.client("SSL", ssl_certfile=str(self.certificate), ssl_keyfile=str(self.key))

    def sasl(self, mechanism: str, password: str = PASSWORD, user: str = USER) -> dict[str, Any]:
        """Return settings with a password."""
        return self.client("SASL_SSL", sasl_mechanism=mechanism, sasl_username=user, sasl_password=password)


@pytest.fixture(scope="module")
def secured(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Start a broker with listeners for mTLS and for SASL over TLS."""
    if broker.kind != "apache-kafka":
        pytest.skip("needs Java and Maven: a broker with these listeners is started by the test")
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("guard@example.org")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    client.cert_chain_pems[0].write_to_path(str(folder / "client.pem"))
    client.private_key_pem.write_to_path(str(folder / "client.key"))
    (folder / "server.pem").write_bytes(pkcs8(server.private_key_pem.bytes()) + server.cert_chain_pems[0].bytes())
    kafka = ApacheKafka(
        java(),
        resolve(),
        listeners=("SSL", "SASL_SSL"),
        properties=properties(folder / "server.pem", folder / "ca.pem"),
    )
    try:
        add_scram_user(kafka.bootstrap)
        yield Secured(kafka, folder / "ca.pem", folder / "client.pem", folder / "client.key")
    finally:
        kafka.stop()


def properties(keystore: Path, truststore: Path) -> dict[str, object]:
    """Return what the broker needs for its secure listeners."""
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": keystore,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": truststore,
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER}",
        "ssl.principal.mapping.rules": f"RULE:^.*$/{USER}/",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": SCRAM,
    }


def pkcs8(pem: bytes) -> bytes:
    """Return a private key in the form that Kafka reads."""
    key = serialization.load_pem_private_key(pem, None)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def add_scram_user(bootstrap: str) -> None:
    """Make a SCRAM user, with Kafka's own tool, over the plaintext listener."""
    subprocess.run(
        [
            *(java(), "-cp", f"{resolve()}/*", "kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap),
            *("--alter", "--entity-type", "users", "--entity-name", USER),
            *("--add-config", f"SCRAM-SHA-512=[password={PASSWORD}]"),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )


@pytest.fixture
async def cluster(secured: Secured, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own on the secured broker; the test itself uses the plaintext listener."""
    plaintext = SimpleNamespace(bootstrap=secured.kafka.bootstrap, is_apache=True)
    async with Cluster(plaintext, topic_prefix) as cluster:
        yield cluster


@pytest.mark.parametrize("how", ["mTLS", "PLAIN", "SCRAM-SHA-512"])
async def test_a_worker_works_over_a_secure_listener(cluster: Cluster, secured: Secured, how: str) -> None:
    """With the right certificate or password a worker reads events and publishes verdicts."""
    cluster.change(kafka=secured.mtls() if how == "mTLS" else secured.sasl(how))
    async with running(Worker(cluster.settings, PolicySet({"enabled": True}))):
        await cluster.publish("run-1", [b'{"type":"tool_call","run_id":"run-1","tool":"read","gate":true}'])
        [verdict] = await cluster.verdicts(1)

    assert "allow" == verdict.action


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no certificate", "refuses our certificate"),
        ("unknown authority", "its certificate is not trusted"),
        ("wrong password", "user 'guard' or the password is not accepted"),
        ("wrong mechanism", "SCRAM-SHA-256 is not offered"),
    ],
)
async def test_a_worker_that_is_refused_says_so(
    cluster: Cluster, secured: Secured, tmp_path: Path, fault: str, said: str
) -> None:
    """Without the right certificate or password a worker ends at once, says in one line why, and shows no secret."""
    stranger = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    cluster.change(
        kafka={
            "no certificate": secured.client("SSL"),
            "unknown authority": {**secured.mtls(), "ssl_cafile": str(stranger)},
            "wrong password": secured.sasl("SCRAM-SHA-512", "herring"),
            "wrong mechanism": secured.sasl("SCRAM-SHA-256"),
        }[fault]
        | {"connect_timeout_seconds": 60.0}
    )

    with pytest.raises(NotAuthorizedError, match=said) as caught:
        async with asyncio.timeout(20):
            await Worker(cluster.settings, PolicySet()).run()
    assert "\n" not in str(caught.value)
    assert "herring" not in str(caught.value)


@pytest.mark.parametrize(
    ("speaks", "listener", "said"),
    [
        ("PLAINTEXT", "SSL", "it wants TLS"),
        ("SASL_PLAINTEXT", "PLAINTEXT", "it takes no user and password"),
        ("SSL", "PLAINTEXT", "does not speak Kafka over SSL"),
    ],
)
async def test_another_protocol_than_the_listeners_is_said(
    cluster: Cluster, secured: Secured, speaks: str, listener: str, said: str
) -> None:
    """A listener that is there but wants another security protocol is no dead broker: the setting is named."""
    address = secured.kafka.bootstrap if listener == "PLAINTEXT" else secured.kafka.addresses[listener]
    client = secured.client("SASL_SSL", bootstrap=address, sasl_username=USER, sasl_password=PASSWORD)
    cluster.change(kafka={**client, "security_protocol": speaks})

    with pytest.raises((NotAuthorizedError, BrokerUnavailableError), match=f"{said}.*security_protocol"):
        async with asyncio.timeout(30):
            await Worker(cluster.settings, PolicySet()).run()


def test_the_command_ends_with_its_own_exit_code(secured: Secured, topic_prefix: str) -> None:
    """`streamguard run` with a wrong password: exit code 3, one line, no traceback, no secret."""
    done = streamguard(
        "run",
        variables={
            "STREAMGUARD_KAFKA_BOOTSTRAP": secured.kafka.addresses["SASL_SSL"],
            "STREAMGUARD_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "STREAMGUARD_KAFKA_SSL_CAFILE": str(secured.ca),
            "STREAMGUARD_KAFKA_SASL_USERNAME": USER,
            "STREAMGUARD_KAFKA_SASL_PASSWORD": "herring",
            "STREAMGUARD_WORKER_GROUP": topic_prefix,
        },
    )

    assert 3 == done.returncode
    assert 1 == len([line for line in done.stderr.splitlines() if line.startswith("error: ")])
    assert "Traceback" not in done.stderr
    assert "herring" not in done.stderr


TOPIC, GROUP, TRANSACTIONAL_ID = 2, 3, 5
LITERAL, PREFIXED = 3, 4
READ, WRITE, DESCRIBE = 3, 4, 8
ALLOW = 3
"""Numbers of Kafka's protocol."""


async def grant(bootstrap: str, kind: int, names: Sequence[str], *operations: int, pattern: int = LITERAL) -> None:
    """Give the limited user rights."""
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    await client.bootstrap()
    for name in names:
        for operation in operations:
            request = CreateAclsRequest(kind, name, pattern, f"User:{LIMITED}", "*", operation, ALLOW)
            response = await client.send(client.get_random_node(), request)
            assert [0] == [code for code, _ in response.creation_responses]
    await client.close()


async def refusal(cluster: Cluster) -> str:
    """Run a worker that is refused; return what it says."""
    with pytest.raises((NotAuthorizedError, TopicMissingError)) as caught:
        await Worker(cluster.settings, PolicySet()).run()
    return str(caught.value)


async def test_a_missing_acl_is_named(cluster: Cluster, secured: Secured) -> None:
    """A worker ends with what it lacks, ACL by ACL, until it has all that the README lists; then it works."""
    cluster.change(kafka=secured.sasl("PLAIN", user=LIMITED))
    topics, group = cluster.settings.topics, cluster.settings.worker.group
    state, policies = cluster.settings.state_topic, cluster.settings.policies_topic
    every = [topics.events, topics.verdicts, topics.dead_letters, state, policies]
    steps: list[tuple[tuple[Any, ...], int, str | None]] = [
        ((TOPIC, every, DESCRIBE), LITERAL, "the consumer group"),
        ((GROUP, [group], READ), LITERAL, "the transactional ids of the group"),
        ((TRANSACTIONAL_ID, [f"streamguard.{group}."], WRITE, DESCRIBE), PREFIXED, "a topic"),
        ((TOPIC, [topics.verdicts, state, policies], READ, WRITE), LITERAL, "a topic"),
        ((TOPIC, [topics.events], READ), LITERAL, None),
    ]
    assert "allow this user to describe them" in await refusal(cluster)
    for acl, pattern, lacking in steps:
        await grant(secured.kafka.bootstrap, *acl, pattern=pattern)
        if lacking is not None:
            async with asyncio.timeout(60):  # a broker hears of an ACL a moment after the one that was told
                while lacking not in (said := await refusal(cluster)):
                    await asyncio.sleep(0.1)
            assert "\n" not in said
    async with running(Worker(cluster.settings, PolicySet({"enabled": True}))):
        await cluster.publish("run-1", [b'{"type":"tool_call","run_id":"run-1","tool":"read","gate":true}'])
        [verdict] = await cluster.verdicts(1)

    assert "allow" == verdict.action
