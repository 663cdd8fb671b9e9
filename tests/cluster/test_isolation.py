"""What code in the sandbox tries against the agent and its own pod, and is refused, on runc and gVisor."""

import json

import pytest

RUNTIMES = [None, "gvisor"]

ATTACK = r'''
import ctypes, errno, json, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
found = {}

def command(pid):
    try:
        return open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")
    except OSError:
        return []

pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
attach = [pid for pid in pids if b"attach" in command(pid)]
agents = [pid for pid in pids if pid == 1 or any(b"podsandbox-agent" in word for word in command(pid)[:1])]
found["attach"], found["agents"] = attach, agents

def dial():
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(5)
    peer.connect("\0podsandbox-agent")
    # a whole hello: length, channel 0, type HELLO, version 1 and a token of zeros
    fields = struct.pack(">HI", 1, 8) + struct.pack(">Q", 1) + struct.pack(">HI", 2, 32) + bytes(32)
    for shape in (struct.pack(">IIB", len(fields) + 5, 0, 1) + fields, struct.pack("<IIB", len(fields) + 5, 0, 1) + fields, bytes(64)):
        try:
            peer.sendall(shape)
        except OSError as failure:
            return type(failure).__name__
    answer = b""
    try:
        while piece := peer.recv(4096):
            answer += piece
    except socket.timeout:
        return "no answer but open"
    except OSError as failure:
        return type(failure).__name__
    return "closed, " + repr(answer[:80])

def attempt(name, function):
    try:
        found[name] = function()
    except OSError as failure:
        found[name] = errno.errorcode.get(failure.errno, str(failure))

def ptrace(pid):
    if libc.ptrace(16, pid, 0, 0) == 0:  # PTRACE_ATTACH
        return "attached"
    return errno.errorcode[ctypes.get_errno()]

def vm_read(pid):
    local = ctypes.create_string_buffer(8)
    class iovec(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
    mine, theirs = iovec(ctypes.addressof(local), 8), iovec(0x400000, 8)
    got = libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
    return f"read {got}" if got >= 0 else errno.errorcode[ctypes.get_errno()]

def pidfd_steal(pid):
    fd = libc.syscall(434, pid, 0)
    if fd < 0:
        return errno.errorcode[ctypes.get_errno()]
    stolen = libc.syscall(438, fd, 3, 0)
    return "stolen" if stolen >= 0 else errno.errorcode[ctypes.get_errno()]

attempt("dial", dial)
for pid in sorted(set(attach + agents)):
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        numbers = ["0"]
    for number in numbers:
        attempt(f"open_fd {pid} {number}", lambda: os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR))
        attempt(f"read_fd {pid} {number}", lambda: os.readlink(f"/proc/{pid}/fd/{number}"))
    attempt(f"mem {pid}", lambda: len(open(f"/proc/{pid}/mem", "rb").read(0) or open(f"/proc/{pid}/mem", "rb").name))
    attempt(f"environ {pid}", lambda: open(f"/proc/{pid}/environ").read())
    attempt(f"ptrace {pid}", lambda: ptrace(pid))
    attempt(f"vm_read {pid}", lambda: vm_read(pid))
    attempt(f"steal {pid}", lambda: pidfd_steal(pid))
program = command(1)[0].decode()
attempt("replace", lambda: os.rename(program, program + ".old") or "renamed")
attempt("overwrite", lambda: os.open(program, os.O_WRONLY))
print(json.dumps(found))
'''


@pytest.fixture(scope="module", params=RUNTIMES, ids=["runc", "gvisor"])
def box(request, cloud):
    record = cloud.client().create(ttl=3600, secrets=["hidden-value"], **({"runtime_class": request.param} if request.param else {}))
    yield record["id"]
    cloud.client().delete(record["id"], expect=(202, 204))


@pytest.fixture(scope="module")
def attacked(cloud, box):
    client = cloud.client()
    client.put(box, "attack.py", ATTACK)
    result = client.exec(box, ["python3", "attack.py"])
    assert result["exit_code"] == 0, result["stderr"]
    return json.loads(result["stdout"])


def refused(attacked, what):
    answers = {name: answer for name, answer in attacked.items() if name.startswith(what + " ")}
    assert answers and all(answer in ("EACCES", "EPERM", "ESRCH", "ENOENT", "ENOSYS", "EIO") for answer in answers.values()), answers


def test_the_attack_sees_its_targets(attacked):
    """Else the refusals below would mean nothing."""
    assert 1 in attacked["agents"] and attacked["attach"], attacked


def test_dialling_the_socket(attacked, client, box):
    assert attacked["dial"].startswith("closed") or attacked["dial"] in ("ECONNREFUSED", "ConnectionResetError", "BrokenPipeError",
                                                                         "ECONNRESET", "EPIPE"), attacked["dial"]
    assert "HELLO_OK" not in attacked["dial"]
    assert client.exec(box, ["echo", "still ours"])["stdout"] == "still ours\n"
    events = client.get(f"/v1/sandboxes/{box}/events")["items"]
    assert not [event for event in events if event["type"] == "degraded"]


def test_descriptors_of_attach_and_agent(attacked):
    """gVisor shows their numbers; nothing more."""
    refused(attacked, "open_fd")
    refused(attacked, "read_fd")


def test_ptrace(attacked):
    refused(attacked, "ptrace")
    refused(attacked, "vm_read")
    refused(attacked, "steal")


def test_memory_and_environment(attacked):
    refused(attacked, "mem")
    refused(attacked, "environ")


def test_the_program_cannot_be_replaced(attacked):
    assert attacked["replace"] in ("EROFS", "EACCES", "EPERM", "EBUSY"), attacked["replace"]
    assert attacked["overwrite"] in ("EROFS", "EACCES", "EPERM", "ETXTBSY"), attacked["overwrite"]


def test_orphans_are_no_way_in(client, box):
    """An orphan's parent is the agent itself: it must not be taken for a peer from outside."""
    client.put(box, "attack.py", ATTACK)
    script = "(setsid sh -c 'sleep 0.3; python3 attack.py >orphan.json 2>orphan.err; touch orphan.done' &) ; true"
    client.exec(box, script)
    assert client.exec(box, "while ! test -e orphan.done; do sleep 0.1; done", timeout=60)["exit_code"] == 0
    found = json.loads(client.read(box, "orphan.json"))
    test_dialling_the_socket(found, client, box)


def test_what_the_pod_gives_away(client, box):
    """B55: no credential, no service variables, no token of the cluster."""
    assert client.exec(box, "ls -d /var/run/secrets/kubernetes.io /run/secrets/kubernetes.io")["exit_code"] != 0
    everything = client.exec(box, "env; cat /proc/self/mountinfo; tr '\\0' '\\n' </proc/self/environ")["stdout"]
    everything = everything.replace("PODSANDBOX_INFO=/tmp/sandbox.json", "")  # where its own limits stand
    for word in ("hidden-value", "eyJhbGciOi", "PODSANDBOX", "kube-api-access"):
        assert word not in everything


def test_signals_to_the_agent(client, box):
    """Linux keeps them from the first process of a namespace. gVisor does not: there the sandbox ends itself, and says so."""
    record = client.sandbox(box)
    client.request("POST", f"/v1/sandboxes/{box}/execs", (200, 410), json={"cmd": ["sh", "-c", "kill -STOP 1; kill -SEGV 1; kill -KILL 1"]})
    if record["runtime_class"] == "gvisor":
        ended = client.wait_state(box, "failed")
        assert ended["reason"] == "container_exited" and "137" in ended["message"]
    else:
        assert client.exec(box, ["true"])["exit_code"] == 0
