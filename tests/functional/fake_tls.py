"""TLS before the fake API server: certificates, and a relay that ends TLS."""

import select
import socket
import ssl
import subprocess
import threading
from pathlib import Path


def openssl(*args):
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)


class Authority:
    """A certificate authority in a directory of its own."""

    def __init__(self, directory):
        self.dir = Path(directory)
        self.dir.mkdir()
        self.cert, self.key = self.dir / "ca.crt", self.dir / "ca.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                f"/CN={self.dir.name}", "-keyout", self.key, "-out", self.cert)

    def issue(self, name, alternative):
        """(certificate, key) of NAME; ALTERNATIVE is like IP:127.0.0.1 or DNS:kubernetes."""
        cert, key, request, extensions = (self.dir / f"{name}.{kind}" for kind in ("crt", "key", "csr", "ext"))
        extensions.write_text(f"subjectAltName={alternative}\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-keyout", key,
                "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self.key, "-CAcreateserial", "-days", "2", "-extfile",
                extensions, "-out", cert)
        return cert, key


class TlsFront:
    """Listens with TLS and passes everything on to PORT."""

    def __init__(self, port, cert, key, client_authority=None):
        self.target = port
        self.context = None
        self.relays = set()
        self.refused = 0  # handshakes that failed
        self.use(cert, key, client_authority)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def use(self, cert, key, client_authority=None):
        """For handshakes from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        if client_authority:
            context.load_verify_locations(client_authority.cert)
            context.verify_mode = ssl.CERT_REQUIRED
        self.context = context

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.end_all()

    def end_all(self, notify=False):
        """Ends every connection; with NOTIFY, by TLS's own close_notify."""
        for relay in list(self.relays):
            relay.notify = notify
            relay.ending.set()
            relay.poke()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        try:
            sock.settimeout(30)
            tls = self.context.wrap_socket(sock, server_side=True)
        except (OSError, ssl.SSLError):
            self.refused += 1
            sock.close()
            return
        relay = Relay(tls, socket.create_connection(("127.0.0.1", self.target)))
        self.relays.add(relay)
        try:
            relay.run()
        finally:
            self.relays.discard(relay)


class Relay:
    """One thread for both directions: an SSL object is not for two."""

    def __init__(self, tls, plain):
        self.tls, self.plain = tls, plain
        self.ending, self.notify = threading.Event(), False
        self.wake, self.waker = socket.socketpair()

    def poke(self):
        self.waker.send(b"x")

    def run(self):
        try:
            while not self.ending.is_set() and self._pass():
                pass
            if self.notify:
                self.tls.settimeout(1)
                self.tls.unwrap()
        except (OSError, ssl.SSLError):
            pass
        finally:
            for sock in (self.tls, self.plain, self.wake, self.waker):
                sock.close()

    def _pass(self):
        ready = [self.tls] if self.tls.pending() else select.select([self.tls, self.plain, self.wake], [], [])[0]
        if self.wake in ready:
            return False
        for source, target in ((self.tls, self.plain), (self.plain, self.tls)):
            if source in ready:
                data = source.recv(1 << 16)
                if not data:
                    return False
                target.sendall(data)
        return True
