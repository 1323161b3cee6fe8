//! Who may use a volume, through the binary: changes that reach connected clients, the list of
//! clients, what a client's certificate gives, and certificates that are renewed.
//!
//! How: clients of our own over the unix socket, libnbd over TCP and TLS with certificates of
//! authorities that openssl makes. A change is asked for by the command line, and what the clients
//! can do is tried right after its answer.

use layby_tests::guest::{Data, Guest, kind};
use layby_tests::{
    Connection, HttpRequest, Node, Options, Request, available, binary, layby, must, python,
    small_levels,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The protocol's error number of what is not permitted.
const EPERM: u32 = 1;
/// The least bytes that are written.
const BLOCK: usize = 4096;

fn start(more: &str) -> (TempDir, PathBuf, Node) {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let levels = small_levels().config.expect("it has one");
    let node = Node::start(&dir, &Options::config(format!("{more}\n{levels}")));
    (work, dir, node)
}

fn open(node: &Node, volume: &str) -> Connection {
    Connection::open(&node.socket(), volume).expect("the node serves")
}

fn write(byte: u8) -> Request {
    Request::Write { offset: 0, data: vec![byte; BLOCK], fua: false }
}

fn read(client: &mut Connection) -> Vec<u8> {
    let request = Request::Read { offset: 0, length: BLOCK as u32 };
    client.call(&request).expect("it stays connected").expect("reading goes on")
}

/// Goal: `read_only` reaches connected clients at once and for every change, those that wait for a
/// limit too, and lets them write again when it goes; readers notice nothing. Method: two clients
/// of a wide volume, one on each shard; after the command's answer a write, a trim and a zeroing.
#[test]
fn read_only_reaches_connected_clients() {
    let (_work, _dir, node) = start("[node]\nshards = 2\n");
    node.layby(&["volume", "create", "wide", "--size", "8MiB", "--shards", "2"]);
    let mut clients = [open(&node, "wide"), open(&node, "wide")];
    clients[0].call(&write(7)).expect("connected").expect("it may write");
    node.layby(&["volume", "set", "wide", "--read-only", "true"]);
    for client in &mut clients {
        let length = BLOCK as u32;
        let zero = Request::Zero { offset: 0, length };
        let changes = [write(8), zero, Request::Trim { offset: 0, length }];
        for (number, change) in changes.iter().enumerate() {
            let answer = client.call(change).expect("it stays connected");
            assert_eq!(answer, Err(EPERM), "change {number}");
        }
        assert_eq!(client.call(&Request::Flush).expect("it stays connected"), Ok(Vec::new()));
        assert_eq!(read(client), [7; BLOCK]);
    }
    let mut late = open(&node, "wide");
    assert_eq!(late.call(&write(8)).expect("connected"), Err(EPERM));
    node.layby(&["volume", "set", "wide", "--read-only", "false"]);
    for client in &mut clients {
        client.call(&write(9)).expect("connected").expect("it may write again");
    }
    assert_eq!(late.call(&write(8)).expect("connected"), Err(EPERM), "it was told so");
    assert_eq!(read(&mut late), [9; BLOCK]);
    node.stop();
}

/// Goal: a write that waits for its volume's limit when that becomes read-only is refused, too.
/// Method: one request a second and twenty writes at once; those that were not begun before the
/// command's answer, which ends the limit, too, are errors, and none of them is in the volume.
#[test]
fn writes_that_wait_are_refused() {
    const WRITES: u8 = 20;
    let (_work, _dir, node) = start("");
    let limits = ["--iops-max", "1", "--iops-burst", "1"];
    node.layby(&[&["volume", "create", "slow", "--size", "1MiB"][..], &limits].concat());
    let mut client = open(&node, "slow");
    for byte in 1..=WRITES {
        client.send(&write(byte)).expect("connected");
    }
    let (_, first) = client.receive().expect("connected");
    first.expect("the burst lets one through");
    node.layby(&["volume", "set", "slow", "--read-only", "true", "--iops-max", "0"]);
    let mut answers = Vec::new();
    for _ in 2..=WRITES {
        answers.push(client.receive().expect("connected").1);
    }
    let done = 1 + answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(done < usize::from(WRITES) && answers.contains(&Err(EPERM)), "{answers:?}");
    let last_done = answers.iter().rposition(Result::is_ok).map_or(0, |at| at + 1);
    assert_eq!(last_done + 1, done, "what was refused comes last: {answers:?}");
    assert_eq!(read(&mut client), vec![done as u8; BLOCK]);
    node.stop();
}

/// Goal: a guest's disk of a volume that becomes read-only takes no change from then on; a guest
/// whose volume `unix` may not use any more is disconnected. Method: a driver of ours, before and
/// after each command.
#[test]
fn changes_reach_guests() {
    let (_work, dir, node) = start("");
    node.volume_create("maps", "1MiB", "normal");
    let mut guest = Guest::new(1);
    guest.connect(&dir.join("vhost/maps.sock"));
    assert_eq!(guest.ask(kind::OUT, 0, Data::Out(&[7; BLOCK])).0, 0);
    node.layby(&["volume", "set", "maps", "--read-only", "true"]);
    assert_eq!(guest.ask(kind::OUT, 0, Data::Out(&[8; BLOCK])).0, 1, "an I/O error");
    assert_eq!(guest.ask(kind::IN, 0, Data::In(BLOCK as u32)), (0, vec![7; BLOCK]));
    node.layby(&["volume", "set", "maps", "--read-only", "false"]);
    assert_eq!(guest.ask(kind::OUT, 0, Data::Out(&[9; BLOCK])).0, 0);
    node.layby(&["volume", "set", "maps", "--allow", "10.0.0.0/8"]);
    let is_there = || node.layby(&["volume", "show", "maps"]).contains("a guest is connected");
    // Its thread ends by itself, a moment after the answer.
    assert!((0..200).any(|_| !is_there()), "the guest stays");
    node.stop();
}

const ALLOWED: &str = r#"
import nbd, subprocess, sys
address, socket, command = sys.argv[1], sys.argv[2], sys.argv[3:]
near, far, other = nbd.NBD(), nbd.NBD(), nbd.NBD()
near.connect_uri(f"nbd+unix:///maps?socket={socket}")
far.connect_uri(f"nbd://{address}/maps")
other.connect_uri(f"nbd+unix:///log?socket={socket}")
def serves(client):
    try:
        client.pread(4096, 0)
        return True
    except nbd.Error:
        return False
def allow(*rules):
    words = [word for rule in rules for word in ("--allow", rule)]
    subprocess.run(command[:1] + ["volume", "set", "maps"] + words + command[1:], check=True,
                   stdout=subprocess.DEVNULL)
allow("unix", "127.0.0.0/8")
assert serves(near) and serves(far) and serves(other)
allow("127.0.0.0/8")
assert not serves(near), "a client on the unix socket stays"
assert serves(far) and serves(other)
allow("unix")
assert not serves(far), "a client on TCP stays"
near = nbd.NBD()
near.connect_uri(f"nbd+unix:///maps?socket={socket}")
assert serves(near) and serves(other)
"#;

/// The address on which a node serves NBD over TCP.
fn tcp(node: &Node) -> String {
    let said = node.said();
    let serving = said.lines().filter(|line| line.starts_with("serving "));
    let mut addresses = serving.filter_map(|line| line.split_once("://127.0.0.1:"));
    let (_, rest) = addresses.next().unwrap_or_else(|| panic!("no address:\n{said}"));
    let (port, _) = rest.split_once('/').expect("the volume's place follows");
    format!("127.0.0.1:{port}")
}

/// Goal: a connected client whose address `allow` does not name any more is disconnected when the
/// command answers; others stay. Method: libnbd on the unix socket and on TCP, and a client of
/// another volume.
#[test]
fn allow_reaches_connected_clients() {
    let (_work, dir, node) = start("[nbd]\nlisten = [\"127.0.0.1:0\"]\n");
    node.volume_create("maps", "1MiB", "normal");
    node.volume_create("log", "1MiB", "normal");
    let socket = node.socket().display().to_string();
    let program = binary().display().to_string();
    let dir = dir.display().to_string();
    if python(ALLOWED, &[&tcp(&node), &socket, &program, "--dir", &dir]) {
        assert!(node.stderr().contains("`allow` of the volume does not name the client"));
        node.stop();
    }
}

fn clients(node: &Node) -> Vec<Value> {
    let text = node.layby(&["client", "list", "--json"]);
    serde_json::from_str(&text).expect("a list in JSON")
}

/// Goal: an operator sees who is connected and closes connections by number and by volume, others
/// stay; each is in the audit log, an unknown number and volume are told as such. Method: three
/// clients of two volumes, the table, JSON, and the API.
#[test]
fn clients_are_listed_and_disconnected() {
    let (_work, dir, node) = start("");
    node.volume_create("maps", "1MiB", "bulk");
    let mut maps = [open(&node, "maps"), open(&node, "maps")];
    let mut other = open(&node, "vol0");
    let found = clients(&node);
    let of = |key: &str| found.iter().map(|client| client[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("number"), [1, 2, 3]);
    assert_eq!(of("volume"), ["maps", "maps", "vol0"]);
    assert_eq!(of("class"), ["bulk", "bulk", "normal"]);
    assert_eq!(of("peer"), ["unix", "unix", "unix"]);
    assert_eq!(of("requests_inflight"), [0, 0, 0]);
    assert!(of("certificate").iter().all(|names| names.as_array().is_some_and(Vec::is_empty)));
    let table = node.layby(&["client", "list"]);
    assert!(table.contains("| client |") && table.contains("vol0"), "{table}");
    node.layby(&["client", "disconnect", "1"]);
    maps[0].call(&Request::Flush).expect_err("it was disconnected");
    maps[1].call(&Request::Flush).expect("it stays").expect("and is served");
    assert_eq!(clients(&node).len(), 2);
    let said = node.layby(&["client", "disconnect", "--volume", "maps"]);
    assert!(said.contains("disconnected 1 client"), "{said}");
    maps[1].call(&Request::Flush).expect_err("it was disconnected");
    other.call(&Request::Flush).expect("it stays").expect("and is served");
    let dir_text = dir.display().to_string();
    let number = ["client", "disconnect", "1", "--dir", &dir_text];
    layby(&number).assert_explains(&["there is no client 1", "layby client list"]);
    let volume = ["client", "disconnect", "--volume", "no", "--dir", &dir_text];
    layby(&volume).assert_explains(&["there is no volume `no`"]);
    let wrong = HttpRequest::new("DELETE", "/v1/clients/first").send_unix(&node.control());
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    let log = std::fs::read_to_string(dir.join("audit.log")).expect("changes were made");
    assert!(log.contains("DELETE /v1/clients/1") && log.contains("DELETE /v1/clients/2"), "{log}");
    drop(other);
    assert!((0..200).any(|_| clients(&node).is_empty()), "who left is still listed");
    node.stop();
}

/// An authority, and what it signs.
struct Authority(PathBuf);

impl Authority {
    /// An authority in a new folder, which has its certificate.
    fn new(folder: &Path) -> Authority {
        std::fs::create_dir_all(folder).expect("the test's own folder");
        let authority = Authority(folder.to_owned());
        let (key, certificate) = (authority.file("ca-key.pem"), authority.file("ca-cert.pem"));
        let words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
        let more = ["-nodes", "-days", "2", "-subj", "/CN=authority", "-keyout", &key, "-out"];
        must("openssl", &[&words[..], &more, &[certificate.as_str()]].concat());
        authority
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// A certificate and its key, as FOLDER/NAME-cert.pem and FOLDER/NAME-key.pem.
    fn sign(&self, folder: &Path, name: &str, subject: &str, alternative: &str) {
        std::fs::create_dir_all(folder).expect("the test's own folder");
        let file = |end: &str| folder.join(format!("{name}-{end}")).display().to_string();
        let (key, request, certificate) = (file("key.pem"), file("csr"), file("cert.pem"));
        let words = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        let more = ["-subj", subject, "-keyout", &key, "-out", &request];
        must("openssl", &[&words[..], &more].concat());
        let extensions = file("ext");
        std::fs::write(&extensions, format!("subjectAltName={alternative}\n")).expect("its own");
        let (ca, ca_key) = (self.file("ca-cert.pem"), self.file("ca-key.pem"));
        let words = ["x509", "-req", "-days", "2", "-in", &request, "-CA", &ca, "-CAkey", &ca_key];
        let more = ["-CAcreateserial", "-extfile", &extensions, "-out", &certificate];
        must("openssl", &[&words[..], &more].concat());
    }

    /// A folder as libnbd reads it: the authority, and a client's certificate.
    fn client(&self, folder: &Path, subject: &str, alternative: &str) -> String {
        self.sign(folder, "client", subject, alternative);
        self.bare(folder)
    }

    /// The same without a certificate.
    fn bare(&self, folder: &Path) -> String {
        std::fs::create_dir_all(folder).expect("the test's own folder");
        std::fs::copy(self.0.join("ca-cert.pem"), folder.join("ca-cert.pem")).expect("its own");
        folder.display().to_string()
    }
}

/// `[nbd]` with TLS of files in `folder`.
fn with_tls(folder: &Path, more: &str) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    let (certificate, key) = (file("server-cert.pem"), file("server-key.pem"));
    format!(
        "[nbd]\nlisten = [\"127.0.0.1:0\"]\ntls = \"required\"\ntls_certificate = \
         \"{certificate}\"\ntls_key = \"{key}\"\n{more}\n"
    )
}

const CERTIFIED: &str = r#"
import nbd, sys
address, socket, brake, log, none, foreign, bare = sys.argv[1:]
def client(folder):
    h = nbd.NBD()
    h.set_tls(nbd.TLS_REQUIRE)
    h.set_tls_certificates(folder)
    h.set_tls_verify_peer(False)
    return h
def volumes(folder):
    h = client(folder)
    h.set_opt_mode(True)
    h.connect_tcp(*address.split(":"))
    found = []
    h.opt_list(lambda name, description: found.append(name))
    h.opt_abort()
    return sorted(found)
def may_use(folder, volume):
    h = client(folder)
    try:
        h.connect_uri(f"nbds://{address}/{volume}")
    except nbd.Error:
        return False
    h.pread(4096, 0)
    return True
assert volumes(brake) == ["brake", "shared"], volumes(brake)
assert volumes(log) == ["log", "shared"], volumes(log)
assert volumes(none) == [], volumes(none)
for folder, mine in [(brake, "brake shared"), (log, "log shared"), (none, "")]:
    for volume in ["brake", "log", "shared", "vol0"]:
        assert may_use(folder, volume) == (volume in mine.split()), (folder, volume)
assert not may_use(foreign, "brake"), "another authority's certificate"
assert not may_use(bare, "brake"), "a client without a certificate"
h = nbd.NBD()
try:
    h.connect_uri(f"nbd://{address}/brake")
    raise SystemExit("a client without TLS is let in")
except nbd.Error:
    pass
h = nbd.NBD()
h.connect_uri(f"nbd+unix:///vol0?socket={socket}")
"#;

/// Goal: a certificate gives the volumes that its common name and its DNS names are mapped to, in
/// lists and at entering, and no other; one of no mapped name, of another authority, and none at
/// all give none; the unix socket asks for none. Method: libnbd with certificates of each kind.
#[test]
fn certificates_give_their_volumes() {
    if !available(&["openssl"]) {
        return;
    }
    let keys = TempDir::new().expect("a temporary folder");
    let authority = Authority::new(&keys.path().join("ca"));
    authority.sign(keys.path(), "server", "/CN=localhost", "DNS:localhost");
    let ca = authority.file("ca-cert.pem");
    let more = format!(
        "tls_client_ca = \"{ca}\"\n[nbd.tls_clients]\n\"brake-service\" = [\"brake\", \"shared\"]\n\
         \"log.example\" = [\"log\"]\n\"group\" = [\"shared\"]\n"
    );
    let (_work, _dir, node) = start(&with_tls(keys.path(), &more));
    for volume in ["brake", "log", "shared"] {
        node.volume_create(volume, "1MiB", "normal");
    }
    let folder = |name: &str| keys.path().join(name);
    let brake = authority.client(&folder("a"), "/CN=brake-service", "DNS:other.example");
    let log = authority.client(&folder("b"), "/CN=x", "DNS:log.example,DNS:group");
    let none = authority.client(&folder("c"), "/CN=brake-service2", "DNS:brake,IP:127.0.0.1");
    let foreign = Authority::new(&folder("other"));
    let foreign = foreign.client(&folder("d"), "/CN=brake-service", "DNS:brake-service");
    let bare = authority.bare(&folder("e"));
    let socket = node.socket().display().to_string();
    if python(CERTIFIED, &[&tcp(&node), &socket, &brake, &log, &none, &foreign, &bare]) {
        let said = node.stderr();
        assert!(said.contains("`tls_clients` does not give the volume"), "{said}");
        for cause in ["an authority that is not in `tls_client_ca`", "showed no certificate"] {
            assert!(said.contains(cause), "{cause}: {said}");
        }
        node.stop();
    }
}

const CHOICE: &str = r#"
import nbd, sys
address, folder = sys.argv[1:]
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_tcp(*address.split(":"))
found = []
h.opt_list(lambda name, description: found.append(name))
h.opt_abort()
assert found == [], found
h = nbd.NBD()
try:
    h.connect_uri(f"nbd://{address}/vol0")
    raise SystemExit("a client in clear is let in")
except nbd.Error:
    pass
h = nbd.NBD()
h.set_tls(nbd.TLS_REQUIRE)
h.set_tls_certificates(folder)
h.set_tls_verify_peer(False)
h.connect_uri(f"nbds://{address}/vol0")
h.pread(4096, 0)
"#;

/// Goal: where TLS is a choice and certificates give the volumes, a client in clear sees and gets
/// none. Method: libnbd in clear, then with a certificate.
#[test]
fn certificates_count_where_tls_is_a_choice() {
    if !available(&["openssl"]) {
        return;
    }
    let keys = TempDir::new().expect("a temporary folder");
    let authority = Authority::new(&keys.path().join("ca"));
    authority.sign(keys.path(), "server", "/CN=localhost", "DNS:localhost");
    let ca = authority.file("ca-cert.pem");
    let more = format!("tls_client_ca = \"{ca}\"\ntls_clients = {{ a = [\"vol0\"] }}\n");
    let nbd = with_tls(keys.path(), &more).replace("\"required\"", "\"allowed\"");
    let (_work, _dir, node) = start(&nbd);
    let folder = authority.client(&keys.path().join("a"), "/CN=a", "DNS:b");
    if python(CHOICE, &[&tcp(&node), &folder]) {
        let said = node.stderr();
        assert!(said.contains("`tls_clients` gives volumes to certificates"), "{said}");
        node.stop();
    }
}

/// Goal: volumes are given to certificates only where an authority says whose they are. Method: the
/// table without an authority, and without TLS.
#[test]
fn certificates_need_an_authority() {
    let work = TempDir::new().expect("a temporary folder");
    let clients = "[nbd.tls_clients]\nbrake = [\"brake\"]\n";
    let levels = small_levels().config.expect("it has one");
    for nbd in [with_tls(work.path(), ""), "[nbd]\n".to_owned()] {
        let options = Options::config(format!("{nbd}{clients}\n{levels}"));
        let refusal = Node::try_start(&work.path().join("node"), &options);
        refusal.expect_err("no authority").assert_explains(&["tls_clients", "tls_client_ca"]);
    }
}

const RENEWED: &str = r#"
import nbd, subprocess, sys
address, old, new, pid, log, server = sys.argv[1:]
def client(folder):
    h = nbd.NBD()
    h.set_tls(nbd.TLS_REQUIRE)
    h.set_tls_certificates(folder)
    h.set_tls_verify_peer(True)
    h.connect_uri(f"nbds://localhost:{address.split(':')[1]}/vol0")
    return h
def trusts(folder):
    try:
        client(folder).shutdown()
        return True
    except nbd.Error:
        return False
def said(text):
    return open(log).read().count(text)
def hang_up(text):
    before = said(text)
    subprocess.run(["kill", "-HUP", pid], check=True)
    tries = 0
    while said(text) == before:
        trusts(old)
        tries += 1
        assert tries < 2000, open(log).read()
first = client(old)
assert trusts(old) and not trusts(new)
for name in ("server-cert.pem", "server-key.pem"):
    data = open(f"{new}/{name}").read()
    open(f"{server}/{name}", "w").write(data)
assert trusts(old), "files are read on a signal alone"
hang_up("TLS files read again")
assert trusts(new) and not trusts(old)
assert first.pread(4096, 0) == bytes(4096), "who is connected stays"
open(f"{server}/server-cert.pem", "w").write("nothing")
hang_up("cannot use the certificate")
assert trusts(new) and first.pread(4096, 0) == bytes(4096)
"#;

/// Goal: a certificate that was renewed is used from SIGHUP on, without disturbing who is
/// connected; a file that cannot be used is told in the log and changes nothing. Method: libnbd
/// that trusts the old or the new authority; the files replaced, then damaged.
#[test]
fn renewed_certificates_are_read_on_sighup() {
    if !available(&["openssl"]) {
        return;
    }
    let keys = TempDir::new().expect("a temporary folder");
    let (server, old, new) =
        (keys.path().join("server"), keys.path().join("old"), keys.path().join("new"));
    let authority = Authority::new(&old);
    authority.sign(&server, "server", "/CN=localhost", "DNS:localhost");
    Authority::new(&new).sign(&new, "server", "/CN=localhost", "DNS:localhost");
    let (work, _dir, node) = start(&with_tls(&server, ""));
    let text = |path: &Path| path.display().to_string();
    let log = text(&work.path().join("node.log"));
    let pid = node.pid().to_string();
    let words = [tcp(&node), text(&old), text(&new), pid, log, text(&server)];
    if python(RENEWED, &words.each_ref().map(String::as_str)) {
        node.stop();
    }
}
