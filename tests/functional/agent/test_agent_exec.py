"""Executions: what runs, what it gets, what it says, how it ends."""

import hashlib
import os
import signal

import pytest

import frames
from conftest import wait_for


def outcome(run):
    return {key: run.result[key] for key in ("exit_code", "signal", "error") if key in run.result}


def test_true(client):
    run = client.run("true")
    assert outcome(run) == {"exit_code": 0}
    assert run.result["total_out"] == run.result["total_err"] == 0
    assert run.started["joined"] == 0 and run.started["pid"] > 1
    assert run.result["wall_us"] > 0 and run.result["max_rss"] > 0
    assert run.result["oom"] in (0, 2) and run.result["timed_out"] == 0


def test_output_and_code(client):
    run = client.run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (bytes(run.out), bytes(run.err)) == (b"out\n", b"err\n")
    assert outcome(run) == {"exit_code": 3}


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV"])
def test_death_by_signal(client, name):
    run = client.run("sh", "-c", f"kill -{name} $$")
    assert outcome(run) == {"signal": signal.Signals["SIG" + name]}


def test_cpu_time_and_memory_are_the_tree_s(client):
    script = "import os\nif os.fork(): os.wait()\nelse:\n b=bytearray(64<<20)\n while sum(os.times()[:2])<0.2: pass"
    run = client.run("python3", "-c", script)
    assert run.result["cpu_us"] > 150000
    assert run.result["max_rss"] > 64 << 20


# --- what cannot start


def test_missing_program(client):
    run = client.run("no-such-program-at-all")
    assert outcome(run) == {"exit_code": 127, "error": "command_not_found"}
    assert outcome(client.run("/nowhere/program")) == {"exit_code": 127, "error": "command_not_found"}
    assert outcome(client.run("")) == {"exit_code": 127, "error": "command_not_found"}


def test_not_executable(client):
    (client.work / "plain").write_text("#!/bin/sh\n")
    (client.work / "garbage").write_bytes(b"\x01\x02\x03")
    (client.work / "garbage").chmod(0o755)
    assert outcome(client.run("./plain")) == {"exit_code": 126, "error": "not_executable"}
    assert outcome(client.run("./garbage")) == {"exit_code": 126, "error": "not_executable"}
    assert outcome(client.run("/")) == {"exit_code": 126, "error": "not_executable"}
    assert outcome(client.run("plain", env=[f"PATH={client.work}"])) == {"exit_code": 126, "error": "not_executable"}


def test_missing_interpreter_is_told(client):
    (client.work / "script").write_text("#!/no/such/interpreter\n")
    (client.work / "script").chmod(0o755)
    run = client.run("./script")
    assert outcome(run) == {"exit_code": 127, "error": "command_not_found"}
    assert "interpreter" in run.result["message"]


def test_workdir(client):
    (client.work / "sub").mkdir()
    (client.work / "file").touch()
    assert client.run("pwd").out == f"{client.work}\n".encode()
    assert client.run("pwd", workdir="sub").out == f"{client.work}/sub\n".encode()
    assert client.run("pwd", workdir="/").out == b"/\n"
    assert outcome(client.run("pwd", workdir="/nowhere")) == {"error": "workdir_not_found"}
    assert outcome(client.run("pwd", workdir="file")) == {"error": "workdir_not_found"}


def test_B27_argument_limits(client):
    run = client.run("printf", "%s", "a" * 131071)
    assert run.out == b"a" * 131071 and outcome(run) == {"exit_code": 0}
    assert outcome(client.run("printf", "%s", "a" * 131072)) == {"error": "argument_too_long"}
    assert outcome(client.run("printf", *["b" * 100000] * 30)) == {"error": "argument_too_long"}
    assert outcome(client.run("true")) == {"exit_code": 0}


def test_NUL_in_an_argument_is_refused(client):
    for fields in ([("arg", b"a\0b")], [("arg", "true"), ("env", b"A=\0")], [("arg", "true"), ("workdir", b"/\0")]):
        channel = client.open("EXEC", [("exec_id", "n"), *fields])
        assert client.frame_of(channel).fields["error"] == "invalid_field"
    channel = client.open("EXEC", [("exec_id", "n")])
    assert client.frame_of(channel).fields["error"] == "invalid_field"


# --- what it gets


def environment(client, **fields):
    run = client.run("env", "-0", **fields)
    return dict(entry.split(b"=", 1) for entry in bytes(run.out).split(b"\0") if entry)


def test_environment_order_and_home(client):
    client.configure(env=["CONFIGURED=1", "FROM=configure", f"HOME={client.work}"], workdir=str(client.work))
    seen = environment(client, env=["FROM=exec", "X=$(A) `b`\n\"'\\"])
    assert seen[b"CONFIGURED"] == b"1" and seen[b"FROM"] == b"exec"
    assert seen[b"X"] == b"$(A) `b`\n\"'\\"
    assert seen[b"HOME"] == str(client.work).encode()
    assert seen[b"GIT_CONFIG_VALUE_0"] == str(client.work).encode()
    client.configure(env=[])
    seen = environment(client)
    assert b"CONFIGURED" not in seen and seen[b"FROM"] == b"image"
    assert seen[b"HOME"] == b"/tmp"  # the image's is not there
    assert environment(client, env=["HOME=/x", "GIT_CONFIG_COUNT=0"])[b"HOME"] == b"/x"


def test_path_is_the_resulting_one(client):
    tool = client.work / "tool"
    tool.write_text("#!/bin/sh\necho mine\n")
    tool.chmod(0o755)
    assert client.run("tool", env=[f"PATH=/nowhere:{client.work}:/bin"]).out == b"mine\n"
    assert client.run("tool", env=["PATH=:/bin"]).out == b"mine\n"  # empty: the workdir


def test_default_path(agents, tmp_path):
    client = agents(env={}).hello()
    run = client.run("env")
    assert outcome(run) == {"exit_code": 0} and b"PATH=" not in run.out


def test_B25_environment_names(client):
    for bad in ("=x", "A", "A\nB=x"):
        channel = client.open("EXEC", [("exec_id", "n"), ("arg", "true"), ("env", bad)])
        assert client.frame_of(channel).fields["error"] == "invalid_field"
    value = "it's \"x\" $(touch /tmp/pwn) `id`\nline2\t\\" + "v" * 65536
    assert environment(client, env=["V=" + value, "E="])[b"V"] == value.encode()


def test_process_state_is_clean(client):
    script = (
        "import os,signal;print(sorted(map(int,os.listdir('/proc/self/fd')))[:-1]);"
        "print(oct(os.umask(0)),os.getsid(0)==os.getpid());"
        "s=open('/proc/self/status').read();"
        "print([l.split()[1] for l in s.split('\\n') if l[:7] in ('SigBlk:','SigIgn:','SigCgt:')])"
    )
    run = client.run("python3", "-S", "-c", script)
    descriptors, umask, signals = run.out.decode().splitlines()
    assert descriptors == "[0, 1, 2]"
    assert umask == "0o22 True"
    blocked, ignored, _ = eval(signals)
    assert int(blocked, 16) == 0
    assert int(ignored, 16) & ~(1 << 12 | 1 << 24) == 0  # python ignores PIPE and XFSZ itself


def test_oom_score_is_higher_than_the_agent_s(agents):
    client = agents(user=12345).hello()
    run = client.run("sh", "-c", "cat /proc/self/oom_score_adj /proc/1/oom_score_adj")
    child, agent = map(int, run.out.split())
    assert child > agent or child == agent == 1000


def test_no_stdin_is_empty(client):
    run = client.run("cat")
    assert run.out == b"" and outcome(run) == {"exit_code": 0}


# --- bytes


@pytest.mark.parametrize("size", [0, 1, 4095, 65536, 65537, 5_000_000])
def test_stdin_to_stdout_is_exact(client, size):
    content = os.urandom(size)
    run = client.run("cat", input=content)
    assert hashlib.sha256(run.out).digest() == hashlib.sha256(content).digest()
    assert run.result["total_out"] == size


def test_B01_no_output_is_lost_when_it_is_read_slowly(client):
    run = client.start("sh", "-c", "seq 1 200000; echo end >&2")
    run.window = 10000
    run.finish()
    expected = b"".join(b"%d\n" % i for i in range(1, 200001))
    assert bytes(run.out) == expected and run.err == b"end\n"
    assert outcome(run) == {"exit_code": 0}


def test_no_credit_no_output_and_nothing_lost(client):
    run = client.start("sh", "-c", "echo x >&2; head -c 300000 /dev/zero")
    run.auto_credit = False
    run.until(lambda r: len(r.out) == 32768 and len(r.err) == 2)
    other = client.run("echo", "still here")
    assert other.out == b"still here\n"
    assert not any(f.channel == run.channel and f.name in ("DATA", "RESULT") and f.payload[:1] == b"\1" for f in client.waiting)
    run.auto_credit = True
    run.grant(1)
    run.finish()
    assert len(run.out) == 300000 and outcome(run) == {"exit_code": 0}


def test_stdin_stall_blocks_only_itself(client):
    run = client.start("sleep", "1000", stdin=True)
    run.feed(bytes(1_000_000))
    with pytest.raises(TimeoutError):
        run.until(lambda r: False, timeout=0.3)
    assert client.run("echo", "ok").out == b"ok\n"
    sent = run.sender.at
    assert sent < 700_000  # the window, the pipe, and no more
    run.signal(signal=9)
    run.sender = None
    assert run.finish()["signal"] == 9


def test_stdin_that_is_not_read_is_no_error(client):
    run = client.run("true", input=bytes(3_000_000), timeout=20)
    assert outcome(run) == {"exit_code": 0}
    run = client.run("sh", "-c", "exec 0<&-; sleep 0.2; echo done", input=bytes(3_000_000))
    assert run.out == b"done\n"


def test_B06_output_after_the_end_of_stdin(client):
    run = client.run("sh", "-c", "cat >/dev/null; sleep 0.3; echo late", input=b"abc")
    assert run.out == b"late\n"


def test_stdin_by_total(client):
    run = client.start("cat", stdin=True, stdin_total=3)
    client.data(run.channel, 0, 0, b"abc")
    run.finish()
    assert run.out == b"abc"
    run = client.start("cat", stdin=True, stdin_total=0)
    assert run.finish()["exit_code"] == 0


def test_repeated_stdin_bytes_are_skipped(client):
    run = client.start("cat", stdin=True)
    client.data(run.channel, 0, 0, b"abcdef")
    client.data(run.channel, 0, 2, b"cdefgh")
    client.data(run.channel, 0, 0, b"ab")
    client.end(run.channel, 0, 8)
    run.finish()
    assert run.out == b"abcdefgh"


# --- the end


def test_B08_background_child_does_not_hold_the_end(client):
    run = client.run("sh", "-c", "sleep 60 & echo hi", timeout=10)
    assert run.out == b"hi\n" and outcome(run) == {"exit_code": 0}


def test_background_child_lives_on_and_gets_no_SIGPIPE(client):
    flag = client.work / "flag"
    script = f"(sleep 0.5; i=0; while [ $i -lt 3000 ]; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx || exit; i=$((i+1)); done; echo $i > {flag}.new; mv {flag}.new {flag}) & echo hi"
    run = client.run("sh", "-c", script)
    assert run.out.startswith(b"hi\n")
    wait_for(flag.exists, "the flag of the background child")
    assert flag.read_text() == "3000\n"


def test_background_writer_without_pause_does_not_hold_the_end(client):
    run = client.run("sh", "-c", "yes & echo $!", timeout=20)
    assert outcome(run) == {"exit_code": 0}
    numbers = [line for line in bytes(run.out).splitlines() if line.isdigit()]
    client.run("kill", "-9", numbers[0].decode())


def test_closed_output_is_no_end(client):
    run = client.run("sh", "-c", "exec 1>&- 2>&-; sleep 0.3; exit 5")
    assert outcome(run) == {"exit_code": 5}


# --- timeouts and signals


TREE = (
    "trap '' TERM; (trap '' TERM; exec -a MARK7 sleep 300) & "
    "(setsid bash -c 'trap \"\" TERM; exec -a MARK7 sleep 300') & "
    "(setsid bash -c '(exec -a MARK7 sleep 300 &) ; exit 0') & "
    "exec -a MARK7b sleep 300"
)


def marked(agent):
    return [line for line in agent.commands() if "MARK7" in line]


def test_B07_timeout_ends_the_whole_tree(client, agent):
    run = client.start("bash", "-c", TREE, timeout_ms=1000, grace_ms=200)
    wait_for(lambda: len(marked(agent)) == 4, "the tree")  # the scan does find them
    result = run.finish()
    assert result["timed_out"] == 1 and result["error"] == "timeout" and result["signal"] == signal.SIGKILL
    assert marked(agent) == []
    assert outcome(client.run("true")) == {"exit_code": 0}


def test_timeout_keeps_the_output_so_far(client):
    run = client.run("sh", "-c", "printf partial; sleep 60", timeout_ms=300)
    assert run.out == b"partial" and run.result["timed_out"] == 1
    assert run.result["signal"] == signal.SIGTERM


def test_timeout_with_a_silent_background_child(client):
    run = client.run("sh", "-c", "sleep 300 & wait", timeout_ms=300, timeout=10)
    assert run.result["timed_out"] == 1


def test_TERM_is_answered_in_the_grace(client):
    run = client.start("sh", "-c", "trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.05; done")
    run.until(lambda r: r.out == b"up\n")
    run.signal(grace_ms=10000)
    run.finish()
    assert run.out == b"up\nbye\n" and outcome(run) == {"exit_code": 9}


def test_kill_of_the_tree_on_order(client, agent):
    run = client.start("bash", "-c", TREE)
    wait_for(lambda: len(marked(agent)) == 4, "the tree")
    run.signal(grace_ms=100)
    assert run.finish()["signal"] == signal.SIGKILL
    assert marked(agent) == []


def test_kill_at_once(client, agent):
    run = client.start("bash", "-c", TREE)
    wait_for(lambda: len(marked(agent)) == 4, "the tree")
    run.signal(grace_ms=0)
    run.finish()
    assert marked(agent) == []


BOMB = """
import os, resource
os.setgid(4321)
resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
os.setuid(4321)
print("up", flush=True)
while True:
    try:
        if os.fork() == 0 and %s:
            os.setsid()
    except OSError:
        pass
"""


@pytest.mark.parametrize("new_sessions", [False, True])
def test_fork_bomb_is_ended(client, agent, new_sessions):
    run = client.start("python3", "-S", "-c", BOMB % new_sessions, timeout_ms=60000)
    run.until(lambda r: r.out == b"up\n")
    wait_for(lambda: 50 < len(agent.commands()) < 150, "the bomb")
    run.signal(grace_ms=0)
    assert run.finish(60)["signal"] == signal.SIGKILL
    wait_for(lambda: agent.commands() == [], "end of the bomb")


def test_signal_goes_to_the_process_group(client):
    run = client.start("sh", "-c", "trap 'echo int' INT; sleep 100; echo after")
    wait = client.run("sh", "-c", "until pidof sleep >/dev/null; do :; done")
    assert outcome(wait) == {"exit_code": 0}
    run.signal(signal=signal.SIGINT)
    run.finish()
    assert run.out == b"int\nafter\n"


def test_background_tree_can_be_killed_after_the_end(client, agent):
    run = client.start("bash", "-c", "(exec -a MARK7 sleep 300) & echo hi")
    run.finish()
    assert len(marked(agent)) == 1
    run.signal(grace_ms=100)
    wait_for(lambda: marked(agent) == [], "end of the background child")


# --- the cgroup


def cgroup_v2(tmp_path, **files):
    folder = tmp_path / "cgroup"
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return folder


def events(kills):
    return f"low 0\nhigh 0\nmax 12\noom 3\noom_kill {kills}\noom_group_kill 0\n"


def test_limits_of_cgroup_v2(agents, tmp_path):
    folder = cgroup_v2(
        tmp_path, memory_max="2147483648\n", pids_max="512\n", cpu_max="250000 100000\n", memory_current="4096\n",
        cpu_stat="usage_usec 77\nuser_usec 70\n", pids_current="3\n", memory_events=events(2),
    )
    client = agents(cgroup=folder).client()
    hello = client.hello()
    assert (hello["memory_limit"], hello["pids_limit"], hello["cpu_milli"]) == (2 << 30, 512, 2500)
    usage = client.request("USAGE")
    assert (usage["memory"], usage["cpu_us"], usage["pids"], usage["oom_kills"]) == (4096, 77, 3, 2)


def test_no_limits(agents, tmp_path):
    folder = cgroup_v2(tmp_path, memory_max="max\n", pids_max="max\n", cpu_max="max 100000\n")
    hello = agents(cgroup=folder).client().hello()
    assert not {"memory_limit", "pids_limit", "cpu_milli"} & set(hello)


def test_limits_of_cgroup_v1(agents, tmp_path):
    folder = tmp_path / "v1"
    for name, text in {
        "memory/memory.limit_in_bytes": "1048576\n", "pids/pids.max": "64\n", "cpu/cpu.cfs_quota_us": "50000\n",
        "cpu/cpu.cfs_period_us": "100000\n", "cpuacct/cpuacct.usage": "5000\n",
        "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    client = agents(cgroup=folder).client()
    hello = client.hello()
    assert (hello["memory_limit"], hello["pids_limit"], hello["cpu_milli"]) == (1 << 20, 64, 500)
    usage = client.request("USAGE")
    assert (usage["cpu_us"], usage["oom_kills"]) == (5, 4)
    (folder / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    again = frames.Client.connect(client.keep.getpeername())
    assert "memory_limit" not in again.hello()
    again.close()


def test_oom_is_told(agents, tmp_path):
    folder = cgroup_v2(tmp_path, memory_events=events(0))
    client = agents(cgroup=folder).hello()

    def run(kills, end):
        (tmp_path / "next").write_text(events(kills))
        return client.run("sh", "-c", f"cat {tmp_path}/next > {folder}/memory.events; {end}").result["oom"]

    assert run(0, "true") == 0
    assert run(1, "kill -9 $$") == 1
    assert run(1, "kill -9 $$") == 0
    assert run(2, "exit 1") == 1  # some child of the only exec
    other = client.start("sleep", "1000", exec_id="other")
    other.wait_started()
    assert run(3, "exit 0") == 0  # whose it was is not known
    assert run(4, "exit 137") == 1
    (folder / "memory.events").write_text("")
    assert client.run("true").result["oom"] == 2
    other.signal(grace_ms=0)
    other.finish()


def test_out_of_descriptors(agents):
    agent = agents(files=128)
    client = agent.hello()
    runs = [client.start("sleep", "1000", exec_id=f"r{i}") for i in range(40)]
    for run in runs:
        run.wait_started()
    failed = [run for run in runs if run.result]
    assert 5 < len(failed) < 30 and {run.result["error"] for run in failed} == {"exec_failed"}
    client = agent.hello()  # another stream has a place
    for run in runs:
        again = client.start(exec_id=run.exec_id, join=1)
        again.wait_started()
        if not again.result:
            again.signal(grace_ms=0)
            again.finish()
        again.commit()
    assert client.run("sh", "-c", "ulimit -n").out == b"128\n"
    assert client.request("STAT", ("path", "/"))["type"] == "d"


# --- orphans


def test_B37_orphans_are_reaped(client, agent):
    script = "i=0; while [ $i -lt 600 ]; do (sh -c 'sleep 0.01 &' ); i=$((i+1)); done"
    for _ in range(2):
        run = client.run("sh", "-c", script, timeout=60)
        assert outcome(run) == {"exit_code": 0}

    def zombies():
        found = 0
        for pid in agent.processes():
            try:
                found += open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
            except OSError:
                pass
        return found

    wait_for(lambda: zombies() == 0 and agent.commands() == [], "an end of the orphans")
    wait_for(lambda: len(agent.processes()) == 2, "an end of the supervisors")  # PID 1 and the zygote


def test_killed_supervisor_ends_its_tree(client, agent):
    keeper = client.start("sleep", "100", exec_id="other")
    keeper.wait_started()
    run = client.start("bash", "-c", TREE)
    wait_for(lambda: len(marked(agent)) == 4, "the tree")
    run.until(lambda r: r.started)
    parent = client.run("sh", "-c", f"awk '/PPid/{{print $2}}' /proc/{run.started['pid']}/status")
    client.run("kill", "-9", parent.out.decode().strip())
    assert run.finish()["error"] == "exec_failed"
    wait_for(lambda: marked(agent) == [], "an end of the tree")
    assert agent.commands() == ["sleep 100"]
    keeper.signal(signal=9)
    assert keeper.finish()["signal"] == 9


def test_many_at_once(client):
    runs = [client.start("sh", "-c", f"echo {i}; exit {i}") for i in range(100)]
    for i, run in enumerate(runs):
        run.finish()
        run.commit()
        assert run.out == b"%d\n" % i and run.result["exit_code"] == i
