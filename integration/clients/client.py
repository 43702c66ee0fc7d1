"""Clients of the benchmark of Cutovers that resolve as gRPC, nginx and HAProxy do.

Usage: client.py KIND PORT PAUSE NAME...

  KIND  grpc-pick-first, grpc-round-robin, grpc-ageing, nginx or haproxy

Every PAUSE milliseconds it sends a request to the next NAME: a gRPC call with a channel that it keeps for each name, or a GET
through a proxy, which this program starts and ends. When its input ends, it prints the numbers of requests and of those that
failed. The resolver is the first one of /etc/resolv.conf.

  ANSWERS=yes      say on standard error how often tasks and pods answered in the last 30 s
  UNPACKED=FOLDER  the packages of nginx and HAProxy are unpacked there, not installed
"""

import collections
import glob
import http.client
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

# For a request, in seconds: a machine that stands still for a while fails nothing.
PATIENCE = 25
# How often it says who answered, in seconds.
LOOK = 30

NGINX = """\
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
	access_log off;
	client_body_temp_path {folder}/body;
	proxy_temp_path {folder}/proxy;
	fastcgi_temp_path {folder}/fastcgi;
	uwsgi_temp_path {folder}/uwsgi;
	scgi_temp_path {folder}/scgi;
	# With a variable in proxy_pass, nginx resolves again when an answer is as old as its TTL, or as valid= says.
	resolver {resolver} valid=5s;
	server {{
		listen unix:{folder}/socket;
		location / {{
			proxy_connect_timeout {patience}s;
			proxy_pass http://$host:{port};
		}}
	}}
}}
"""

HAPROXY = """\
defaults
	mode http
	# An address that refuses is left for another one at once.
	option redispatch 1
	timeout connect {patience}s
	timeout client {patience}s
	timeout server {patience}s
resolvers cloudmap
	nameserver resolver {resolver}:53
	accepted_payload_size 8192
	hold valid 5s
frontend requests
	bind unix@{folder}/socket
	use_backend %[req.hdr(host)]
"""

# As many servers as the name may have addresses. Without init-addr the C library resolves first, and one address is in all of them.
HAPROXY_BACKEND = """\
backend {name}
	balance roundrobin
	server-template task 8 {name}:{port} resolvers cloudmap resolve-prefer ipv4 init-addr none
"""


def resolver():
    with open("/etc/resolv.conf", encoding="ascii") as lines:
        return next(line.split()[1] for line in lines if line.startswith("nameserver"))


class Grpc:
    """Channels, each of which resolves when a connection ends, and at most every 30 s, whatever the TTL is."""

    def __init__(self, kind, port, names):
        # It says when a connection ends, which is no error.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        import grpc

        policy = "pick_first" if kind == "grpc-pick-first" else "round_robin"
        method = "/client/Ageing" if kind == "grpc-ageing" else "/client/Ask"
        options = [("grpc.lb_policy_name", policy), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        self.error = grpc.RpcError
        self.channels = {name: grpc.insecure_channel(f"dns:///{name}:{port}", options) for name in names}
        # Messages without an encoding of their own, so that nothing is generated.
        self.calls = {name: channel.unary_unary(method) for name, channel in self.channels.items()}

    def ask(self, name):
        try:
            return self.calls[name](b"?", timeout=PATIENCE).decode()
        except self.error as error:
            raise OSError(f"{error.code().name}: {error.details()}") from error

    def close(self):
        for channel in self.channels.values():
            channel.close()


class Proxy:
    """A proxy on a socket of this machine."""

    def __init__(self, kind, port, names):
        self.folder = tempfile.mkdtemp()
        values = {"folder": self.folder, "resolver": resolver(), "port": port, "patience": PATIENCE}
        file = f"{self.folder}/configuration"
        with open(file, "w", encoding="ascii") as configuration:
            if kind == "nginx":
                configuration.write(NGINX.format(**values))
            else:
                configuration.write(HAPROXY.format(**values))
                configuration.writelines(HAPROXY_BACKEND.format(name=name, **values) for name in names)
        # HAProxy says each address that changes, unless it is quiet.
        command = ["nginx", "-p", self.folder, "-c", file] if kind == "nginx" else ["haproxy", "-db", "-q", "-f", file]
        environment = dict(os.environ)
        if root := environment.get("UNPACKED"):
            environment["PATH"] += f":{root}/usr/sbin"
            environment["LD_LIBRARY_PATH"] = ":".join(glob.glob(f"{root}/usr/lib/*-linux-gnu"))
        # It ends with this program, also if this one is killed.
        command = ["setpriv", "--pdeathsig", "TERM", *command]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        # HAProxy has no address before the first answer.
        for name in names:
            self.wait_for(name)

    def wait_for(self, name):
        begun = time.monotonic()
        while True:
            try:
                return self.ask(name)
            except (OSError, http.client.HTTPException):
                if self.process.poll() is not None or time.monotonic() > begun + PATIENCE:
                    raise
                time.sleep(0.1)

    def ask(self, name):
        connection = http.client.HTTPConnection(name, timeout=PATIENCE)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(PATIENCE)
            connection.sock.connect(f"{self.folder}/socket")
            connection.request("GET", "/", headers={"Connection": "close"})
            response = connection.getresponse()
            answer = response.read().decode(errors="replace")
            if response.status != http.client.OK:
                raise OSError(f"{response.status} {response.reason}")
            return answer
        finally:
            connection.close()

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        shutil.rmtree(self.folder)


def main():
    kind, port, pause, *names = sys.argv[1:]
    client = (Grpc if kind.startswith("grpc") else Proxy)(kind, port, names)
    requests = failed = 0
    answers, look = collections.Counter(), time.monotonic() + LOOK
    # Readable is also an input that has ended.
    while not select.select([sys.stdin], [], [], int(pause) / 1000)[0]:
        name = names[requests % len(names)]
        requests += 1
        try:
            answers[client.ask(name)] += 1
        except (OSError, http.client.HTTPException) as wrong:
            failed += 1
            print(f"{kind}: {name}: {wrong}", file=sys.stderr, flush=True)
        if os.environ.get("ANSWERS") and time.monotonic() > look:
            print(f"{kind}: {dict(answers)}", file=sys.stderr, flush=True)
            answers, look = collections.Counter(), time.monotonic() + LOOK
    client.close()
    print(requests, failed)


main()
