"""Servers that speak TLS only, with a certificate made here: alone, as a cluster, behind a sentinel.

They are of Debian's Redis: the valkey-server in the wheel has no TLS.
"""

import asyncio
from contextlib import closing
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from faults.rig import Server, free_port
from faults.units import SECOND, opened, question, take
from headgate import Dispatch
from headgate.errors import StoreError
from patience import News, eventually, happens
from programs import program


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, and a certificate of 127.0.0.1 that it signed: paths by name."""
    folder = tmp_path_factory.mktemp("certificates")
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "headgate tests")])
    now = datetime.now(UTC)

    def signed(subject, key, *extensions):
        made = x509.CertificateBuilder(name, subject, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        # Python 3.13 and later are strict: they ask by whose key it is signed, and what that key is for.
        whose = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
        for extension in (whose, x509.SubjectKeyIdentifier.from_public_key(key.public_key()), *extensions):
            critical = isinstance(extension, (x509.BasicConstraints, x509.KeyUsage))
            made = made.add_extension(extension, critical=critical)
        return made.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)

    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    host = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    signs = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=False,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    texts = {
        "ca": signed(name, authority, x509.BasicConstraints(ca=True, path_length=None), signs),
        "crt": signed(host, server, address),
        "key": server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    }
    paths = {each: folder / f"server.{each}" for each in texts}
    for each, path in paths.items():
        path.write_bytes(texts[each])
    return paths


@pytest.fixture(scope="module")
def with_tls(certificates):
    """A function that makes a server of Redis that speaks TLS only."""
    binary = program("redis-server", "redis-server")
    files = {"cert-file": "crt", "key-file": "key", "ca-cert-file": "ca"}
    options = [part for name, each in files.items() for part in (f"--tls-{name}", str(certificates[each]))]

    def make(*others, kind="server"):
        server = Server(
            *("--port", "0", *options, "--tls-auth-clients", "no", "--tls-replication", "yes", *others),
            binary=binary,
            kind=kind,
            host="127.0.0.1",
            ssl=True,
            ssl_ca_certs=str(certificates["ca"]),
        )
        server.options += ("--tls-port", str(server.port))
        return server

    return make


def test_a_server_by_tls_is_one_whose_certificate_is_right(with_tls, certificates):
    with with_tls() as server:

        async def main():
            url = f"rediss://127.0.0.1:{server.port}/0"
            async with opened(f"{url}?ssl_ca_certs={certificates['ca']}") as store:
                news = News()
                await store.listen("k", news.set)
                await happens(news)
                await take(store, "a", range(5))
                await store.ask("k", question("a", 9, window=60 * SECOND))
                await happens(news)
            async with opened(url) as stranger:
                with pytest.raises(StoreError, match=r"(?i)certificate"):
                    await stranger.ask("k", question("a", 1))

        asyncio.run(main())
        with (
            closing(server.client()) as client,  # a ready one, with its certificates
            Dispatch("tls", concurrency=1, store=client) as gate,
            gate.admit(timeout=5),
        ):
            assert b"headgate:{tls}" in client.scan(match="headgate*")[1]


def test_a_cluster_by_tls(with_tls, certificates):
    """One server that has all slots, and tells the port of TLS."""
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--tls-cluster", "yes")
    with with_tls(*options) as server:
        with closing(server.client()) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster is up")

        async def main():
            url = f"rediss+cluster://127.0.0.1:{server.port}?ssl_ca_certs={certificates['ca']}"
            async with opened(url) as store:
                news = News()
                for key in ("k", "l", "m"):
                    await take(store, "a", range(3), key)
                await store.listen("k", news.set)
                await happens(news)
                await store.ask("k", question("a", 9, window=60 * SECOND))
                await happens(news)

        asyncio.run(main())


def test_a_primary_of_sentinels_by_tls(with_tls, certificates):
    """The sentinel and the server speak TLS only."""
    with with_tls() as primary, with_tls(kind="sentinel") as sentinel:
        with closing(sentinel.client()) as client:
            client.execute_command("SENTINEL", "MONITOR", "limits", "127.0.0.1", primary.port, 1)

        async def main():
            tls = f"ssl_ca_certs={certificates['ca']}"
            async with opened(f"rediss+sentinel://127.0.0.1:{sentinel.port}/limits?{tls}") as store:
                await take(store, "a", range(5))
                assert await store.keys() == ["k"]

        asyncio.run(main())
