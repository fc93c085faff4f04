"""A small LDAP directory for tests: `python tests/fakes/ldap_server.py PORT`. It listens on the loopback only.

With a second word, the file of a certificate and its key, it speaks LDAPS.
"""

import sys
from io import BytesIO
from typing import Any

from ldaptor.inmemory import fromLDIFFile
from ldaptor.interfaces import IConnectedLDAPEntry
from ldaptor.protocols.ldap.ldapserver import LDAPServer
from twisted.internet import defer, reactor, ssl
from twisted.internet.protocol import ServerFactory
from twisted.python.components import registerAdapter

LDIF = b"""\
dn: dc=example,dc=org
objectClass: dcObject
dc: example

dn: ou=people,dc=example,dc=org
objectClass: organizationalUnit
ou: people

dn: ou=groups,dc=example,dc=org
objectClass: organizationalUnit
ou: groups

dn: uid=ada,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
uid: ada
userPassword: secret of ada

dn: uid=bob,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
uid: bob
userPassword: secret of bob

dn: cn=gpu-users,ou=groups,dc=example,dc=org
objectClass: groupOfNames
cn: gpu-users
member: uid=ada,ou=people,dc=example,dc=org

"""


class Directory(ServerFactory):
    protocol = LDAPServer

    def __init__(self, root: Any) -> None:
        self.root = root


def listen(root: Any, port: int, certificate: str | None) -> None:
    registerAdapter(lambda factory: factory.root, Directory, IConnectedLDAPEntry)
    where: Any = reactor  # chosen at import
    if certificate is None:
        where.listenTCP(port, Directory(root), interface="127.0.0.1")
    else:
        identity = ssl.DefaultOpenSSLContextFactory(certificate, certificate)
        where.listenSSL(port, Directory(root), identity, interface="127.0.0.1")


def main(port: int, certificate: str | None = None) -> None:
    made: defer.Deferred[Any] = fromLDIFFile(BytesIO(LDIF))
    made.addCallback(listen, port, certificate)
    reactor.run()  # type: ignore[attr-defined]  # chosen at import


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
