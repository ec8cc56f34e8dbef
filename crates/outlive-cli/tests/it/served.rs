//! A server of a sandbox, and the plainest client there is: what is sent is what the test says, byte for byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::sandbox::Sandbox;

/// How long anybody is listened to who says nothing. Only a test that fails waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) address: String,
    pub(crate) link: String,
    pub(crate) token: String,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {} {}", self.head, self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    pub(crate) fn start(sandbox: &Sandbox, words: &[&str]) -> Self {
        Self::begin(&mut sandbox.outlive(["serve", "--json", "--listen", "127.0.0.1:0"].iter().chain(words)), sandbox)
    }

    /// The same, of a command that serves and says so in JSON.
    pub(crate) fn begin(command: &mut std::process::Command, sandbox: &Sandbox) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it did not begin to serve: {line}"));
        let address = said["url"].as_str().unwrap().split("://").nth(1).unwrap().to_owned();
        let link = said["link"].as_str().unwrap().to_owned();
        let token = std::fs::read_to_string(sandbox.home().join("token")).unwrap().trim().to_owned();
        Self { child, address, link, token }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes as they are, and reads until the server closes the connection.
    pub(crate) fn send(&self, bytes: &[u8]) -> Reply {
        let mut stream = self.connect();
        // A server that has heard enough may not read the rest.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Reply { status, head: head.into(), body: body.into() }
    }

    /// A request with these headers and no others but what it cannot do without.
    pub(crate) fn request(&self, line: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut head = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        let has = |wanted: &str| headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
        if !has("host") {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        if !body.is_empty() || line.starts_with("POST") {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.send(format!("{head}\r\n{body}").as_bytes())
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.request(&format!("GET {path}"), &[("Authorization", &self.bearer())], "")
    }

    pub(crate) fn post(&self, path: &str, input: &Value) -> Reply {
        let headers = [("Authorization", &*self.bearer()), ("Content-Type", "application/json")];
        self.request(&format!("POST {path}"), &headers, &input.to_string())
    }

    /// A stream of events, once it has begun.
    pub(crate) fn listen(&self, path: &str) -> TcpStream {
        let mut stream = self.connect();
        let head = format!("Host: {}\r\nAuthorization: {}", self.address, self.bearer());
        write!(stream, "GET {path} HTTP/1.1\r\n{head}\r\n\r\n").unwrap();
        stream
    }

    /// A message of MCP, in a session or to begin one.
    pub(crate) fn mcp(&self, method: &str, params: &Value, session: Option<&str>) -> Reply {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let bearer = self.bearer();
        let mut headers = vec![
            ("Authorization", &*bearer),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
        ];
        headers.extend(session.map(|session| ("Mcp-Session-Id", session)));
        self.request("POST /mcp", &headers, &message)
    }

    /// Begins a session of MCP.
    pub(crate) fn begin_mcp(&self) -> String {
        let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } });
        let begun = self.mcp("initialize", &hello, None);
        let session = begun.header("mcp-session-id");
        session.unwrap_or_else(|| panic!("{} {}", begun.head, begun.body)).to_owned()
    }
}

/// What a message carries that answers a call of a tool: once, as text.
pub(crate) fn answered(message: &Value) -> Value {
    let result = &message["result"];
    assert!(result.get("structuredContent").is_none(), "it is sent twice: {result}");
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no answer: {message}"));
    serde_json::from_str(text).unwrap_or_else(|_| panic!("not JSON: {text}"))
}

/// `outlive mcp` on its standard input and output.
pub(crate) struct Agent {
    child: Child,
    input: Option<ChildStdin>,
    output: Option<BufReader<std::process::ChildStdout>>,
    asked: u64,
    /// What the server told of itself when the session began.
    pub(crate) instructions: String,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Agent {
    pub(crate) fn start(sandbox: &Sandbox, words: &[&str]) -> Self {
        Self::declaring(sandbox, words, &json!({}))
    }

    /// A client that knows what a task is.
    pub(crate) fn with_tasks(sandbox: &Sandbox, words: &[&str]) -> Self {
        Self::declaring(sandbox, words, &json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } }))
    }

    /// A client that knows what a task is, whose server has another parent than this process.
    pub(crate) fn below_a_parent(sandbox: &Sandbox, words: &[&str]) -> Self {
        let server = format!("{} mcp {}; :", super::sandbox::binary().display(), words.join(" "));
        let agent = Self::begun(&mut sandbox.command("sh", ["-c", &server]));
        agent.hello(&json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } }))
    }

    /// A client that has said nothing yet.
    pub(crate) fn silent(sandbox: &Sandbox, words: &[&str]) -> Self {
        Self::begun(&mut sandbox.outlive(["mcp"].iter().chain(words)))
    }

    fn declaring(sandbox: &Sandbox, words: &[&str], capabilities: &Value) -> Self {
        Self::silent(sandbox, words).hello(capabilities)
    }

    fn begun(command: &mut std::process::Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input: Some(input), output: Some(output), asked: 0, instructions: String::new() }
    }

    fn hello(mut self, capabilities: &Value) -> Self {
        let agent = &mut self;
        let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": { "name": "test", "version": "1" } });
        let answer = agent.ask("initialize", hello);
        assert_eq!(answer["result"]["serverInfo"]["name"], "outlive", "{answer}");
        agent.instructions = answer["result"]["instructions"].as_str().unwrap_or_default().to_owned();
        agent.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the session as a client does: it has nothing more to say.
    pub(crate) fn close(&mut self) {
        self.input = None;
    }

    /// Leaves without a word.
    pub(crate) fn abandon(&mut self) {
        self.output = None;
        self.input = None;
    }

    /// Kills the server.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Kills the parent of the server and then the server, neither of which may do anything about it.
    pub(crate) fn kill_with_parent(&mut self) {
        let server = super::running::child_of(self.pid());
        self.kill();
        super::sandbox::signal_pid(server, "KILL");
    }

    pub(crate) fn say(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    /// The next message, of which every line must be one.
    pub(crate) fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.as_mut().unwrap().read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a message: {line:?}"))
    }

    /// Asks for something without waiting for it. Answers with the id that the answer will have.
    pub(crate) fn begin(&mut self, method: &str, params: &Value) -> u64 {
        self.asked += 1;
        self.say(&json!({ "jsonrpc": "2.0", "id": self.asked, "method": method, "params": params }));
        self.asked
    }

    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, &params);
        loop {
            let message = self.hear();
            if message["id"] == id {
                return message;
            }
        }
    }

    /// What a tool answers, or what it failed with.
    pub(crate) fn call(&mut self, tool: &str, input: &Value) -> Value {
        let answer = self.ask("tools/call", json!({ "name": tool, "arguments": input }));
        assert!(answer["result"].is_object(), "{answer}");
        answered(&answer)
    }

    /// What a tool answers where nothing of it is left out.
    pub(crate) fn call_whole(&mut self, tool: &str, input: &Value) -> Value {
        let mut input = input.clone();
        if let Value::Object(fields) = &mut input {
            fields.insert("fields".into(), json!(["*"]));
        }
        self.call(tool, &input)
    }

    pub(crate) fn tools(&mut self) -> Vec<Value> {
        let (mut tools, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let asked = if cursor.is_null() { json!({}) } else { json!({ "cursor": cursor }) };
            let page = self.ask("tools/list", asked)["result"].clone();
            tools.extend(page["tools"].as_array().unwrap().iter().cloned());
            cursor = page["nextCursor"].clone();
            if cursor.is_null() {
                return tools;
            }
        }
    }
}
