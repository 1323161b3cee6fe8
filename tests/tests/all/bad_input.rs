//! What a node does with input that it cannot use: it explains, and loses nothing.
//!
//! How: each test starts a node that must refuse, and asserts the form of its error (what, why,
//! state of the data, what to do) and the words that a person needs to find the fault. Where data
//! was there before, it is read again after the fault is mended.

use layby_tests::{
    Connection, LoopDevice, Node, Options, Refusal, Request, SmallDisk, available, binary, layby,
    mount_unavailable, must, small_levels,
};
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const EIO: u32 = 5;
const ENOSPC: u32 = 28;

#[track_caller]
fn refused(dir: &Path, options: &Options) -> Refusal {
    match Node::try_start(dir, options) {
        Ok(_) => panic!("the node started on input that it must refuse"),
        Err(refusal) => refusal,
    }
}

fn temporary() -> (TempDir, PathBuf) {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    (work, dir)
}

/// Levels at known paths, so that a test can damage or exchange them.
fn levels_at(folder: &Path) -> Options {
    Options::config(format!(
        "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n\
         [[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"16MiB\"\npath = \"{0}/nvm.level\"\n\n\
         [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"128MiB\"\npath = \"{0}/ssd.level\"\n",
        folder.display()
    ))
}

/// Writes a pattern to a critical and a normal volume, flushes, and stops the node cleanly.
fn node_with_data(dir: &Path, options: &Options) {
    let node = Node::start(dir, options);
    for class in ["critical", "normal"] {
        node.volume_create(class, "4MiB", class);
        let mut connection = Connection::open(&node.socket(), class).expect("the node serves");
        let write = Request::Write { offset: 8192, data: vec![0x77; 65536], fua: true };
        assert!(connection.call(&write).is_ok_and(|result| result.is_ok()));
    }
    node.stop();
}

/// Starts the node again and finds what [`node_with_data`] wrote.
#[track_caller]
fn assert_data_is_there(dir: &Path, options: &Options) {
    let node = Node::start(dir, options);
    for class in ["critical", "normal"] {
        let mut connection = Connection::open(&node.socket(), class).expect("the node serves");
        let read = Request::Read { offset: 8192, length: 65536 };
        let data = connection.call(&read).expect("the node serves").expect("no error");
        assert!(data.iter().all(|byte| *byte == 0x77), "{class}: data was lost");
    }
    node.stop();
}

/// Goal: a typing mistake is found, with its line. Method: one key that does not exist.
#[test]
fn an_unknown_key_is_refused() {
    let (_work, dir) = temporary();
    let text = "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\ncolour = \"red\"\n";
    let refusal = refused(&dir, &Options::config(text));
    refusal.assert_explains(&["colour", "5"]);
}

/// Goal: a catalog that is no file is refused, and holds nothing up. Method: a pipe without a
/// writer in its place, at a start and a check; then the catalog again.
#[test]
fn a_catalog_that_is_no_file_is_refused() {
    let (_work, dir) = temporary();
    let options = small_levels();
    node_with_data(&dir, &options);
    let [catalog, kept] = ["catalog.json", "kept.json"].map(|name| dir.join(name));
    fs::rename(&catalog, &kept).expect("the test's own file");
    must("mkfifo", &[&catalog.to_string_lossy()]);
    let refusal = refused(&dir, &options);
    refusal.assert_explains(&["catalog.json", "no regular file"]);
    let checked = layby(&["check", "--dir", &dir.to_string_lossy()]);
    checked.assert_explains(&["catalog.json", "no regular file"]);
    fs::rename(&kept, &catalog).expect("the test's own file");
    assert_data_is_there(&dir, &options);
}

/// Goal: values out of range or of the wrong kind are refused by name. Method: a few.
#[test]
fn values_that_make_no_sense_are_refused() {
    for (line, word) in [
        ("kind = \"tape\"\nsize = \"8MiB\"", "tape"),
        ("kind = \"memory\"\nsize = \"many\"", "many"),
        ("kind = \"memory\"\nsize = 7", "size"),
        ("kind = \"memory\"", "size"),
    ] {
        let (_work, dir) = temporary();
        let config = format!("[[level]]\nname = \"first\"\n{line}\n");
        refused(&dir, &Options::config(config)).assert_explains(&[word]);
    }
}

/// Goal: a configuration that is not there is an error, not an empty one. Method: a wrong path.
#[test]
fn a_missing_configuration_is_refused() {
    let (work, dir) = temporary();
    let missing = work.path().join("absent.toml").display().to_string();
    let options =
        Options { arguments: vec!["--config".into(), missing.clone()], ..Options::default() };
    let refusal = refused(&dir, &options);
    refusal.assert_explains(&[&missing]);
    assert_eq!(refusal.code, Some(6), "what is named does not exist");
}

/// Goal: two levels never share bytes. Method: two levels on one file.
#[test]
fn overlapping_level_files_are_refused() {
    let (work, dir) = temporary();
    let path = work.path().join("both.level").display().to_string();
    let level = |name: &str, kind: &str| {
        format!(
            "[[level]]\nname = \"{name}\"\nkind = \"{kind}\"\nsize = \"64MiB\"\npath = \"{path}\"\n"
        )
    };
    let config = format!("{}{}", level("nvm", "nvm"), level("ssd", "ssd"));
    refused(&dir, &Options::config(config)).assert_explains(&[&path]);
}

/// Goal: a level too small to work is refused before anything is made. Method: 4 KiB of SSD.
#[test]
fn a_level_too_small_is_refused() {
    let (_work, dir) = temporary();
    let config = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"4KiB\"\n";
    refused(&dir, &Options::config(config)).assert_explains(&["ssd", "4KiB"]);
}

/// Goal: a node never takes another's level for its own. Method: exchange the NVM file of two
/// nodes, see the refusal, put it back, find the data.
#[test]
fn a_level_of_another_node_is_refused() {
    let (work, ours) = temporary();
    let (own, foreign) = (work.path().join("own"), work.path().join("foreign"));
    let theirs = work.path().join("their-node");
    for folder in [&own, &foreign] {
        fs::create_dir(folder).expect("can make it");
    }
    node_with_data(&ours, &levels_at(&own));
    node_with_data(&theirs, &levels_at(&foreign));
    let (kept, level) = (own.join("kept"), own.join("nvm.level"));
    fs::rename(&level, &kept).expect("can move");
    fs::copy(foreign.join("nvm.level"), &level).expect("can copy");
    refused(&ours, &levels_at(&own)).assert_explains(&["nvm.level"]);
    let untouched = fs::read(&level).expect("can read");
    assert!(untouched == fs::read(foreign.join("nvm.level")).expect("can read"), "it was changed");
    fs::rename(&kept, &level).expect("can move");
    assert_data_is_there(&ours, &levels_at(&own));
}

/// Goal: a damaged superblock is reported with its place, and nothing is written over it. Method:
/// flip bytes in two sectors at the front of each level, see the refusal, flip them back, find the
/// data.
#[test]
fn a_wrong_checksum_is_refused() {
    let (work, dir) = temporary();
    let options = levels_at(work.path());
    node_with_data(&dir, &options);
    for name in ["nvm.level", "ssd.level"] {
        let path = work.path().join(name);
        let before = fs::read(&path).expect("can read");
        flip(&path);
        let refusal = refused(&dir, &options);
        refusal.assert_explains(&[name, "checksum"]);
        flip(&path);
        assert!(before == fs::read(&path).expect("can read"), "{name} was changed");
        assert_data_is_there(&dir, &options);
    }
}

/// Goal: a first start formats no level file that holds anything, and leaves it as it was; the
/// flag gives it up, and only for a first start. Method: a file with text in its middle, one of
/// some bytes, a level in the node's own folder whose catalog was lost.
#[test]
fn a_first_start_over_data_is_refused() {
    let (work, dir) = temporary();
    let options = levels_at(work.path());
    let level = work.path().join("ssd.level");
    for (length, at) in [(128 << 20, 77 << 20), (1000, 999)] {
        fs::write(&level, []).expect("can make it");
        let file = fs::File::options().read(true).write(true).open(&level).expect("can open");
        file.set_len(length).expect("can make it longer");
        file.write_all_at(b"x", at).expect("can write");
        refused(&dir, &options).assert_explains(&["ssd.level", &format!("byte {at}"), "--format"]);
        let mut found = [0];
        file.read_exact_at(&mut found, at).expect("can read");
        assert_eq!((found, file.metadata().expect("it is open").len()), (*b"x", length));
    }
    let flag =
        |options: &Options| Options { arguments: vec!["--format".into()], ..options.clone() };
    Node::start(&dir, &flag(&options)).stop();
    refused(&dir, &flag(&options)).assert_explains(&["has run", "leave --format out"]);
    node_with_data(&dir, &options);
    let own = work.path().join("own");
    node_with_data(&own, &small_levels());
    let lost = ["catalog.json", "volumes"].map(|name| (own.join(name), work.path().join(name)));
    lost.iter().for_each(|(from, to)| fs::rename(from, to).expect("can move"));
    refused(&own, &small_levels()).assert_explains(&["has run here", "put the node's own"]);
    let intents = ["intents.json", "intents"].map(|name| own.join(name));
    fs::rename(&intents[0], &intents[1]).expect("can move");
    refused(&own, &small_levels()).assert_explains(&["a level of another node", "catalog.json"]);
    fs::rename(&intents[1], &intents[0]).expect("can move");
    fs::remove_dir_all(own.join("volumes")).expect("it has nothing");
    lost.iter().for_each(|(to, from)| fs::rename(from, to).expect("can move"));
    assert_data_is_there(&own, &small_levels());
}

/// Goal: a device with a signature at its end, or with data after a cleared beginning, is no level
/// of a first start; one of zeros is. Method: a loop device as the SSD level.
#[test]
fn a_device_with_data_is_refused() {
    const LENGTH: u64 = 128 << 20;
    let (work, dir) = temporary();
    if mount_unavailable() || !available(&["losetup"]) {
        return;
    }
    let image = work.path().join("image");
    for data in [Some((LENGTH - 8192, 512)), Some((40 << 20, 1 << 20)), None] {
        let file = fs::File::create(&image).expect("can make it");
        file.set_len(LENGTH).expect("can make it longer");
        if let Some((at, bytes)) = data {
            file.write_all_at(&vec![0xa9; bytes], at).expect("can write");
        }
        let device = LoopDevice::new(&image);
        let config = format!(
            "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"{LENGTH}\"\npath = \"{}\"\n",
            device.path()
        );
        match Node::try_start(&dir, &Options::config(config)) {
            Ok(node) => {
                assert!(data.is_none(), "{data:?} was formatted");
                node.stop();
            }
            Err(refusal) => {
                assert!(data.is_some(), "zeros: {}", refusal.stderr);
                refusal.assert_explains(&[device.path(), "holds data", "--format"]);
            }
        }
    }
}

/// Goal: a private key that others may read is refused, with the way out. Method: its modes.
#[test]
fn an_open_private_key_is_refused() {
    let (work, dir) = temporary();
    if !available(&["openssl"]) {
        return;
    }
    let (key, certificate) = (work.path().join("k.pem"), work.path().join("c.pem"));
    let words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
    let more = ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout"];
    let (key_text, certificate_text) =
        (key.display().to_string(), certificate.display().to_string());
    must("openssl", &[&words[..], &more, &[&key_text, "-out", &certificate_text]].concat());
    let levels = small_levels().config.expect("it has one");
    let tls = format!(
        "[nbd]\ntls = \"required\"\ntls_certificate = \"{certificate_text}\"\n\
         tls_key = \"{key_text}\"\n{levels}"
    );
    for (mode, is_good) in [(0o644, false), (0o604, false), (0o660, false), (0o640, true)] {
        let own = fs::Permissions::from_mode(mode);
        fs::set_permissions(&key, own).expect("can change it");
        match Node::try_start(&dir, &Options::config(tls.clone())) {
            Ok(node) => {
                assert!(is_good, "{mode:o} was taken");
                node.stop();
            }
            Err(refusal) => {
                assert!(!is_good, "{mode:o}: {}", refusal.stderr);
                refusal.assert_explains(&["k.pem", "chmod 600", &format!("{mode:04o}")]);
            }
        }
    }
}

/// Inverts bytes of two sectors in both places where a superblock may lie: parity makes up for one.
fn flip(path: &Path) {
    let file = fs::File::options().read(true).write(true).open(path).expect("can open");
    for place in [16, 528, 4096 + 16, 4096 + 528] {
        let mut bytes = [0; 48];
        file.read_exact_at(&mut bytes, place).expect("can read");
        file.write_all_at(&bytes.map(|byte| !byte), place).expect("can write");
    }
}

/// Goal: a disk too small for the levels is an error at start, not later. Method: 128 MiB of SSD
/// level on a disk of 32 MiB.
#[test]
fn levels_larger_than_their_disk_are_refused() {
    let (work, _) = temporary();
    let Some(disk) = SmallDisk::new(&work.path().join("disk"), "32M") else { return };
    refused(&disk.path().join("node"), &small_levels()).assert_explains(&[]);
}

/// Goal: when the backing disk fills, writers hear of it, readers go on, and nothing that was
/// promised is lost. Method: write past the end of a small disk, then read what was promised,
/// before and after a restart.
#[test]
fn a_full_backing_disk_loses_nothing() {
    const STEP: u64 = 256 << 10;
    let (work, _) = temporary();
    let Some(disk) = SmallDisk::new(&work.path().join("disk"), "224M") else { return };
    let dir = disk.path().join("node");
    let node = Node::start(&dir, &small_levels());
    node.volume_create("disk", "1GiB", "normal");
    let mut connection = Connection::open(&node.socket(), "disk").expect("the node serves");
    let mut promised = Vec::new();
    let refusal = (0..connection.size() / STEP).find_map(|index| {
        let data = vec![(index % 251 + 1) as u8; STEP as usize];
        let write = Request::Write { offset: index * STEP, data, fua: true };
        let result = connection.call(&write).expect("a full disk does not end the connection");
        promised.extend(result.is_ok().then_some(index));
        result.err()
    });
    assert!(matches!(refusal, Some(EIO | ENOSPC)), "1 GiB on 224 MiB: {refusal:?}");
    assert!(!promised.is_empty());
    let is_said = (0..1000).any(|_| node.layby(&["status"]).contains("cannot be written back to"));
    assert!(is_said && node.stderr().contains("volume=\"disk\""), "{}", node.stderr());
    let read_all = |connection: &mut Connection| {
        for index in &promised {
            let read = Request::Read { offset: index * STEP, length: STEP as u32 };
            let data = connection.call(&read).expect("the node serves").expect("no error");
            assert!(data.iter().all(|byte| u64::from(*byte) == index % 251 + 1), "{index} is lost");
        }
    };
    read_all(&mut connection);
    node.kill9();
    let node = Node::start(&dir, &small_levels());
    read_all(&mut Connection::open(&node.socket(), "disk").expect("the node serves"));
}

/// Goal: a volume whose home is full fails alone. Method: one fills its small disk and all that it
/// gets of the levels; others on another disk write more than the levels hold.
#[test]
fn a_full_home_fails_its_volume_alone() {
    const STEP: u64 = 256 << 10;
    let (work, dir) = temporary();
    let Some(disk) = SmallDisk::new(&work.path().join("disk"), "32M") else { return };
    fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o755)).expect("can change it");
    let mut options = small_levels();
    options.arguments = vec!["--volume-root".into(), disk.path().display().to_string()];
    let node = Node::start(&dir, &options);
    let path = disk.path().join("full.img").display().to_string();
    node.layby(&["volume", "create", "full", "--size", "1GiB", "--path", &path]);
    node.volume_create("near", "1GiB", "normal");
    node.volume_create("urgent", "1GiB", "critical");
    let write = |connection: &mut Connection, index: u64| {
        let data = vec![(index % 251 + 1) as u8; STEP as usize];
        let write = Request::Write { offset: index * STEP, data, fua: true };
        connection.call(&write).expect("a full disk does not end the connection")
    };
    let open = |name| Connection::open(&node.socket(), name).expect("the node serves");
    let mut full = open("full");
    let refusal = (0..full.size() / STEP).find_map(|index| write(&mut full, index).err());
    assert!(matches!(refusal, Some(EIO | ENOSPC)), "1 GiB on 32 MiB: {refusal:?}");
    for name in ["near", "urgent"] {
        let mut connection = open(name);
        let failure = (0..1024).find_map(|index| write(&mut connection, index).err());
        assert_eq!(failure, None, "writes of `{name}` fail for want of another volume's disk");
    }
}

/// Goal: a full disk below the node's own directory keeps no volume from being written. Method:
/// levels and homes elsewhere; volumes that are clean, before and after a restart, once the disk
/// takes nothing.
#[test]
fn a_full_directory_leaves_volumes_writable() {
    let (work, homes) = temporary();
    let Some(disk) = SmallDisk::new(&work.path().join("disk"), "4M") else { return };
    fs::create_dir(&homes).expect("can make it");
    let ssd = work.path().join("ssd.level");
    let mut options = Options::config(format!(
        "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n[[level]]\n\
         name = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\npath = \"{}\"\n",
        ssd.display()
    ));
    options.arguments = vec!["--volume-root".into(), homes.display().to_string()];
    let dir = disk.path().join("node");
    let node = Node::start(&dir, &options);
    for name in ["first", "second"] {
        let path = homes.join(name).display().to_string();
        node.layby(&["volume", "create", name, "--size", "64MiB", "--path", &path]);
    }
    let mut filler = fs::File::create(disk.path().join("filler")).expect("the disk has room");
    while filler.write_all(&[1; 4096]).is_ok() {}
    let write = |node: &Node, name: &str| {
        let mut connection = Connection::open(&node.socket(), name).expect("the node serves");
        let write = Request::Write { offset: 0, data: vec![7; 1 << 20], fua: true };
        connection.call(&write).expect("the connection stays").expect("its home has room");
    };
    write(&node, "first");
    node.kill9();
    let node = Node::start(&dir, &options);
    write(&node, "second");
}

/// Goal: volumes are deleted while the disk below the node's own directory is full, so that a
/// deletion can make room, and the next start finds them deleted; where the catalog cannot be
/// written all the same, a deletion leaves the volume served. Method: levels, homes and stores
/// elsewhere; volumes in files and in folders that are stores, with each word on their data; a
/// folder in the way of the catalog's new file; clients that go on.
#[test]
fn a_full_directory_refuses_no_deletion() {
    let (work, homes) = temporary();
    let Some(disk) = SmallDisk::new(&work.path().join("disk"), "4M") else { return };
    fs::create_dir(&homes).expect("can make it");
    let mut options = levels_at(work.path());
    let elsewhere = homes.display();
    let cloud = format!(
        "\n[cloud]\njournal = \"16MiB\"\njournal_dir = \"{elsewhere}/journals\"\n\
         map_dir = \"{elsewhere}/maps\"\n"
    );
    options.config.as_mut().expect("it has one").push_str(&cloud);
    options.arguments = vec!["--volume-root".into(), elsewhere.to_string()];
    let dir = disk.path().join("node");
    let node = Node::start(&dir, &options);
    let place = dir.display().to_string();
    let volumes = [
        ("file", "", "keep"),
        ("dropped", "", "delete"),
        ("far", "file://", "keep"),
        ("gone", "file://", "delete"),
    ];
    for (name, scheme, _) in volumes {
        let path = format!("{scheme}{elsewhere}/{name}");
        node.layby(&["volume", "create", name, "--size", "8MiB", "--path", &path]);
    }
    let write = |client: &mut Connection, offset| {
        let write = Request::Write { offset, data: vec![7; 1 << 20], fua: true };
        client.call(&write).expect("the connection stays").expect("its home has room");
    };
    let open = |name: &str| Connection::open(&node.socket(), name).expect("the node serves");
    let drain = || volumes.map(|(name, ..)| node.layby(&["volume", "drain", name]));
    let mut clients = volumes.map(|(name, ..)| open(name));
    clients.iter_mut().for_each(|client| write(client, 0));
    drain();
    // It keeps its room meanwhile.
    let (staged, away) = (dir.join("catalog.json.new"), disk.path().join("away"));
    let _ = fs::rename(&staged, &away);
    fs::create_dir(&staged).expect("the disk has room");
    let _filler = disk.fill();
    for ((name, _, data), client) in volumes.iter().zip(&mut clients) {
        let words = ["volume", "delete", name, "--data", data, "--dir", &place];
        let refused = layby(&words);
        refused.assert_explains(&["cannot write", "the volume is as it was before"]);
        write(client, 1 << 20);
        write(&mut open(name), 2 << 20);
    }
    drain();
    fs::remove_dir(&staged).expect("it is empty");
    let _ = fs::rename(&away, &staged);
    for (name, _, data) in volumes {
        node.layby(&["volume", "delete", name, "--data", data]);
        assert!(!node.serves(name), "{name}");
    }
    assert!(node.layby(&["volume", "list", "--deleted"]).contains("gone"));
    node.kill9();
    let node = Node::start(&dir, &options);
    let listed = node.layby(&["volume", "list"]);
    assert!(volumes.iter().all(|(name, ..)| !listed.contains(name)), "{listed}");
    assert!(node.layby(&["volume", "list", "--deleted"]).contains("gone"));
}

/// Goal: a restore that finds no room ends with the exit code for that, and leaves no file.
/// Method: a volume in a folder that is a store, restored onto a small disk.
#[test]
fn a_restore_onto_a_full_disk_is_refused() {
    let (work, dir) = temporary();
    let Some(disk) = SmallDisk::new(&work.path().join("disk"), "1M") else { return };
    let levels = small_levels().config.expect("it has one");
    let options = Options::config(format!("{levels}\n[cloud]\njournal = \"16MiB\"\n"));
    let node = Node::start(&dir, &options);
    let url = format!("file://{}/store", work.path().display());
    node.layby(&["volume", "create", "far", "--size", "8MiB", "--path", &url]);
    let mut client = Connection::open(&node.socket(), "far").expect("the node serves");
    let write = Request::Write { offset: 0, data: vec![7; 4 << 20], fua: true };
    client.call(&write).expect("the connection stays").expect("its home has room");
    node.layby(&["volume", "drain", "far"]);
    let image = disk.path().join("image");
    let ended = Command::new(binary()).args(["restore", &url]).arg(&image).output();
    let ended = ended.expect("the program starts");
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    let refusal = Refusal { code: ended.status.code(), stderr };
    refusal.assert_explains(&["No space left", "make room"]);
    assert_eq!(refusal.code, Some(8), "{}", refusal.stderr);
    let left = fs::read_dir(disk.path()).expect("it is there").count();
    assert_eq!(left, 0, "a file is left");
}

/// Goal: a limit on the length of files ends no start without a word. Method: a node whose levels
/// are longer than its limit.
#[test]
fn a_level_longer_than_files_may_be_is_refused() {
    if !available(&["prlimit"]) {
        return;
    }
    let (_work, dir) = temporary();
    let mut command = Command::new("prlimit");
    command.arg("--fsize=8388608").arg(binary()).arg("serve").arg("--dir").arg(&dir);
    match Node::spawn(command, &dir) {
        Ok(_) => panic!("the node started with levels that it cannot have"),
        Err(refusal) => {
            refusal.assert_explains(&["File too large", &dir.display().to_string()]);
            assert_eq!(refusal.code, Some(8), "{}", refusal.stderr);
        }
    }
}

/// Goal: a folder that may not be written is named. Method: another user's folder, as `nobody`
/// where we are root and may write everything.
#[test]
fn a_missing_permission_is_refused() {
    let (work, dir) = temporary();
    fs::create_dir(&dir).expect("can make it");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o500)).expect("can change it");
    fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755)).expect("can change it");
    // A copy, since the build folder may be closed to others.
    let program = work.path().join("layby");
    fs::copy(binary(), &program).expect("can copy");
    let root = must("id", &["-u"]).trim() == "0";
    let mut command = if root { Command::new("setpriv") } else { Command::new(&program) };
    if root {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    }
    command.arg("serve").arg("--dir").arg(&dir);
    match Node::spawn(command, &dir) {
        Ok(_) => panic!("the node started in a folder that it may not use"),
        Err(refusal) => refusal.assert_explains(&[&dir.display().to_string()]),
    }
}

/// Goal: a port in use is named. Method: listen on it first.
#[test]
fn a_port_in_use_is_refused() {
    let (_work, dir) = temporary();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let options = Options { arguments: vec!["--listen".into(), address.clone()], ..small_levels() };
    refused(&dir, &options).assert_explains(&[&address]);
}

/// Goal: a name and the numbers that it leads to are refused as one address, both as they are
/// written, in the list and beside it. Method: `localhost`.
#[test]
fn one_address_in_two_spellings_is_refused() {
    for (control, key) in
        [("", "`listen`"), ("[control]\nmetrics = \"localhost:9\"\n", "`metrics`")]
    {
        let (_work, dir) = temporary();
        let other = if control.is_empty() { ", \"localhost:9\"" } else { "" };
        let nbd = format!("[nbd]\nlisten = [\"127.0.0.1:9\"{other}]\n");
        let refusal = refused(&dir, &Options::config(format!("{nbd}{control}")));
        assert_eq!(refusal.code, Some(2), "{}", refusal.stderr);
        let words = ["`localhost:9` of", key, "`127.0.0.1:9` of `listen`", "leave one of them out"];
        refusal.assert_explains(&words);
    }
}

/// Goal: two nodes never write one folder, and the first goes on. Method: start a second.
#[test]
fn a_second_node_on_the_same_folder_is_refused() {
    let (_work, dir) = temporary();
    let first = Node::start(&dir, &small_levels());
    first.volume_create("disk", "4MiB", "normal");
    let mut second = Command::new(binary());
    second.arg("serve").arg("--dir").arg(&dir);
    match Node::spawn(second, &dir.join("../second")) {
        Ok(_) => panic!("two nodes serve one folder"),
        Err(refusal) => refusal.assert_explains(&[&dir.display().to_string()]),
    }
    let mut connection = Connection::open(&first.socket(), "disk").expect("the first serves");
    let read = Request::Read { offset: 0, length: 4096 };
    assert!(connection.call(&read).is_ok_and(|result| result.is_ok()));
    first.stop();
}

/// Goal: a volume that cannot be made is refused by a running node, which goes on. Method: names,
/// sizes and classes that make no sense, and one name twice.
#[test]
fn volumes_that_make_no_sense_are_refused() {
    let (_work, dir) = temporary();
    let node = Node::start(&dir, &small_levels());
    node.volume_create("disk", "4MiB", "normal");
    let place = dir.display().to_string();
    for (name, size, class) in [
        ("disk", "4MiB", "normal"),
        ("a/b", "4MiB", "normal"),
        ("other", "0", "normal"),
        ("other", "plenty", "normal"),
        ("other", "4MiB", "urgent"),
    ] {
        let words = ["volume", "create", name, "--size", size, "--class", class, "--dir", &place];
        let outcome = layby_tests::layby(&words);
        assert!(!outcome.success, "{name} {size} {class} was accepted");
        assert!(outcome.stderr.contains("error: "), "{}", outcome.stderr);
    }
    let outcome = layby_tests::layby(&["volume", "delete", "nobody", "--dir", &place]);
    assert!(outcome.stderr.contains("cannot delete volume `nobody`"), "{}", outcome.stderr);
    node.stop();
}

/// Goal: a change that names nothing, a cap that could do nothing and a volume's name where the
/// trace's number belongs are errors that say so. Method: each once, beside a cap that is of use.
#[test]
fn what_would_do_nothing_is_an_error() {
    let base = TempDir::new().expect("a temporary folder");
    let node = Node::start(&base.path().join("node"), &small_levels());
    let dir = base.path().join("node").display().to_string();
    node.volume_create("maps", "4MiB", "normal");
    let set = ["volume", "set", "maps", "--dir", &dir];
    layby(&set).assert_explains(&["nothing was named"]);
    let cap = ["--cap", "nvm=1MiB"];
    layby(&[&set[..], &cap].concat()).assert_explains(&["cap of level `nvm`", "`normal`"]);
    let create = ["volume", "create", "x", "--size", "4MiB", "--dir", &dir];
    layby(&[&create[..], &cap].concat()).assert_explains(&["cap of level `nvm`"]);
    let class = ["class", "set", "bulk", "--dir", &dir];
    layby(&[&class[..], &cap].concat()).assert_explains(&["cap of level `nvm`"]);
    node.layby(&["volume", "set", "maps", "--cap", "ssd=64MiB"]);
    node.stop();
    let levels = "1MiB,1MiB,1MiB";
    let replay = layby(&["replay", "none", "--levels", levels, "--critical", "vol0"]);
    assert!(!replay.success && replay.stderr.contains("the trace's numbers"), "{replay:?}");
}

/// Goal: a file where the node's directory is to be is wrong input, and stays. Method: a file, and
/// a folder below it.
#[test]
fn a_file_is_no_directory() {
    let (work, _) = temporary();
    let file = work.path().join("file");
    fs::write(&file, "kept").expect("it can be written");
    for dir in [file.clone(), file.join("node")] {
        let refused = layby(&["serve", "--dir", &dir.to_string_lossy()]);
        assert!(!refused.success);
        assert!(refused.stderr.contains("a file is in its place"), "{}", refused.stderr);
    }
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "kept");
}

/// Goal: a path that begins as a store's URL does and is none is refused, by the configuration and
/// by a command, with the way to write it, and makes no file; the same name is a file where it is
/// written as a path. Method: `s3:bucket` and its like beside a node's folder.
#[test]
fn what_is_almost_a_store_is_no_file() {
    let (work, dir) = temporary();
    let levels = small_levels().config.expect("it has one");
    let volume = |path: &str| format!("{levels}\n[volume.v]\nsize = \"1MiB\"\npath = \"{path}\"\n");
    let node = Node::start(&work.path().join("other"), &small_levels());
    let other = work.path().join("other").display().to_string();
    for path in ["s3:bucket", "file:bucket", "az:x", "gs:b", "https:x"] {
        let expected = [path, "names no store", "s3://BUCKET/PREFIX", &format!("./{path}")];
        match Node::try_start(&dir, &Options::config(volume(path))) {
            Ok(node) => panic!("`{path}` is served: {}", node.said()),
            Err(refusal) => refusal.assert_explains(&expected),
        }
        assert!(!dir.join(path).exists(), "`{path}` was made");
        let create = ["volume", "create", "x", "--size", "1MiB", "--path", path, "--dir", &other];
        layby(&create).assert_explains(&expected);
    }
    node.stop();
    let node = Node::start(&dir, &Options::config(volume("./s3:bucket")));
    assert!(dir.join("s3:bucket").is_file(), "it was written as a file");
    node.stop();
}
