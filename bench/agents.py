"""What a session of work costs an agent, in bytes and calls, with the MCP server of outlive and of other process managers.

The work is the same with each: start a server and wait until it is ready, run 200 tests of which one fails, read why, mend it, run them
again, stop the server. Counted are the tool list, and the arguments and answers of every call. Tools that do not wait are polled once a
second, as an agent would at the most. `python3 bench/agents.py NAME COMMAND…` measures one server. Only outlive and pitchfork have a
session here; of any other NAME the tool list is measured.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time

TESTS = """for i in range(200): print(f'test {i} ok')
assert open('answer').read() == '42', 'answer is wrong'
"""
MEND = "42"
POLL = 1.0
LIMIT = 60


class Server:
    def __init__(self, command, directory):
        environment = {**os.environ, "HOME": directory, "OUTLIVE_HOME": f"{directory}/.outlive"}
        self.process = subprocess.Popen(command, cwd=directory, env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.asked = self.calls = self.bytes = 0
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self.ask("initialize", hello)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, method, params):
        self.asked += 1
        self.send({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params})
        while True:
            message = json.loads(self.process.stdout.readline())
            if message.get("id") == self.asked:
                return message["result"]

    def tools(self):
        return self.ask("tools/list", {})["tools"]

    def call(self, tool, **arguments):
        call = {"name": tool, "arguments": arguments}
        result = self.ask("tools/call", call)
        self.calls += 1
        self.bytes += length(call) + length(result)
        return result["content"][0]["text"]

    def until(self, is_met, tool, **arguments):
        """Polls a tool until its answer is as is wanted."""
        for _ in range(LIMIT):
            answer = self.call(tool, **arguments)
            if is_met(answer):
                return answer
            time.sleep(POLL)
        raise SystemExit(f"{tool} did not answer as was expected: {answer}")


def length(value):
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def mend(directory, answer=MEND):
    with open(f"{directory}/answer", "w") as file:
        file.write(answer)


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def outlive(server, directory):
    ready = {"unique": ["dev"], "port": ["web"], "ready_http": "http://127.0.0.1:$PORT/", "watch": "30s"}
    web = json.loads(server.call("run", argv=["python3 -m http.server -b 127.0.0.1 $PORT"], shell=True, **ready))
    assert web["run"]["ready"], web
    test = {"argv": ["python3", "tests.py"], "name": "tests", "watch": "30s"}
    failed = json.loads(server.call("run", **test))
    assert failed["run"]["exit_code"] == 1 and "answer is wrong" in failed["output"], failed
    mend(directory)
    assert json.loads(server.call("run", **test))["run"]["state"] == "succeeded"
    server.call("cancel", runs=[web["id"]], wait=True)


def pitchfork(server, directory):
    """Its daemons are named by its configuration, which is not counted. Nothing tells that a daemon has ended but its state."""
    server.call("pitchfork_start", id=["web"])
    for word in ["answer is wrong", "tests passed"]:
        server.call("pitchfork_start", id=["tests"])
        server.until(lambda status: not is_running(status, "tests"), "pitchfork_status")
        assert word in server.call("pitchfork_logs", id=["tests"], n=5), word
        mend(directory)
    server.call("pitchfork_stop", id=["web"])


def is_running(status, name):
    daemons = json.loads(status)
    daemons = daemons if isinstance(daemons, list) else daemons["daemons"]
    found = [daemon for daemon in daemons if str(daemon.get("id", daemon.get("name"))).endswith(name)]
    return any("running" in json.dumps(daemon["status"]).lower() for daemon in found)


def configure_pitchfork(directory):
    port = free_port()
    with open(f"{directory}/pitchfork.toml", "w") as file:
        file.write(f"""[daemons.web]
run = "python3 -m http.server -b 127.0.0.1 {port}"
ready_http = "http://127.0.0.1:{port}/"
[daemons.tests]
run = "python3 tests.py && echo tests passed"
""")


def main():
    name, *command = sys.argv[1:]
    sessions = {"outlive": outlive, "pitchfork": pitchfork}
    with tempfile.TemporaryDirectory() as directory:
        with open(f"{directory}/tests.py", "w") as file:
            file.write(TESTS)
        mend(directory, "41")
        if name == "pitchfork":
            configure_pitchfork(directory)
        server = Server(command, directory)
        tools = server.tools()
        sessions.get(name, lambda *_: None)(server, directory)
        print(f"{name}: {len(tools)} tools, list {length(tools)} bytes; session {server.bytes} bytes in {server.calls} calls")
        server.process.stdin.close()
        server.process.wait(10)


if __name__ == "__main__":
    main()
