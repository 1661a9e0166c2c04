//! The configurations of `docs/load-balancers.md`, each run by its program.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tidewire_testkit::wait_until;

use crate::admin::ask;
use crate::process::{Process, warn};

/// The block of the page in this language.
fn block(language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/load-balancers.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// A foreign program. Dropping it kills it.
struct Foreign(Child);

impl Drop for Foreign {
    fn drop(&mut self) {
        // The program may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a program is installed. Machines of continuous integration have it.
fn has(program: &str) -> bool {
    let found = Command::new(program)
        .arg("-v")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if found.is_ok() {
        return true;
    }
    let is_required = std::env::var_os("TIDEWIRE_PEERS_REQUIRED").is_some();
    assert!(!is_required, "there is no {program}: install it");
    warn(&format!(
        "no {program}: its configuration in docs/load-balancers.md was NOT tried"
    ));
    false
}

/// A server of methods that HAProxy may call, with its port and its health port.
fn server(flags: &[&str]) -> (Process, String, String) {
    let all = [&["serve", "--app=rpc", "--health=127.0.0.1:0"], flags].concat();
    let mut server = Process::start(&all);
    let line = server.expect("listening on ");
    let ready = server.expect("ready codec=");
    let port = |text: &str| {
        let digits = text.rsplit(':').next().unwrap();
        digits.split('/').next().unwrap().to_owned()
    };
    let (port, health) = (port(&line), port(&ready));
    (server, port, health)
}

fn call(address: &str) -> Option<String> {
    let ended = Process::start(&["call", address, "add", "2 40", "--timeout=5s"]).wait();
    (ended.status.code() == Some(0)).then(|| ended.text().trim().to_owned())
}

/// Regression: the usual check of HAProxy got status 400, and a healthy server was taken out of service.
#[test]
fn haproxy_sends_clients_to_servers_that_are_ready() {
    if !has("haproxy") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let flags = [
        "--bind=tcp://127.0.0.1:0",
        "--proxy-protocol-from=127.0.0.1",
        "--drain-delay-ms=5m",
    ];
    let (a, port_a, health_a) = server(&flags);
    let (_b, port_b, health_b) = server(&flags);
    let text = block("haproxy")
        .replacen(
            "global\n",
            &format!("global\n    stats socket {}\n", path("stats")),
            1,
        )
        .replace("bind :8443", &format!("bind unix@{}", path("front")))
        .replace(
            "10.0.0.11:8443",
            &format!("127.0.0.1:{port_a} port {health_a}"),
        )
        .replace(
            "10.0.0.12:8443",
            &format!("127.0.0.1:{port_b} port {health_b}"),
        );
    fs::write(path("haproxy.cfg"), text).unwrap();
    let mut command = Command::new("haproxy");
    command.args(["-db", "-f", &path("haproxy.cfg")]);
    let _haproxy = Foreign(command.stdout(Stdio::null()).spawn().unwrap());

    let check = |server: &str| {
        let mut stream = UnixStream::connect(path("stats")).ok()?;
        stream.write_all(b"show stat\n").ok()?;
        let mut table = String::new();
        stream.read_to_string(&mut table).ok()?;
        let row = format!("tidewire,{server},");
        let row = table.lines().find(|line| line.starts_with(&row))?;
        Some(row.to_owned())
    };
    for server in ["a", "b"] {
        wait_until("it is up", || check(server)?.contains("L7OK").then_some(()));
    }
    let front = format!("ipc://{}", path("front"));
    assert_eq!(call(&front).as_deref(), Some("42"));

    a.signal(rustix::process::Signal::TERM);
    wait_until("the drain is seen", || {
        let row = check("a")?;
        (row.contains(",DOWN,") && row.contains("L7STS")).then_some(())
    });
    for _ in 0..4 {
        assert_eq!(call(&front).as_deref(), Some("42"));
    }
}

/// nginx cannot choose a port, so another program may take the free port in between.
fn nginx(folder: &Path, text: &str) -> (Foreign, u16) {
    let log = folder.join("log");
    wait_until("nginx listens", || {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let text = text.replace("listen 8081", &format!("listen 127.0.0.1:{port}"));
        fs::write(folder.join("nginx.conf"), text).unwrap();
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(folder)
            .arg("-c")
            .arg(folder.join("nginx.conf"))
            .arg("-e")
            .arg(&log)
            .args(["-g", "daemon off; master_process off; pid nginx.pid;"]);
        let mut nginx = Foreign(command.spawn().unwrap());
        loop {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some((nginx, port));
            }
            if nginx.0.try_wait().unwrap().is_some() {
                warn(&fs::read_to_string(&log).unwrap_or_default());
                return None;
            }
            std::thread::yield_now();
        }
    })
}

#[test]
fn nginx_passes_websockets_on_and_leaves_out_a_server_that_is_gone() {
    if !has("nginx") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|name| format!("{name}_temp_path {name};\n"));
    let (a, port_a, _) = server(&["--bind=ws://127.0.0.1:0/chat"]);
    let (_b, port_b, _) = server(&["--bind=ws://127.0.0.1:0/chat"]);
    let text = block("nginx")
        .replace(
            "http {",
            &format!("http {{\naccess_log off;\n{}", temporary.concat()),
        )
        .replace("10.0.0.11:8080", &format!("127.0.0.1:{port_a}"))
        .replace("10.0.0.12:8080", &format!("127.0.0.1:{port_b}"));
    let (_nginx, port) = nginx(folder.path(), &text);
    let address = format!("ws://127.0.0.1:{port}/chat");
    assert_eq!(call(&address).as_deref(), Some("42"));
    drop(a);
    for _ in 0..4 {
        assert_eq!(call(&address).as_deref(), Some("42"));
    }
}

/// The kubelet asks like this test: HTTP/1.1 at the address of the pod. Ports and files belong to the test.
#[test]
fn the_command_and_the_probes_of_the_deployment_work() {
    let text = block("yaml");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for make in [
        vec!["cert", "dev", "--out", folder.path().to_str().unwrap()],
        vec!["token", "new", "ann", "--file", &path("tokens")],
    ] {
        let made = Process::start(&make).wait();
        assert_eq!(made.status.code(), Some(0), "{}", made.text());
    }
    let words = text
        .lines()
        .map(str::trim)
        .filter_map(|line| line.strip_prefix("- "));
    let words: Vec<String> = words
        .filter(|word| *word == "serve" || word.starts_with("--"))
        .map(|word| match word.split_once('=') {
            Some(("--bind", _)) => "--bind=tls://127.0.0.1:0".to_owned(),
            Some(("--health", _)) => "--health=127.0.0.1:0".to_owned(),
            Some(("--tls-cert", _)) => format!("--tls-cert={}", path("server.pem")),
            Some(("--tls-key", _)) => format!("--tls-key={}", path("server.key")),
            Some(("--auth-tokens", _)) => format!("--auth-tokens={}", path("tokens")),
            _ => word.to_owned(),
        })
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert!(words.len() > 8, "{words:?}");
    let mut server = Process::start(&words);
    let ready = server.expect("ready codec=");
    let health = ready
        .split("health=http://")
        .nth(1)
        .unwrap()
        .trim_end_matches('/');
    let paths: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once("httpGet: { path: ")?.1.split(',').next())
        .collect();
    assert_eq!(paths, ["/readyz", "/healthz"]);
    for path in paths {
        let answer = ask(
            health,
            &format!("GET {path}"),
            "User-Agent: kube-probe/1.31\r\n",
        );
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let value = |key: &str| -> u64 {
        let (_, rest) = text.split_once(key).unwrap();
        let digits = rest
            .trim_start()
            .split(|it: char| !it.is_ascii_digit())
            .next();
        digits.unwrap().parse().unwrap()
    };
    let drain = value("--drain-delay-ms=") + value("--drain-ms=");
    assert!(value("terminationGracePeriodSeconds:") > drain);
    assert!(value("--drain-delay-ms=") > 2 * value("periodSeconds:"));
}
