"""Attempts to get out of a sandbox of the local driver, each really made inside and really refused there.

An attempt is Python source. Where it can be, the same source is run outside, by root in namespaces of its own, and must
succeed there: so what refuses it inside is the sandbox, not a mistake in the attempt.
"""

import os
import platform
import socket
import subprocess
import sys
from collections import namedtuple

import pytest

from attaching import Attached, terminal
from local_server import LocalServer, let_others_pass

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls are given by their numbers on x86-64"),
    pytest.mark.skipif(os.geteuid() != 0, reason="what is tried outside for comparison needs root"),
]

USER = 54321  # of no account

RUN = r"""
import ctypes, errno, fcntl, mmap, os, signal, socket, stat, struct, sys, termios, time
libc = ctypes.CDLL(None, use_errno=True)
given = sys.argv[2:]
agent = os.getpid() if "OUTSIDE" in os.environ else 1  # outside: a process as good as any

def refused(code):
    raise OSError(code, os.strerror(code))

def call(number, *arguments):
    result = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *arguments)])
    if result < 0:
        refused(ctypes.get_errno())
    return result

def machine_code(code):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex(code))
    run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    result = run()
    if result < 0:
        refused(-result)

print("tried", flush=True)
try:
    exec(sys.argv[1])
    print("done", flush=True)
except OSError as error:
    print("refused", errno.errorcode[error.errno], flush=True)
"""

Attempt = namedtuple("Attempt", "name source errors outside")
ATTEMPTS = []


def attempt(name, source, errors, outside=True):
    """ERRORS: how the sandbox may refuse. OUTSIDE: the source succeeds there; False when it would do harm, or cannot."""
    ATTEMPTS.append(Attempt(name, source, errors.split(), outside))


# --- files and devices of the host
attempt("a file of the host", "open(given[0]).read()", "ENOENT")
attempt("the host's users", "open('/etc/shadow').read()", "ENOENT")
attempt("the root of the agent", "os.listdir(f'/proc/{agent}/root')", "EACCES")
attempt("writing to the host's programs", "open('/usr/bin/podsandbox-test', 'w'); os.unlink('/usr/bin/podsandbox-test')", "EROFS")
attempt("writing to the root", "open('/podsandbox-test', 'w'); os.unlink('/podsandbox-test')", "EROFS")
attempt("replacing the agent", "open('/opt/podsandbox/podsandbox-agent', 'r+b')", "EROFS EACCES", outside=False)
attempt("removing the agent", "os.unlink('/opt/podsandbox/podsandbox-agent')", "EROFS EBUSY", outside=False)
attempt("making a device", "os.mknod(given[1], stat.S_IFBLK | 0o600, os.makedev(7, 0)); os.unlink(given[1])", "EPERM")
attempt("the log of the kernel as a device", "os.open('/dev/kmsg', os.O_RDONLY)", "ENOENT")
attempt("a device by its number", "os.mknod(given[1], stat.S_IFCHR | 0o600, os.makedev(1, 1)); os.open(given[1], os.O_RDONLY)", "EPERM",
        outside=False)
attempt("a file by its handle", "call(303, -100, b'/', ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128)), "
        "ctypes.byref(ctypes.c_int()), 0)", "EPERM")
attempt("opening by a handle", "call(304, -100, ctypes.create_string_buffer(struct.pack('Ii', 8, 1) + bytes(8)), 0)", "EPERM", outside=False)

# --- mounts and roots
attempt("mounting", "call(165, b'none', b'/tmp', b'tmpfs', 0, 0)", "EPERM")
attempt("making the root writable", "call(165, 0, b'/', 0, 0x1020, 0)", "EPERM", outside=False)
attempt("unmounting", "call(166, b'/proc', 2)", "EPERM")
attempt("mounting by descriptors", "call(430, b'tmpfs', 0)", "EPERM")
attempt("taking a mount", "call(428, -100, b'/', 1)", "EPERM")
attempt("another root", "os.chroot('/tmp')", "EPERM")
attempt("exchanging the root", "call(155, b'/tmp', b'/tmp')", "EPERM", outside=False)

# --- namespaces
attempt("a user namespace", "call(272, 0x10000000)", "EPERM")
attempt("a mount namespace", "call(272, 0x20000)", "EPERM")
attempt("a process in a user namespace", "os._exit(0) if call(56, 0x10000011, 0, 0, 0, 0) == 0 else None", "EPERM")
attempt("the same by the newer call", "a = ctypes.create_string_buffer(struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0))\n"
        "os._exit(0) if call(435, a, 64) == 0 else None", "ENOSYS")
attempt("entering a namespace", "call(308, os.open('/proc/self/ns/uts', os.O_RDONLY), 0)", "EPERM")
attempt("the namespaces of the agent", "os.readlink(f'/proc/{agent}/ns/mnt')", "EACCES")
attempt("a user namespace by a 32-bit call", "machine_code('53 bb00000010 b836010000 cd80 5b c3'.replace(' ', ''))", "EPERM ENOSYS")
attempt("a user namespace by an x32 call", "call(0x40000000 | 272, 0x10000000)", "EPERM ENOSYS", outside=False)

# --- processes: the agent, the host's, other sandboxes'
attempt("tracing the agent", "call(101, 16, 1, 0, 0)", "EPERM", outside=False)
attempt("the agent's memory", "open(f'/proc/{agent}/mem', 'rb')", "EACCES")
attempt("the agent's memory by a call", "b = ctypes.create_string_buffer(8)\nv = ctypes.create_string_buffer(struct.pack('PN', ctypes.addressof(b), 8))\n"
        "call(310, 1, v, 1, v, 1, 0)", "EPERM", outside=False)
attempt("the agent's descriptors", "os.listdir(f'/proc/{agent}/fd')", "EACCES")
attempt("a descriptor of the agent's", "call(438, call(434, 1, 0), 3, 0)", "EPERM", outside=False)
attempt("the agent's environment", "open(f'/proc/{agent}/environ').read()", "EACCES")
attempt("a signal to a process of the host", "os.kill(int(given[2]), 0)", "ESRCH")
attempt("a limit for the agent", "call(302, agent, 7, ctypes.create_string_buffer(struct.pack('QQ', 64, 64)), 0)", "EPERM")
attempt("comparing with the agent", "call(312, agent, os.getpid(), 1, 0, 0)", "EPERM")

# --- the kernel's settings and machinery
attempt("what the kernel does with a crash", "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)", "EACCES EROFS")
attempt("a setting of memory", "os.open('/proc/sys/vm/drop_caches', os.O_WRONLY)", "EACCES EROFS")
attempt("the magic key", "os.open('/proc/sysrq-trigger', os.O_WRONLY)", "EACCES EROFS ENOENT")
attempt("the devices of the machine", "os.listdir('/sys/class')", "ENOENT")
attempt("leaving the control group", "os.open(given[3] + '/cgroup.procs', os.O_WRONLY)", "EROFS EACCES ENOENT")
attempt("changing the control group", "os.open(given[3] + '/' + given[4], os.O_WRONLY)", "EROFS EACCES ENOENT", outside=False)
attempt("the kernel's log", "call(103, 10, 0, 0)", "EPERM")
attempt("a program for the kernel", "call(321, 0, ctypes.create_string_buffer(struct.pack('5I', 2, 4, 4, 1, 0) + bytes(100)), 120)", "EPERM")
attempt("a ring of requests", "call(425, 1, ctypes.create_string_buffer(120))", "EPERM")
attempt("counting events", "call(298, ctypes.create_string_buffer(struct.pack('IIQ', 1, 112, 0) + bytes(96)), 0, -1, -1, 0)", "EPERM")
attempt("faults handled by a program", "call(323, 1)", "EPERM")
attempt("adding a key", "call(248, b'user', b'podsandbox-test', b'x', 1, -2)", "EPERM")
attempt("reading a key ring", "call(250, 0, -3, 0)", "EPERM")
attempt("asking for a key", "call(249, b'user', b'podsandbox-test', 0, 0)", "EPERM", outside=False)
attempt("a module", "call(175, b'', 0, b'')", "EPERM", outside=False)
attempt("another kernel", "call(246, 0, 0, 0, 0)", "EPERM", outside=False)
attempt("a restart of the machine", "call(169, 0, 0, 0, 0)", "EPERM", outside=False)
attempt("swap", "call(167, b'/tmp/swap', 0)", "EPERM", outside=False)
attempt("accounting", "call(163, b'/tmp/acct')", "EPERM", outside=False)
attempt("the clock", "call(227, 0, ctypes.create_string_buffer(16))", "EPERM", outside=False)
attempt("the hostname", "socket.sethostname('podsandbox-test')", "EPERM")
attempt("addresses that are not random", "call(135, 0x0040000)", "ENOSYS EPERM")
attempt("a place in memory of another node", "call(279, 0, 0, 0, 0, 0, 0)", "EPERM")

# --- terminals
attempt("typing into a terminal", "m, s = os.openpty(); fcntl.ioctl(s, termios.TIOCSTI, b'x')", "EPERM")
attempt("the same with more bits", "m, s = os.openpty(); call(16, s, 0x100005412, b'x')", "EPERM")

# --- privileges
attempt("becoming root", "os.setuid(0)", "EPERM EINVAL")
attempt("another group", "os.setgroups([0])", "EPERM EINVAL")
attempt("a program that is root", "os.statvfs('/usr').f_flag & os.ST_NOSUID and refused(errno.EPERM)", "EPERM")
attempt("more files than allowed", "call(302, 0, 7, ctypes.create_string_buffer(struct.pack('QQ', 1 << 19, 1 << 19)), 0)", "EPERM", outside=False)
attempt("a core file", "call(302, 0, 4, ctypes.create_string_buffer(struct.pack('QQ', 1 << 20, 1 << 20)), 0)", "EPERM")
attempt("being kept when memory is short", "os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000')", "EACCES EPERM", outside=False)
attempt("going first", "os.nice(-5)", "EPERM EACCES")
attempt("running in real time", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))", "EPERM")

# --- the network
attempt("a listener of the host by an abstract name", "socket.socket(socket.AF_UNIX).connect('\\0' + given[5])", "ECONNREFUSED")
attempt("the API through loopback", "socket.create_connection(('127.0.0.1', int(given[6])))", "ECONNREFUSED")
attempt("a way out", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))", "ENETUNREACH", outside=False)
attempt("raw packets", "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)", "EPERM")
attempt("packets of the link", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)", "EPERM")
attempt("ciphers of the kernel", "socket.socket(38, socket.SOCK_SEQPACKET)", "EPERM", outside=False)
attempt("a socket to the machine below", "socket.socket(40, socket.SOCK_STREAM)", "EPERM", outside=False)


class UserServer(LocalServer):
    """As a user who may do nothing: what keeps its sandboxes in is the user namespaces of the kernel alone."""

    def __init__(self, directory):
        super().__init__(None, directory)
        let_others_pass(directory)
        os.chown(directory, USER, USER)

    def command(self):
        return ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups", "--inh-caps=-all", *super().command()]


@pytest.fixture(scope="module", params=["root", "user"])
def cloud(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("escape")
    server = (LocalServer(None, directory) if request.param == "root" else UserServer(directory)).start()
    with open(f"/proc/{server.pid()}/status") as status:
        line = next(line for line in status if line.startswith("Uid:"))
    assert set(line.split()[1:]) == {"0" if request.param == "root" else str(USER)}
    yield server
    server.stop()
    server.end_boxes()


@pytest.fixture
def server(cloud):
    return cloud


@pytest.fixture(scope="module")
def boxes(cloud):
    """The one that tries, and another that has something to hide."""
    client = cloud.client()
    for id in ("inside", "other"):
        client.create(id)
    yield "inside", "other"
    for id in ("inside", "other"):
        client.delete(id)


@pytest.fixture(scope="module")
def given(cloud, tmp_path_factory):
    """What attempts are made at: a file of the host, a path to make something at, a process, a control group and its limit,
    an abstract name, a port."""
    secret = tmp_path_factory.mktemp("host") / "secret"
    secret.write_text("of the host")
    secret.chmod(0o644)
    groups = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
    group, limit = groups[0] if os.path.isdir(groups[0][0]) else groups[1]
    with socket.socket(socket.AF_UNIX) as listener:
        name = f"podsandbox-test-{os.getpid()}"
        listener.bind("\0" + name)
        listener.listen(64)
        yield [str(secret), "/tmp/podsandbox-test-device", str(cloud.pid()), group, limit, name, str(cloud.port)]


def run_outside(source, given):
    command = ["unshare", "--mount", "--uts", "--ipc", sys.executable, "-c", RUN, source, *given]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60,
                            env={**os.environ, "OUTSIDE": "1"})
    assert result.returncode == 0, result
    return result.stdout.split()


@pytest.mark.parametrize("it", ATTEMPTS, ids=[one.name.replace(" ", "-") for one in ATTEMPTS])
def test_refused(client, boxes, given, it):
    result = client.exec(boxes[0], ["/usr/bin/python3", "-c", RUN, it.source, *given])
    words = result["stdout"].split()
    assert words[:2] == ["tried", "refused"] and words[2] in it.errors, (it, result)
    if it.outside:
        words = run_outside(it.source, given)
        if words[1:] in (["refused", "ENOSYS"], ["refused", "ENOENT"], ["refused", "EOPNOTSUPP"]):
            pytest.skip(f"refused inside, but this machine does not have it at all: {words[2]}")
        assert words == ["tried", "done"], (it, words)
    assert client.sandbox(boxes[0])["state"] == "running"


def test_nobody_types_into_his_own_terminal(client, boxes):
    """Nor does what is in it hold a descriptor of the other end."""
    script = ("import fcntl, os, termios\ntry:\n fcntl.ioctl(0, termios.TIOCSTI, b'x')\nexcept OSError as e:\n print(e.strerror)\n"
              "print(sorted(os.readlink(f'/proc/self/fd/{fd}').split('/')[1] for fd in range(3)))")
    with Attached(client, boxes[0], terminal(client, boxes[0], ["python3", "-c", script])) as me:
        assert me.end()["exit_code"] == 0
        assert bytes(me.out) == b"Operation not permitted\r\n['dev', 'dev', 'dev']\r\n"


def test_signals_do_not_reach_the_agent(client, cloud, boxes):
    agent = cloud.agent_pid(boxes[0])
    for name in ("KILL", "STOP", "TERM", "INT", "HUP", "SEGV", "USR1"):
        assert client.exec(boxes[0], f"kill -{name} 1")["exit_code"] == 0, name
        assert client.exec(boxes[0], ["true"])["exit_code"] == 0, name
    assert cloud.agent_pid(boxes[0]) == agent


def test_the_other_sandbox_is_out_of_sight(client, boxes):
    inside, other = boxes
    for path in ("/workspace", "/tmp", "/home/sandbox", "/dev/shm"):
        client.exec(other, f"echo hidden > {path}/hidden")
        assert client.exec(other, ["cat", f"{path}/hidden"])["stdout"] == "hidden\n"
        assert client.exec(inside, ["ls", "-A", path])["stdout"].count("hidden") == 0
    number = client.start(other, ["sleep", "61234"])["id"]
    look = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null | grep -c '^sleep 61234'"
    assert client.exec(other, look)["stdout"] == "1\n"
    assert client.exec(inside, look)["stdout"] == "0\n"
    listen = "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0hidden'); s.listen(); print('up', flush=True); time.sleep(60)"
    client.start(other, ["python3", "-c", listen])
    connect = ["python3", "-c", "import socket\ntry: socket.socket(socket.AF_UNIX).connect('\\0hidden'); print('in')\n"
               "except OSError as e: print(e.errno)"]
    while client.exec(other, connect)["stdout"] != "in\n":
        pass  # until it listens; the suite's time limit bounds it
    assert client.exec(inside, connect)["stdout"] == "111\n"
    assert number


def test_each_sandbox_has_its_own_user_outside(cloud, boxes):
    uids = {cloud.record(id)["host_uid"] for id in boxes}
    if isinstance(cloud, UserServer):
        pytest.skip("a user has but one uid")
    assert len(uids) == 2 and all(uid >= 200000 for uid in uids)
    for id in boxes:
        for pid, _ in cloud.processes([cloud.record(id)["uid"]]):
            with open(f"/proc/{pid}/status") as status:
                line = next(line for line in status if line.startswith("Uid:"))
            assert {int(word) for word in line.split()[1:]} == {cloud.record(id)["host_uid"]}


def test_no_descriptor_of_the_server_gets_in(cloud, boxes):
    """Neither the agent nor bubblewrap holds anything but what is its own."""
    wanted = ("/dev/null", "anon_inode:", "socket:", "pipe:", str(cloud.state / "boxes"), "/sys/fs/cgroup", "/memfd:", "/proc/")
    server = {os.readlink(f"/proc/{cloud.pid()}/fd/{fd}") for fd in os.listdir(f"/proc/{cloud.pid()}/fd")}
    for id in boxes:
        for pid, _ in cloud.processes([cloud.record(id)["uid"]]):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                assert target.startswith(wanted), (pid, fd, target)
                assert not target.startswith(("socket:", "pipe:")) or target not in server, (pid, fd, target)
