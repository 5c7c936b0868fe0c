"""TLS, mTLS and SASL against a real broker that demands them; certificates are made by the test."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import trustme
from brokers.apache import ApacheKafka
from brokers.jars import java, resolve
from cluster import Cluster, running
from cryptography.hazmat.primitives import serialization

from streamguard.errors import BrokerUnavailableError
from streamguard.policy import PolicySet
from streamguard.stream.kafka import make_admin, started
from streamguard.stream.worker import Worker

pytestmark = [pytest.mark.apache, pytest.mark.timeout(180)]

USER, PASSWORD = "guard", "swordfish"
PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}";'
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
        address = self.kafka.addresses[protocol]
        return {
            "bootstrap": address,
            "security_protocol": protocol,
            "ssl_cafile": str(self.ca),
            "connect_timeout_seconds": 5.0,
            **settings,
        }

    def mtls(self) -> dict[str, Any]:
        """Return settings with a certificate of our own."""
        return self.client("SSL", ssl_certfile=str(self.certificate), ssl_keyfile=str(self.key))

    def sasl(self, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
        """Return settings with a password."""
        return self.client("SASL_SSL", sasl_mechanism=mechanism, sasl_username=USER, sasl_password=password)


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


@pytest.mark.parametrize("fault", ["no certificate", "unknown authority", "wrong password"])
async def test_a_client_that_is_refused_says_so(cluster: Cluster, secured: Secured, tmp_path: Path, fault: str) -> None:
    """Without the right certificate or password a client gives up in time, and shows no secret."""
    stranger = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    settings = {
        "no certificate": secured.client("SSL"),
        "unknown authority": {**secured.mtls(), "ssl_cafile": str(stranger)},
        "wrong password": secured.sasl("SCRAM-SHA-512", "herring"),
    }[fault]
    cluster.change(kafka=settings)
    kafka = cluster.settings.kafka

    with pytest.raises(BrokerUnavailableError, match=kafka.bootstrap) as caught:
        await started(make_admin(kafka), kafka)
    assert "herring" not in str(caught.value)
